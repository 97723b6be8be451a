//! A link over the in-memory network: the link has several queues; receivers read, are slow, or are
//! dropped.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;

use onramp::dev::{Network, Receiver};
use onramp::{DropReason, Flow, Link, Sender};

use crate::common::{LONG, balanced, credits, in_time};

const QUEUES: usize = 4;
const PLACES: u16 = 3;
const SENDERS: usize = 8;
const PACKETS: u32 = 900;

fn flows(sender: &Sender) -> Vec<Flow> {
    let flow = |place| sender.flow(SocketAddr::from((Ipv4Addr::LOCALHOST, PLACES + place)));
    (0..PLACES).map(flow).collect()
}

/// Sends to every receiver in turn, and waits until all packets were read or refused.
fn send(sender: &mut Sender) {
    let flows = flows(sender);
    for number in 0..PACKETS {
        let flow = &flows[number as usize % flows.len()];
        sender.send(flow, &number.to_be_bytes()).unwrap();
        sender.give_way();
    }
    assert!(sender.flush(LONG));
}

/// Receives packets until all senders are gone, or until `most` packets have come. Checks that the
/// packets of each flow come in order.
fn receive(mut receiver: Receiver, place: u16, most: u64) -> u64 {
    let (mut last, mut count) = (HashMap::new(), 0);
    while count < most {
        let Some(pkt) = receiver.recv_timeout(LONG) else { break };
        let number = u32::from_be_bytes(pkt.payload().try_into().unwrap());
        assert_eq!(number % u32::from(PLACES), place.into(), "it came to the right place");
        let before = last.insert(pkt.flow, number);
        assert!(before.is_none_or(|before| before < number), "{before:?}, then {number}");
        count += 1;
    }
    count
}

/// Sends over an in-memory network whose last receiver is dropped after it has received `most`
/// packets.
fn over_a_network(qdisc: &'static str, most: u64) {
    in_time(move || {
        let network = Network::new(PLACES.into(), 40);
        let devices = (0..QUEUES).map(|_| Box::new(network.queue()) as Box<_>);
        let link = Link::devices(devices).qdisc(qdisc).credits(credits(30)).build().unwrap();
        let stats: Vec<_> =
            (0..PLACES).map(|place| network.receiver_stats(place.into()).unwrap()).collect();
        thread::scope(|scope| {
            let receivers: Vec<_> = (0..PLACES)
                .map(|place| {
                    let receiver = network.receiver(place.into()).unwrap();
                    let most = if place == PLACES - 1 { most } else { u64::MAX };
                    scope.spawn(move || receive(receiver, place, most))
                })
                .collect();
            drop(network);
            thread::scope(|scope| {
                for _ in 0..SENDERS {
                    let mut sender = link.sender();
                    scope.spawn(move || send(&mut sender));
                }
            });
            // A packet may have been received before the owner of its port has counted it.
            assert!(link.flush(LONG));
            let sums = link.stats();
            balanced(&sums);
            assert_eq!(sums.submitted, SENDERS as u64 * u64::from(PACKETS));
            assert_eq!(sums.ports.len(), QUEUES);
            assert!(sums.ports.iter().all(|port| port.sent > 0), "flows are on all queues");
            drop(link);
            let received: u64 = receivers.into_iter().map(|r| r.join().unwrap()).sum();
            let abandoned: u64 = stats.iter().map(|stats| stats.abandoned()).sum();
            assert_eq!(sums.sent, received + abandoned);
            let refused = sums.dropped.get(&DropReason::Refused).copied().unwrap_or(0);
            assert_eq!((sums.dropped_total(), refused > 0), (refused, most < u64::MAX));
        });
    });
}

#[test]
fn several_queues_reach_several_receivers() {
    over_a_network("pfifo limit 1mb", u64::MAX);
}

#[test]
fn several_queues_reach_several_receivers_through_fq() {
    over_a_network("fq", u64::MAX);
}

#[test]
fn a_receiver_that_goes_is_no_reason_to_wait() {
    over_a_network("fq", 500);
}
