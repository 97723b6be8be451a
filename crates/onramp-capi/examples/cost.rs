//! What a packet costs in a tree, from Rust: batches of 64 packets go in and come out, once with
//! packets of the heap and once with packets of a pool, which are used again. The example `cost.c`
//! does the same from C, and says how to compare the two.

use onramp::dev::MonotonicClock;
use onramp::{Clock as _, Credits, Instant, Packet, PacketList, Pool, Setup, Tree};

const BATCH: u32 = 64;
const BATCHES: u32 = 20_000;
const ROUNDS: usize = 9;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for qdisc in ["fq", "pfifo"] {
        measure(qdisc, "heap", || Packet::new(1_000))?;
        let mut pool = Pool::new(Credits { packets: 2 * BATCH, bytes: u32::MAX });
        let mut take = || {
            let mut packet = pool.take(0).or_else(|| {
                pool.reclaim(|_| ());
                pool.take(0)
            })?;
            packet.len = 1_000;
            Some(packet)
        };
        measure(qdisc, "pool", || take().unwrap_or_else(|| Packet::new(1_000)))?;
    }
    Ok(())
}

fn measure(
    qdisc: &str,
    from: &str,
    mut make: impl FnMut() -> Packet,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut setup = Setup::default();
    setup.apply(&format!("qdisc add dev tree root {qdisc}"))?;
    let mut tree = Tree::of(&setup, 1_514, 1).ok_or("the tree has a root")?;
    let (mut now, mut cookies) = (Instant(1), 0);
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let began = MonotonicClock.now();
        for _ in 0..BATCHES {
            let made = (0..u64::from(BATCH)).map(|cookie| {
                let mut packet = make();
                (packet.cookie, packet.flow) = (cookie, cookie % 16);
                packet
            });
            let list: PacketList = made.collect();
            now = now.after(64_000);
            let dropped = tree.enqueue_list(now, list);
            let mut out = PacketList::new();
            let _ = tree.dequeue_list(now, BATCH, &mut out);
            if (dropped, out.len()) != (0, BATCH) {
                return Err("a packet is missing".into());
            }
            cookies += out.metas().map(|meta| meta.cookie).sum::<u64>();
        }
        let spent_ns = MonotonicClock.now().since(began);
        rounds.push(spent_ns as f64 / f64::from(BATCHES * BATCH));
    }
    rounds.sort_by(f64::total_cmp);
    let (median, least, most) = (rounds[ROUNDS / 2], rounds[0], rounds[ROUNDS - 1]);
    println!(
        "Rust, {qdisc}, {from}: {median:.1} ns a packet ({least:.1} to {most:.1}), cookies \
         {cookies}"
    );
    Ok(())
}
