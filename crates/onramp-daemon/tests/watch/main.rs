//! Tests of the metrics and of the web page with real clients: a browser, Prometheus, a terminal.

mod alive;
mod answers;
mod chromium;
mod daemon;
mod fleet;
mod http;
mod load;
mod made_up;
mod page;
mod prometheus;
mod real;
mod sampler;
mod serve;
mod terminal;
mod tool;
