//! What people look at: metrics and the web page, with clients as people have them.

mod alive;
mod chromium;
mod daemon;
mod http;
mod load;
mod made_up;
mod page;
mod prometheus;
mod real;
mod serve;
mod tool;
