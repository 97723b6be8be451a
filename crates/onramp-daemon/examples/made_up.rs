//! Serves the web page and the metrics of simulated devices: `made_up [ADDR] [QUEUES] [empty]`.
//! `ADDR` is the address to listen on. A `QUEUES` above 0 adds a device with that number of queues;
//! `empty` removes all devices.

#[path = "../tests/watch/made_up.rs"]
mod made_up;

use std::sync::Arc;
use std::time::Duration;

use onramp_daemon::http::{Limits, Sampler, serve};

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let address = args.first().map_or("127.0.0.1:0", String::as_str);
    let many = args.get(1).and_then(|queues| queues.parse().ok()).unwrap_or(0);
    let empty = args.iter().any(|arg| arg == "empty");
    let source = Arc::new(made_up::MadeUp { many, empty, ..Default::default() });
    let listener = tokio::net::TcpListener::bind(address).await?;
    eprintln!("http://{}/", listener.local_addr()?);
    let sampler = Sampler::new(source, Duration::from_secs(1));
    let stop = async { std::future::pending().await };
    serve(listener, sampler, None, true, Limits::default(), stop).await;
    Ok(())
}
