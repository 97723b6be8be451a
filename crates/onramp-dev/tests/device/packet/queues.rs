//! Sockets that share the frames of an interface.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use onramp_core::{Clock as _, Device, Instant};
use onramp_dev::{MonotonicClock, PacketOptions, PacketReceiver, Receive};
use onramp_queue::PacketList;

use super::{OPTIONS, PAIR, open};
use crate::namespace::in_namespace;
use crate::tap::{PATIENCE_NS, heap, tcp};

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
            let (mut numbers, mut joins) = (Vec::new(), 0);
            let patience = MonotonicClock.now().after(PATIENCE_NS);
            // At least 100 times, and until the sender has had some turns.
            while joins < 100 || numbers.len() <= 10_000 && MonotonicClock.now() < patience {
                joins += 1;
                let mut second = first.another_queue().expect("there is a group");
                let mut other = second.receiver().expect("nobody has taken it");
                // The sender may be faster than this thread, so there is a bound.
                receive(&mut other, 100_000, &mut numbers);
                receive(&mut one, 100_000, &mut numbers);
            }
            end.store(true, Ordering::Relaxed);
            receive(&mut one, usize::MAX, &mut numbers);
            let count = numbers.len();
            assert!(count > 10_000, "only {count} frames came");
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), count, "frames came twice");
        });
    });
}

/// Receives what waits, but not many more than `most` frames, and appends their numbers.
fn receive(from: &mut PacketReceiver, most: usize, numbers: &mut Vec<u32>) {
    let enough = numbers.len().saturating_add(most);
    loop {
        let mut list = PacketList::new();
        let count = from.receive(64, &mut heap, &mut list).expect("it is up");
        numbers.extend(list.map(|packet| {
            let number = packet.payload()[100..104].try_into().expect("four bytes");
            u32::from_be_bytes(number)
        }));
        if count < 64 || numbers.len() >= enough {
            return;
        }
    }
}
