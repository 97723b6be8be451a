//! Tests: what a processor prefetches while it works for a port costs it little, although another
//! processor has the memory.

use onramp_core::qdisc::{Cx, Dequeue, Qdisc};
use onramp_core::{Instant, Kinds};
use onramp_machine::{Setup, hook, simulate, thread};
use onramp_queue::{Credits, Intake, Packet, PacketList, Pool, Pushed};

use crate::charged::charged;
use crate::{Description, Draw};

/// Runs `first`, and then `second` on a processor of the other socket. Returns how long `second`
/// takes, nanoseconds, without dropping what it returns.
fn on_two_sockets<T: Send + 'static, U>(
    first: impl FnOnce() -> T + Send + 'static,
    second: impl FnOnce(T) -> U + Send + 'static,
) -> u64 {
    let machine = Description::named("xeon-6985p").unwrap().draw(&mut Draw::new(0));
    let far = machine.topology.processors() / 4;
    let setup = Setup { machine, limit_ns: 1_000_000_000, measure_ns: 0..0 };
    let (ns, _) = simulate(&setup, move || {
        let value = thread::Builder::new().on(0).spawn(first).unwrap().join().unwrap();
        let timed = move || {
            let began = hook::time_ps().unwrap();
            let left = second(value);
            let took = (hook::time_ps().unwrap() - began) / 1_000;
            drop(left);
            took
        };
        thread::Builder::new().on(far).spawn(timed).unwrap().join().unwrap()
    })
    .unwrap();
    ns
}

/// Pushes 64 packets of one sender, submitted or not, and returns how long another processor puts
/// them in order.
fn walk(is_submitted: bool) -> u64 {
    let push = move || {
        let intake = Intake::new((), 1_000, 1_000);
        let Some(owner) = intake.own() else { unreachable!("the intake is new") };
        owner.leave_busy();
        let mut pool = Pool::new(Credits { packets: 64, bytes: 64 });
        for _ in 0..64 {
            let mut list = PacketList::from_iter([pool.take(1).expect("it has room")]);
            if is_submitted {
                pool.submit(&mut list, 0);
            }
            let pushed = intake.push(list).expect("it has room");
            assert!(matches!(pushed, Pushed::Staged { .. }));
        }
        (pool, intake)
    };
    on_two_sockets(push, |(pool, intake)| {
        let mut owner = intake.own().expect("the other thread has ended");
        let taken = owner.take();
        assert_eq!(taken.len(), 64);
        owner.leave_busy();
        (taken, intake, pool)
    })
}

#[test]
fn an_owner_prefetches_a_senders_earlier_packets() {
    let (plain, hinted) = (walk(false), walk(true));
    assert!(hinted < plain / 2, "{hinted} ns of {plain}");
}

/// Enqueues 256 packets of so many flows into a qdisc, and returns how long another processor
/// dequeues 64 of them, nanoseconds.
fn dequeue(kinds: &Kinds, line: &str, flows: u64, bytes: u32, prefetches: bool) -> u64 {
    let spec = kinds.spec(line).expect("a known kind");
    let fill = move || {
        let (mut qdisc, mut drops) = (spec.build(1_514), PacketList::new());
        let mut cx = Cx::new(Instant(0), &mut drops);
        let packets = 256;
        for number in 0..packets {
            let mut packet = Packet::new(bytes);
            packet.flow = number % flows;
            let _ = qdisc.enqueue(packet, &mut cx);
        }
        assert_eq!(u64::from(qdisc.backlog().packets), packets);
        qdisc
    };
    on_two_sockets(fill, move |mut qdisc: Box<dyn Qdisc>| {
        let (mut burst, mut drops) = (PacketList::new(), PacketList::new());
        if prefetches {
            qdisc.prefetch_next(64);
        }
        let mut cx = Cx::new(Instant(0), &mut drops);
        while burst.len() < 64 {
            let Dequeue::Ready(packet) = qdisc.dequeue(&mut cx) else { unreachable!("no rate") };
            burst.push_back(packet);
        }
        (burst, qdisc)
    })
}

#[test]
fn qdiscs_prefetch_the_packets_of_several_flows() {
    for (flows, bytes) in [(8, 120), (64, 1_500)] {
        for line in ["fq", "fq_codel", "fq_pie", "charged-fq"] {
            let kinds = match line {
                "charged-fq" => Kinds::new(charged("fq")).expect("a new name"),
                _ => Kinds::default(),
            };
            let [plain, prefetched] =
                [false, true].map(|prefetches| dequeue(&kinds, line, flows, bytes, prefetches));
            let case = format!("{line}, {flows} flows: {prefetched} ns of {plain}");
            assert!(prefetched < plain * 2 / 3, "{case}");
        }
    }
}
