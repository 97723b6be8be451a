//! Changes of a link's tree that hold for a time.

use std::time::Duration;

use onramp::dev::Null;
use onramp::{Credits, Device, Handle, Instant, Lease, Link, PortError};

const ROOT: Handle = Handle::new(1, 0);
/// A packet of 1,000 bytes takes a microsecond, or ten seconds.
const FAST: &[(&str, &str)] = &[("rate", "8gbit")];
const SLOW: &[(&str, &str)] = &[("rate", "800bit")];
const PACKETS: u64 = 300;

fn link(rate: &str) -> Link {
    let qdisc = format!("qdisc replace root handle 1: tbf rate {rate} burst 2000 limit 9mb");
    let device: Box<dyn Device> = Box::new(Null::default());
    let credits = Credits { packets: 1_000, bytes: 9_000_000 };
    let link = Link::devices([device]).credits(credits).manual().build().expect("a link");
    link.change(qdisc).expect("a line of tc");
    link
}

fn lend(link: &Link, end: Instant, now: &[(&str, &str)], after: &[(&str, &str)]) -> Lease {
    let begun = link.begin_lease(ROOT, now, end, after).expect("good values");
    let (lease, changing) = begun.expect("it is there");
    changing.wait().expect("the port makes it");
    lease
}

/// Sends packets, and runs the link until all have left or the rest have to wait for long. Returns
/// how many have left.
fn sent(link: &Link) -> u64 {
    let mut sender = link.sender();
    let flow = sender.flow(None);
    for _ in 0..PACKETS {
        sender.try_send(&flow, &[0; 1_000]).expect("it has room");
    }
    while let Some(next) = link.run()
        && next < link.now() + Duration::from_secs(1)
    {}
    link.stats().sent
}

/// Whatever rate was there before, the port has the first one until the end, and then the other.
#[test]
fn a_port_has_one_rate_until_the_end_and_then_the_other() {
    let hour = |link: &Link| link.now() + Duration::from_secs(3_600);
    for before in ["8gbit", "800bit"] {
        let fast = link(before);
        let lease = lend(&fast, hour(&fast), FAST, SLOW);
        assert_eq!(sent(&fast), PACKETS, "{before}");
        assert!(lease.renew(hour(&fast)));

        let slow = link(before);
        let lease = lend(&slow, slow.now(), FAST, SLOW);
        assert!(slow.setup().lines()[0].contains("rate 8gbit"), "{:?}", slow.setup().lines());
        assert!(sent(&slow) <= 2, "{before}: no more than the burst");
        assert!(!lease.renew(hour(&slow)), "it is over");
    }
}

#[test]
fn a_lease_that_no_port_holds_is_over() {
    let link = link("8gbit");
    let later = link.now() + Duration::from_secs(3_600);
    assert!(link.begin_lease(Handle::new(7, 0), FAST, later, SLOW).expect("none").is_none());
    for (now, after) in [(&[("rate", "fast")][..], SLOW), (FAST, &[("rate", "slow")])] {
        let before = link.setup().lines();
        let error = link.begin_lease(ROOT, now, later, after).expect_err("no rate");
        assert!(matches!(error, PortError::Config(_)), "{error}");
        assert_eq!(link.setup().lines(), before);
    }
    let lease = lend(&link, later, FAST, SLOW);
    drop(link);
    assert!(!lease.renew(later), "the port is gone");
}
