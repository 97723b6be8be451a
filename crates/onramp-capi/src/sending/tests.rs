//! Messages without a flow have one for each way that they go.

use onramp::dev::Null;

use super::*;

/// Makes a sender of a link over a device that sends nothing.
fn sending() -> Sending {
    let builder = Link::devices([Box::new(Null::default()) as Box<_>]).manual();
    let link = builder.build().expect("a link");
    let around = Around { link, id: 1, addressed: true, hasher: RandomState::new() };
    Sending::new(around, true)
}

/// The number of a source is looked up once for messages in a row.
#[test]
fn the_last_source_is_kept() {
    let mut sending = sending();
    let from = |last: u8| Local::new(IpAddr::from([127, 9, 9, last]), 0).expect("an address");
    let dest = |port| Some(SocketAddr::from(([127, 0, 0, 1], port)));
    let one = sending.source(from(1), dest(1)).expect("there are numbers");
    let other = sending.source(from(2), dest(2)).expect("there are numbers");
    assert_ne!(one, other);
    assert_eq!(sending.last_source, Some((from(2), other)));
    assert_eq!(sending.source(from(2), dest(3)).expect("it has one"), other);
    assert_eq!(sending.source(from(1), dest(1)).expect("it has one"), one);
}

/// Messages to one destination from two sources are two flows, as in the kernel, and messages of
/// one way are one.
#[test]
fn a_way_is_a_flow() {
    let mut sending = sending();
    let dest = Some(SocketAddr::from(([127, 0, 0, 1], 1)));
    let from = |last: u8| Local::new(IpAddr::from([127, 9, 9, last]), 0);
    let keys = [None, from(1), from(2), from(1), None];
    let keys = keys.map(|from| sending.flow_of(Way { dest, from }).expect("it is right").key());
    assert_eq!((keys[0], keys[1]), (keys[4], keys[3]));
    assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2]);
}
