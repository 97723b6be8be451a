//! `cake`: what stays when a change makes fewer tins, and then more again.

use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::Packet;

const NOW: Instant = Instant(20_000_000_000);

/// A tin that a change removes has its statistics when a later change makes it again, as in Linux
/// (in which all tins exist all the time).
#[test]
fn a_tin_that_comes_again_has_its_statistics() {
    let mut setup = Setup::default();
    setup.apply("qdisc add dev e root handle 1: cake diffserv4").expect("a cake");
    let mut tree = Tree::of(&setup, 1_514, 7).expect("a root");
    // As many packets of each tin as its number says. The priorities choose the tins.
    for tin in 0..4_u32 {
        for _ in 0..=tin {
            let mut pkt = Packet::new(1_000);
            (pkt.enqueued_ns, pkt.priority) = (NOW.0, 0x1_0000 | (tin + 1));
            let _ = tree.enqueue(NOW, pkt);
        }
    }
    while let Dequeue::Ready(_) = tree.dequeue(NOW) {}
    let packets = |tree: &Tree| {
        let mut packets = Vec::new();
        tree.stats(&mut |name, number| {
            if name.starts_with("tin") && name.ends_with("_pkts") {
                packets.push(number);
            }
        });
        packets
    };
    assert_eq!(packets(&tree), [1, 2, 3, 4]);
    // The only tin of `besteffort` is that of best effort, the second one of `diffserv4`.
    for (mode, told) in [("besteffort", &[2][..]), ("diffserv4", &[1, 2, 3, 4])] {
        let line = format!("qdisc change dev e root handle 1: cake {mode}");
        tree.apply(NOW, &line).expect(mode);
        assert_eq!(packets(&tree), told, "{mode}");
    }
}
