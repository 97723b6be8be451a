//! A qdisc inside the program's own loop: the qdisc has no threads, no sockets and no clock, and
//! its packets carry the program's buffers. Run: `cargo run --release -p onramp --example
//! embedded_qdisc`.

use onramp::Spec;
use onramp::qdisc::Dequeue;
use onramp::{Credits, Instant, Pool, Tree, TreeOf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let spec: Spec = "fq maxrate 10mbit flow_limit 8 quantum 2500 initial_quantum 2500".parse()?;
    let mut tree = TreeOf::new(Tree::new(&spec, 1514));

    // The packets come from a pool, so nothing is allocated once the pool has been filled. Each
    // carries a buffer of the program through the qdisc.
    let mut pool = Pool::new(Credits { packets: 1_000, bytes: 0 });

    let mut now = Instant(1_000_000_000);
    for number in 0..20_u8 {
        let frame = vec![number; 1_250];
        let mut packet = pool.take(0).expect("fewer than a thousand are out");
        packet.flow = u64::from(number) % 2;
        packet.len = u32::try_from(frame.len())?;
        let _ = tree.enqueue(now, packet, frame); // The loop below prints dropped frames.
    }
    for (packet, frame) in tree.drops() {
        let reason = packet.drop_reason.map_or("", |reason| reason.name());
        println!("frame {:2} dropped: {reason}", frame[0]);
    }

    loop {
        match tree.dequeue(now) {
            Dequeue::Ready((_packet, frame)) => {
                let at_us = (now.0 - 1_000_000_000) / 1_000;
                println!("{at_us:5} us: frame {:2}, {} bytes", frame[0], frame.len());
            }
            // The qdisc can send the next packet at the time `then`. A real program would poll its
            // sockets until then; this example only sets its clock forward.
            Dequeue::NotBefore(then) => now = then,
            Dequeue::Empty => break,
        }
    }
    pool.reclaim(|_| ());
    println!("{} packets out, {} left in the qdisc", pool.out(), tree.tree().backlog().packets);
    Ok(())
}
