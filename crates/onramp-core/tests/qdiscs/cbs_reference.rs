//! Compares `cbs` with direct arithmetic on credits.

use onramp_core::Spec;
use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::Packet;
use proptest::prelude::*;

const MTU: u32 = 1514;
const START: Instant = Instant(5_000_000_000);
/// Options with which `cbs` earns one byte of credit in 1,000 ns, and loses one byte of credit for
/// every five bytes that it sends.
const LINE: &str = "cbs idleslope 8000 sendslope -2000 hicredit 300 locredit -250";

fn tree(line: &str) -> Tree {
    Tree::new(&line.parse().expect("a correct line"), MTU)
}

fn wait(answer: &Dequeue) -> u64 {
    match answer {
        Dequeue::NotBefore(then) => then.since(START),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_lost_has_to_be_earned_back() {
    let mut tree = tree(LINE);
    for _ in 0..3 {
        let _ = tree.enqueue(START, Packet::new(1000));
    }
    assert!(matches!(tree.dequeue(START), Dequeue::Ready(_)));
    // 1,000 bytes take 800 us at 10 Mbit/s, and cost 200 credits.
    assert_eq!(wait(&tree.dequeue(START)), 800_000);
    assert_eq!(wait(&tree.dequeue(START.after(800_000))), 1_000_000);
    // 100 us after the link has sent the packet, half of the credits that the packet cost are
    // earned again.
    assert_eq!(wait(&tree.dequeue(START.after(900_000))), 1_000_000);
    // If `cbs` is dequeued 50 us late, it has 50 credits left for the next packet.
    assert!(matches!(tree.dequeue(START.after(1_050_000)), Dequeue::Ready(_)));
    assert_eq!(wait(&tree.dequeue(START.after(1_850_000))), 2_000_000);
}

/// A change that leaves both slopes at zero makes no packet wait for credits that never come.
#[test]
fn a_change_without_slopes_stops_nothing() {
    let mut setup = Setup::default();
    setup.apply(&format!("qdisc add dev e root handle 1: {LINE}")).expect(LINE);
    let mut tree = Tree::of(&setup, MTU, 0).expect("a root");
    for _ in 0..2 {
        let _ = tree.enqueue(START, Packet::new(1000));
    }
    // 200 credits are missing now.
    assert!(matches!(tree.dequeue(START), Dequeue::Ready(_)));
    tree.apply(START, "qdisc change dev e root cbs port_rate 100mbit").expect("a line");
    assert!(matches!(tree.dequeue(START.after(1_000_000_000)), Dequeue::Ready(_)));
}

#[test]
fn credits_stay_between_their_limits() {
    let mut tree = tree(LINE);
    let _ = tree.enqueue(START, Packet::new(1500));
    let _ = tree.enqueue(START, Packet::new(1500));
    let _ = tree.enqueue(START, Packet::new(1500));
    assert!(matches!(tree.dequeue(START), Dequeue::Ready(_)));
    // Without the lower limit of -250, the credits would be -300.
    assert_eq!(wait(&tree.dequeue(START.after(1_200_000))), 1_450_000);
    // Without the upper limit of 300, the credits would be more than 550. With the limit, they are
    // 0 after the next packet.
    assert!(matches!(tree.dequeue(START.after(2_000_000)), Dequeue::Ready(_)));
    assert!(matches!(tree.dequeue(START.after(3_200_000)), Dequeue::Ready(_)));
}

/// Credits are rounded down whenever they are counted. As in Linux, a caller that always dequeues
/// at the announced time finds that the last credit is still missing, and a caller that is a
/// nanosecond late finds that credit.
#[test]
fn the_last_credit_may_come_late() {
    let line = "cbs idleslope 3000 sendslope -7000 hicredit 459 locredit -1071";
    let mut tree = tree(line);
    let _ = tree.enqueue(START, Packet::new(200));
    let _ = tree.enqueue(START, Packet::new(200));
    assert!(matches!(tree.dequeue(START), Dequeue::Ready(_)));
    let mut then = START.after(160_000);
    // 140 credits are missing, and each takes 2,666.7 ns.
    let wakes = [533_333, 535_999, 538_665, 541_331];
    for wake in wakes {
        assert_eq!(wait(&tree.dequeue(then)), wake);
        then = START.after(wake);
    }
    assert!(matches!(tree.dequeue(then.after(1)), Dequeue::Ready(_)));
}

#[test]
fn errors_name_what_is_wrong() {
    for (line, key, word) in [
        ("cbs sendslope -7000", "idleslope", "missing"),
        ("cbs idleslope -3000", "idleslope", "0 to 2147483647"),
        ("cbs offload 1", "offload", "0 to 0"),
    ] {
        let error = line.parse::<Spec>().expect_err(line);
        assert_eq!(error.key, key, "{line}: {error}");
        assert!(error.to_string().contains(word), "{line}: {error}");
    }
    let spec: Spec = "cbs locredit -1071 sendslope 0x10".parse().expect("a correct line");
    assert_eq!(spec.to_string(), "cbs locredit -1071 sendslope 16");
}

proptest! {
    /// `cbs` sends packets one after another. It sends at most as fast as the link, and in the long
    /// run at the idle slope, which is 8/10 of the link's rate here.
    #[test]
    fn the_share_is_kept(
        lens in prop::collection::vec((60_u32..1250, 0_u64..2_000), 2..100),
    ) {
        let mut tree = tree("cbs idleslope 8000 sendslope -2000 hicredit 300 locredit -300");
        let (mut now, mut sent) = (START, Vec::new());
        for (len, pause_us) in lens {
            let _ = tree.enqueue(now, Packet::new(len));
            let end = now.after(pause_us * 1_000);
            while let Dequeue::NotBefore(then) = {
                let answer = tree.dequeue(now);
                if let Dequeue::Ready(pkt) = &answer {
                    sent.push((now, u64::from(pkt.len)));
                }
                match answer {
                    Dequeue::Ready(_) => Dequeue::NotBefore(now),
                    answer => answer,
                }
            } && then <= end
            {
                now = then;
            }
            now = end;
        }
        for pair in sent.windows(2) {
            prop_assert!(pair[1].0.since(pair[0].0) >= pair[0].1 * 800);
        }
        for from in 0..sent.len() {
            let mut bytes = 0;
            for (then, len) in &sent[from..] {
                // `cbs` may send more than its share by the credits it has saved, and by the last
                // packet.
                let share = then.since(sent[from].0) / 1_000;
                prop_assert!(bytes <= share + 300 * 5 + 1, "{bytes} bytes of {share}");
                bytes += len;
            }
        }
    }
}

/// When there are enough credits again, `cbs` calls dequeue on its child even if the child is
/// empty. The call shows in `fq_codel`: it removes an empty flow from its list only when dequeue is
/// called.
#[test]
fn a_child_without_packets_is_asked_when_there_are_credits() {
    // At 10 Mbit/s, 1,000 bytes take 800 us. They cost 900 credits, which are earned in 7,200 us.
    let lines = [
        "qdisc add dev d root handle 1: cbs idleslope 1000 sendslope -9000 hicredit 9999 \
         locredit -9999",
        "qdisc add dev d parent 1:1 handle 2: fq_codel",
    ];
    for (later, known) in [(7_999_999, 2), (8_000_000, 1)] {
        let mut setup = Setup::default();
        lines.iter().for_each(|line| setup.apply(line).expect(line));
        let mut tree = Tree::of(&setup, MTU, 1).expect("a root");
        let packet = |flow| {
            let mut pkt = Packet::new(1000);
            pkt.flow = flow;
            pkt
        };
        let _ = tree.enqueue(START, packet(1));
        assert!(matches!(tree.dequeue(START), Dequeue::Ready(_)));
        assert!(matches!(tree.dequeue(START.after(800_000)), Dequeue::Empty));
        let _ = tree.enqueue(START.after(later), packet(2));
        assert_eq!(tree.views()[1].classes.len(), known, "after {later} ns");
    }
}
