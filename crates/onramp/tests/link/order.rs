//! Packets of one flow arrive in the order in which they were sent, whatever else happens.

use std::collections::HashMap;

use onramp::dev::loopback;
use onramp::{Link, Packet};

use crate::common::{LONG, balanced, credits, in_time};

/// Returns the payload of a packet: the number of the packet in its flow.
fn payload(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

fn number(received: &Packet) -> u32 {
    u32::from_be_bytes(received.payload().try_into().unwrap())
}

fn arrive_in_order(qdisc: &'static str, burst: u16) {
    const THREADS: u64 = 12;
    const PACKETS: u32 = 1_500;
    let (devices, receivers): (Vec<_>, Vec<_>) = (0..3).map(|_| loopback(64)).unzip();
    let devices = devices.into_iter().map(|device| Box::new(device) as Box<_>);
    let builder = Link::devices(devices).qdisc(qdisc).burst(burst).credits(credits(40));
    let link = builder.build().unwrap();
    std::thread::scope(|scope| {
        for seed in 0..THREADS {
            let mut sender = link.sender();
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                let flow = sender.flow(None);
                let mut next = 0;
                while next < PACKETS {
                    let end = (next + rng.u32(1..60)).min(PACKETS);
                    let payloads: Vec<_> = (next..end).map(payload).collect();
                    match rng.u32(0..3) {
                        0 => payloads.iter().for_each(|p| sender.send(&flow, p).unwrap()),
                        1 => sender.send_batch(&flow, &payloads).unwrap(),
                        _ => {
                            sender.cork();
                            payloads.iter().for_each(|p| sender.send(&flow, p).unwrap());
                            while sender.uncork().is_err() {
                                sender.wait_room(&flow, 4);
                            }
                        }
                    }
                    next = end;
                }
                assert!(sender.flush(LONG));
            });
        }
        for mut receiver in receivers {
            scope.spawn(move || {
                let mut next: HashMap<u64, u32> = HashMap::new();
                for _ in 0..THREADS / 3 * u64::from(PACKETS) {
                    let received = receiver.recv_timeout(LONG).expect("all arrive");
                    let expected = next.entry(received.flow).or_default();
                    assert_eq!(number(&received), *expected, "flow {}", received.flow);
                    *expected += 1;
                }
            });
        }
    });
    // A packet may have been read before the owner of the port, which gave it to the device, has
    // counted it.
    assert!(link.flush(LONG));
    assert_eq!(link.stats().sent, THREADS * u64::from(PACKETS));
    balanced(&link.stats());
}

#[test]
fn through_pfifo() {
    in_time(|| arrive_in_order("pfifo limit 1mb", 1_000));
}

#[test]
fn through_fq() {
    in_time(|| arrive_in_order("fq", 1_000));
}

#[test]
fn through_fq_with_a_small_intake() {
    in_time(|| arrive_in_order("fq", 5));
}

#[test]
fn through_paced_fq() {
    in_time(|| arrive_in_order("fq maxrate 20mbit", 1_000));
}
