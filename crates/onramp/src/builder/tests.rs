//! Tests of the builder's defaults.

use std::time::Duration;

use onramp_core::show::{Out, Style};
use onramp_core::view::{Listed, Query};
use onramp_dev::Null;

use super::*;
use crate::PortError;

fn nulls(count: usize) -> LinkBuilder {
    Link::devices((0..count).map(|_| Box::new(Null::default()) as BoxDevice))
}

fn runners(builder: LinkBuilder) -> usize {
    builder.build().expect("a link").handle.shared.rig.runners.len()
}

#[test]
fn one_runner_is_enough_unless_runners_alone_send() {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    for ports in [1, 2, processors, processors + 3] {
        for mode in [Mode::Hybrid, Mode::Inline] {
            assert_eq!(runners(nulls(ports).mode(mode)), 1);
        }
        let expected = if ports < processors { ports } else { processors };
        assert_eq!(runners(nulls(ports).mode(Mode::Dedicated)), expected, "{ports} ports");
        assert_eq!(runners(nulls(ports).mode(Mode::Dedicated).runners(2)), 2);
    }
}

#[test]
fn a_link_may_come_to_have_twice_its_ports_and_at_least_sixty_four() {
    for (first, most) in [(1, 64), (32, 64), (33, 66), (64, 128)] {
        let link = nulls(first).build().expect("a link");
        for _ in first..most {
            link.add_port(Null::default()).expect("there is room");
        }
        let full = link.add_port(Null::default());
        assert!(matches!(full, Err(PortError::TooMany(max)) if max == most), "{full:?}");
    }
}

/// The description of a link's tree contains the number of the link's devices and the size of their
/// largest packet.
#[test]
fn a_tree_knows_the_devices_below() {
    let device = |mtu| Box::new(Null::new(mtu)) as BoxDevice;
    for (mtu, expected) in [(None, 3_000), (Some(700), 700)] {
        let mut builder = Link::devices([device(1_500), device(3_000), device(90)]);
        builder.mtu = mtu;
        let setup = builder.build().expect("a link").setup();
        let facts = setup.facts();
        assert_eq!((facts.queues, facts.mtu, facts.ports), (3, expected, true));
        assert_eq!(facts.fallback.as_ref().map(|spec| spec.kind().id), Some("fq"));
        assert_eq!(setup.device(), Some("link"));
    }
}

#[test]
fn sockets_are_as_their_options_say() {
    for mtu in [1_514, 9_014] {
        let builder = Link::udp("127.0.0.1:0").ports(2);
        let link = builder
            .udp_options(onramp_dev::UdpOptions { mtu, ..onramp_dev::UdpOptions::default() })
            .build();
        let link = link.expect("a link");
        assert_eq!(link.setup().facts().mtu, mtu);
        // By default, the quantum of fq is two packets of the greatest size (man tc-fq).
        let (setup, views) = (link.setup(), link.tree_views());
        let mut out = Out::new(Style::default());
        Listed::new(None, &setup, mtu, &views).qdiscs(Query::default(), &mut out);
        let shown = out.finish();
        assert!(shown.contains(&format!(" quantum {}b ", 2 * mtu)), "{shown}");
        assert_eq!(link.udp_stats().len(), 2);
    }
}

/// Because measuring sojourn times costs time, qdiscs measure only if the builder was told so.
#[test]
fn nothing_is_measured_unless_somebody_says_so() {
    for (measures, expected) in [(None, false), (Some(false), false), (Some(true), true)] {
        let builder = measures.map_or_else(|| nulls(2), |measures| nulls(2).measure(measures));
        let link = builder.build().expect("a link");
        let mut sender = link.sender();
        for port in 0..2 {
            let flow = sender.flow_with(None, crate::Mapping::Port(port));
            sender.send(&flow, b"x").expect("the link is open");
            assert!(sender.flush(Duration::from_secs(50)));
            let views = link.views(port).expect("it answers");
            let measured = views[0].sojourn_ns.as_ref().map(|counts| counts.iter().sum::<u64>());
            assert_eq!(measured, expected.then_some(1), "{measures:?}");
        }
    }
}

/// Links that are built with the same seed draw the same random numbers; links that are built
/// without a seed draw different ones.
#[test]
fn a_seed_is_the_links_own() {
    let seed = |builder: LinkBuilder| {
        let link = builder.build().expect("a link");
        link.handle.shared.plan().expect("no copy").seed(0)
    };
    assert_eq!(seed(nulls(1).seed(77)), 77);
    // By chance, two random seeds are equal, and this comparison fails, once in 2^64 runs.
    assert_ne!(seed(nulls(1)), seed(nulls(1)), "nobody knows it");
}

/// Returns the gaps in microseconds between the packets of 240 bytes of a flow at 2 Mbit/s, in
/// virtual time.
fn gaps_us(setup: &onramp_core::Setup) -> Vec<u64> {
    let mut tree = onramp_core::Tree::of(setup, 1_514, 1).expect("a root");
    let mut now = onramp_core::Instant(1_000_000_000);
    for _ in 0..100 {
        let mut pkt = onramp_queue::Packet::new(240);
        pkt.pacing_rate = 250_000;
        assert_eq!(tree.enqueue(now, pkt), onramp_core::qdisc::Verdict::Queued);
    }
    let mut times_us = Vec::new();
    loop {
        match tree.dequeue(now) {
            onramp_core::qdisc::Dequeue::Ready(_) => times_us.push(now.0 / 1_000),
            onramp_core::qdisc::Dequeue::NotBefore(then) => now = then,
            onramp_core::qdisc::Dequeue::Empty => break,
        }
    }
    times_us.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[test]
fn a_paced_flow_pauses_after_each_packet() {
    let device = || [Box::new(Null::default()) as BoxDevice];
    let link = Link::devices(device()).build().expect("a link");
    let gaps = gaps_us(&link.setup());
    // The timer of `fq` may be late by its slack of 10 us, which the next pause makes up for.
    assert!(gaps.iter().all(|gap| (950..=970).contains(gap)), "{gaps:?}");
    let mean = gaps.iter().sum::<u64>() / gaps.len() as u64;
    assert!((959..=961).contains(&mean), "{mean}");
    // With Linux's defaults, the flow sends a quantum at once.
    let linux = Link::devices(device()).qdisc("fq").build().expect("a link");
    let at_once = gaps_us(&linux.setup()).iter().filter(|gap| **gap == 0).count();
    assert!(at_once > 80, "{at_once}");
}
