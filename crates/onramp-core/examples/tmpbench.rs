use onramp_core::{Instant, Setup, Tree, qdisc::Dequeue};
use onramp_queue::{Packet, PacketList};
fn bench(name: &str, lines: &[String], prio: impl Fn(u32) -> u32) {
    let mut setup = Setup::default();
    for line in lines {
        setup.apply(line).unwrap();
    }
    let mut tree = Tree::of(&setup, 1514, 1).unwrap();
    for i in 0..4096u32 {
        let mut p = Packet::new(100);
        p.flow = i.into();
        p.priority = prio(i);
        let _ = tree.enqueue(Instant(1), p);
    }
    let mut best = f64::MAX;
    let mut now = 1_000_000u64;
    for _ in 0..9 {
        let t = std::time::Instant::now();
        let rounds = 20_000u32;
        for _ in 0..rounds {
            now += 1_000_000;
            let mut out = PacketList::new();
            tree.dequeue_list(Instant(now), 32, &mut out);
            let _ = tree.enqueue_list(Instant(now), out);
            drop(tree.drops());
        }
        best = best.min(t.elapsed().as_nanos() as f64 / f64::from(rounds * 32));
    }
    println!("{name}: {best:.2} ns  held {}", tree.backlog().packets);
    let _ = Dequeue::Empty;
}
fn main() {
    let s = |l: &[&str]| l.iter().map(|l| (*l).to_string()).collect::<Vec<_>>();
    bench("pfifo", &s(&["qdisc add dev x root handle 1: pfifo limit 10000"]), |_| 0);
    bench(
        "prio+pfifo",
        &s(&[
            "qdisc add dev x root handle 1: prio",
            "qdisc add dev x parent 1:1 handle 2: pfifo limit 10000",
        ]),
        |_| 0x1_0001,
    );
    bench(
        "prio*2+pfifo",
        &s(&[
            "qdisc add dev x root handle 1: prio",
            "qdisc add dev x parent 1:1 handle 2: prio priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0",
            "qdisc add dev x parent 2:1 handle 3: pfifo limit 10000",
        ]),
        |_| 0x1_0001,
    );
    bench(
        "prio*3+pfifo",
        &s(&[
            "qdisc add dev x root handle 1: prio",
            "qdisc add dev x parent 1:1 handle 2: prio priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0",
            "qdisc add dev x parent 2:1 handle 3: prio priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0",
            "qdisc add dev x parent 3:1 handle 4: pfifo limit 10000",
        ]),
        |_| 0x1_0001,
    );
    for n in [16u32, 1024] {
        let mut l = s(&["qdisc add dev x root handle 1: drr"]);
        for c in 1..=n {
            l.push(format!("class add dev x parent 1: classid 1:{c:x} drr"));
            l.push(format!("qdisc add dev x parent 1:{c:x} pfifo limit 10000"));
        }
        bench(&format!("drr {n}"), &l, move |i| 0x1_0001 + i % n);
    }
    bench("fq", &s(&["qdisc add dev x root handle 1: fq"]), |_| 0);
}
