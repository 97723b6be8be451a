//! Many threads send through one UDP link: `cargo run --release -p onramp --example udp_fan_in`.

use std::net::UdpSocket;
use std::thread;
use std::time::Duration;

use onramp::Link;

const THREADS: usize = 64;
const DATAGRAMS: u32 = 2_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The destinations of the packets: sockets from which nobody reads, so the kernel drops
    // datagrams for which they have no room.
    let sinks =
        (0..THREADS).map(|_| UdpSocket::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;

    let link = Link::udp("0.0.0.0:0").qdisc("fq").build()?;
    thread::scope(|scope| {
        for sink in &sinks {
            let mut sender = link.sender(); // Each thread needs a sender of its own.
            let to = sink.local_addr().expect("it is bound");
            scope.spawn(move || {
                let flow = sender.flow(to);
                for number in 0..DATAGRAMS {
                    // Blocks while the link has no room for a packet of this thread, which is
                    // faster than the link.
                    sender.send(&flow, &number.to_be_bytes()).expect("the link is open");
                }
            });
        }
    });
    let report = link.close(Duration::from_secs(5));

    let stats = link.stats();
    println!(
        "{THREADS} threads submitted {} datagrams through {} ports",
        stats.submitted,
        link.ports()
    );
    println!("{} sent, {} dropped, {report:?}", stats.sent, stats.dropped_total());
    for (port, udp) in link.udp_stats().iter().enumerate() {
        let (messages, calls) = (udp.messages.get(), udp.calls.get());
        println!(
            "port {port}: {} datagrams in {messages} messages, {calls} system calls",
            udp.segments.get()
        );
    }
    Ok(())
}
