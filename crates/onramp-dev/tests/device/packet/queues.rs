//! Sockets that share the frames of an interface.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use onramp_dev::{PacketOptions, Receive};
use onramp_queue::PacketList;

use super::{OPTIONS, PAIR, open};
use crate::namespace::in_namespace;
use crate::tap::{heap, send, tcp};

/// A socket that joins a group while frames come gets none that another socket has got.
#[test]
fn who_joins_repeats_nothing() {
    in_namespace("packet::queues::who_joins_repeats_nothing", &PAIR, || {
        let mut device = open("v0", OPTIONS).0;
        let (first, mut one) = open("v1", PacketOptions { fanout: Some(7), ..OPTIONS });
        let end = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..u32::MAX {
                    let mut frame = tcp(false, 100, 0, 0);
                    frame.payload_mut()[100..104].copy_from_slice(&number.to_be_bytes());
                    send(&mut device, frame);
                    if end.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
            let mut twice = 0;
            for _ in 0..30 {
                let mut second = first.another_queue().expect("there is a group");
                let mut other = second.receiver().expect("nobody has taken it");
                let mut numbers = Vec::new();
                for receiver in [&mut other, &mut one] {
                    let mut list = PacketList::new();
                    while receiver.receive(64, &mut heap, &mut list).expect("it is up") == 64 {}
                    numbers.extend(list.map(|packet| packet.payload()[100..104].to_vec()));
                }
                let count = numbers.len();
                numbers.sort_unstable();
                numbers.dedup();
                twice += count - numbers.len();
            }
            end.store(true, Ordering::Relaxed);
            assert_eq!(twice, 0, "frames came twice");
        });
    });
}
