//! What people look at: metrics and the web page, with clients as people have them.

mod chromium;
mod daemon;
mod http;
mod made_up;
mod page;
mod prometheus;
mod serve;
mod tool;
