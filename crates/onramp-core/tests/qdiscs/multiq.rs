//! `multiq`: which band takes a packet.

use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::Packet;

const NOW: Instant = Instant(20_000_000_000);

/// Returns the number of the band that takes a packet of this flow, counted from 1.
fn band(filter: &str, flow: u64) -> u16 {
    let mut setup = Setup::default();
    let root = "qdisc add dev e root handle 1: multiq bands 4";
    [root, filter].iter().filter(|line| !line.is_empty()).for_each(|line| {
        setup.apply(line).expect(line);
    });
    let mut tree = Tree::of(&setup, 1_514, 7).expect("a root");
    let mut pkt = Packet::new(100);
    pkt.flow = flow;
    let _ = tree.enqueue(NOW, pkt);
    let views = tree.views();
    let mut classes = views[0].classes.iter();
    let minor = classes.find(|class| class.backlog.packets == 1).expect("a band").handle.minor;
    assert!(matches!(tree.dequeue(NOW), Dequeue::Ready(_)));
    minor
}

#[test]
fn a_filter_names_the_band_by_its_class() {
    for (class, minor) in [("1:1", 1), ("1:3", 3), ("1:4", 4), ("1:5", 1), ("2:3", 1)] {
        let filter = format!("filter add dev e parent 1: matchall classid {class}");
        for flow in 0..20 {
            assert_eq!(band(&filter, flow), minor, "{class}");
        }
    }
}

/// Without a filter, the flow's key selects the band: a flow always goes to the same band, and each
/// band gets about the same number of flows.
#[test]
fn flows_are_spread() {
    let mut count = [0_u32; 4];
    for flow in 0..400 {
        let minor = band("", flow);
        assert_eq!(band("", flow), minor);
        count[usize::from(minor) - 1] += 1;
    }
    // Each band should get 100 flows. The tolerance of 43 is five standard deviations.
    assert!(count.iter().all(|count| (57..=143).contains(count)), "{count:?}");
}
