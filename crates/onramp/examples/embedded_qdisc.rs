//! A qdisc inside the program's own loop: the qdisc has no threads, no sockets and no clock, and
//! the program keeps the buffers of its packets. Run: `cargo run --release -p onramp --example
//! embedded_qdisc`.

use onramp::Spec;
use onramp::qdisc::Dequeue;
use onramp::{Credits, Instant, Pool, Tree};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let spec: Spec = "fq maxrate 10mbit flow_limit 8 quantum 2500 initial_quantum 2500".parse()?;
    let mut tree = Tree::new(&spec, 1514);

    // The program's buffers. A packet of the qdisc carries, as its cookie, only the number of its
    // buffer. The packets come from a pool, so nothing is allocated once the pool has been filled.
    let frames: Vec<Vec<u8>> = (0..20_u8).map(|n| vec![n; 1_250]).collect();
    let mut pool = Pool::new(Credits { packets: 1_000, bytes: 0 });

    let mut now = Instant(1_000_000_000);
    for (number, frame) in frames.iter().enumerate() {
        let mut packet = pool.take(0).expect("fewer than a thousand are out");
        packet.flow = number as u64 % 2;
        packet.len = u32::try_from(frame.len())?;
        packet.cookie = number as u64;
        let _ = tree.enqueue(now, packet); // The loop below prints dropped packets.
    }
    for packet in tree.drops() {
        let reason = packet.drop_reason.map_or("", |reason| reason.name());
        println!("frame {:2} dropped: {reason}", packet.cookie);
    }

    loop {
        match tree.dequeue(now) {
            Dequeue::Ready(packet) => {
                let frame = &frames[usize::try_from(packet.cookie)?];
                let at_us = (now.0 - 1_000_000_000) / 1_000;
                println!("{at_us:5} us: frame {:2}, {} bytes", packet.cookie, frame.len());
            }
            // The qdisc can send the next packet at the time `then`. A real program would poll its
            // sockets until then; this example only sets its clock forward.
            Dequeue::NotBefore(then) => now = then,
            Dequeue::Empty => break,
        }
    }
    pool.reclaim(|_| ());
    println!("{} packets out, {} left in the qdisc", pool.out(), tree.backlog().packets);
    Ok(())
}
