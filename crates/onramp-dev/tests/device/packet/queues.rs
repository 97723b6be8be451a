//! Sockets that share the frames of an interface.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use onramp_core::{Device, Instant};
use onramp_dev::{PacketOptions, Receive};
use onramp_queue::PacketList;

use super::{OPTIONS, PAIR, open};
use crate::namespace::in_namespace;
use crate::tap::{heap, tcp};

/// A socket that joins a group while frames come gets none that another socket has got.
#[test]
fn who_joins_repeats_nothing() {
    in_namespace("packet::queues::who_joins_repeats_nothing", &PAIR, || {
        let mut device = open("v0", OPTIONS).0;
        let (first, mut one) =
            open("v1", PacketOptions { fanout: Some(7), buffer: 64 << 20, ..OPTIONS });
        let end = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut number = 0_u32;
                while !end.load(Ordering::Relaxed) {
                    // Many at a time, so that some come in the moment of the joining.
                    let frames = (0..64).map(|_| {
                        let mut frame = tcp(false, 100, 0, 0);
                        frame.payload_mut()[100..104].copy_from_slice(&number.to_be_bytes());
                        number += 1;
                        frame
                    });
                    let mut burst = frames.collect();
                    device.transmit(&mut burst, &mut PacketList::new(), Instant(1));
                }
            });
            let mut twice = 0;
            for _ in 0..100 {
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
