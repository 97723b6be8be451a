//! Receiving as a future, without an asynchronous runtime.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use onramp_core::{Device, Instant};
use onramp_dev::{Loopback, Network, Receiver, loopback};
use onramp_queue::{Packet, PacketList};

/// A waker that unparks a thread and counts how often it was called.
struct Unpark(Thread, AtomicU32);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.unpark();
    }
}

impl Unpark {
    fn here() -> Arc<Self> {
        Arc::new(Self(thread::current(), AtomicU32::new(0)))
    }

    fn woken(&self) -> u32 {
        self.1.load(Ordering::SeqCst)
    }
}

/// Polls a future until it is ready: a minimal executor.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Unpark::here());
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

fn send(device: &mut Loopback, cookie: u64) {
    let mut packet = Packet::with_payload(b"x");
    packet.cookie = cookie;
    let mut burst = PacketList::from_iter([packet]);
    while !burst.is_empty() {
        let _ = device.transmit(&mut burst, &mut PacketList::new(), Instant(1));
        thread::yield_now();
    }
}

/// Polls the receiver once, and returns the cookie of the packet.
fn poll(receiver: &mut Receiver, waker: &Arc<Unpark>) -> Poll<Option<u64>> {
    let waker = Waker::from(waker.clone());
    let polled = receiver.poll_recv(&mut Context::from_waker(&waker));
    polled.map(|packet| packet.map(|packet| packet.cookie))
}

/// Packets of two threads all arrive, each thread's in order, and then the future says that no more
/// will come.
#[test]
fn a_task_receives_everything_and_notices_the_end() {
    let network = Network::new(1, 4);
    let mut receiver = network.receiver(0).expect("it is free");
    let mut next = [0, 10_000];
    thread::scope(|scope| {
        for thread in 0..2 {
            let mut queue = network.queue();
            scope.spawn(move || {
                for n in 0..2_000 {
                    send(&mut queue, 10_000 * thread + n);
                    if n % 500 == 0 {
                        thread::sleep(Duration::from_millis(1));
                    }
                }
            });
        }
        drop(network);
        block_on(async {
            while let Some(packet) = receiver.recv().await {
                let thread = usize::from(packet.cookie >= 10_000);
                assert_eq!(packet.cookie, next[thread], "in order");
                next[thread] += 1;
            }
        });
    });
    assert_eq!(next, [2_000, 12_000]);
    assert!(receiver.has_ended());
}

#[test]
fn a_task_is_woken_once_for_what_comes() {
    let (mut device, mut receiver) = loopback(8);
    let (first, second) = (Unpark::here(), Unpark::here());
    assert_eq!(poll(&mut receiver, &first), Poll::Pending);
    assert_eq!(poll(&mut receiver, &second), Poll::Pending);
    send(&mut device, 1);
    send(&mut device, 2);
    assert_eq!((first.woken(), second.woken()), (0, 1), "the later request replaced the earlier");
    assert_eq!(poll(&mut receiver, &second), Poll::Ready(Some(1)));
    assert_eq!(poll(&mut receiver, &second), Poll::Ready(Some(2)));
    assert_eq!(poll(&mut receiver, &second), Poll::Pending);
    drop(device);
    assert_eq!(second.woken(), 2, "the end wakes, too");
    assert_eq!(poll(&mut receiver, &second), Poll::Ready(None));
    assert_eq!(receiver.stats().packets.get(), 2);
}

/// A future that is dropped while it waits withdraws its request, and loses no packet.
#[test]
fn a_dropped_future_leaves_nothing_behind() {
    let (mut device, mut receiver) = loopback(8);
    let task = Unpark::here();
    for cookie in 0..3 {
        let waker = Waker::from(task.clone());
        {
            let mut future = pin!(receiver.recv());
            assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        drop(waker);
        assert_eq!(Arc::strong_count(&task), 1, "nobody holds the task's waker");
        send(&mut device, cookie);
        assert_eq!(task.woken(), 0);
        let packet = block_on(receiver.recv()).expect("it is there");
        assert_eq!(packet.cookie, cookie);
    }
}
