//! Receiving as a future, with any executor.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use onramp_queue::{Armed, Packet};

use super::Receiver;

impl Receiver {
    /// Returns a future of the next packet; `None` when no sender is left and all packets were
    /// received, and in a child of `fork`. The future works with any executor. Dropping it loses no
    /// packet, so it may wait beside other futures.
    ///
    /// Use it in asynchronous code, and [`recv_timeout`](Self::recv_timeout) in a thread.
    ///
    /// # Examples
    ///
    /// ```
    /// use onramp_dev::Receiver;
    ///
    /// async fn print_all(mut receiver: Receiver) {
    ///     while let Some(packet) = receiver.recv().await {
    ///         println!("{} bytes", packet.payload().len());
    ///     }
    /// }
    /// # drop(print_all(onramp_dev::loopback(1).1));
    /// ```
    pub fn recv(&mut self) -> Recv<'_> {
        Recv { receiver: self, waits: false }
    }

    /// Polls for the next packet as [`recv`](Self::recv) does, for futures and streams that are
    /// written by hand. If no packet is there, the task of `cx` is woken when one comes or when no
    /// sender is left. A later call, and a call that waits, replaces the request of the earlier
    /// one.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Packet>> {
        loop {
            if let Some(packet) = self.try_recv() {
                return Poll::Ready(Some(packet));
            }
            if self.has_ended() {
                return Poll::Ready(None);
            }
            match self.reader.arm(cx.waker()) {
                Armed::Ready => {}
                Armed::Busy => {
                    // Another thread is just taking out the previous waker, so poll again soon.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Armed::Armed => {
                    self.stats.sleeps.add(1);
                    return Poll::Pending;
                }
            }
        }
    }
}

/// Future of [`Receiver::recv`]: the next packet, or `None` when no more will come.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Recv<'a> {
    receiver: &'a mut Receiver,
    /// Whether the last poll asked for a wake-up.
    waits: bool,
}

impl Future for Recv<'_> {
    type Output = Option<Packet>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let polled = this.receiver.poll_recv(cx);
        this.waits = polled.is_pending();
        polled
    }
}

impl Drop for Recv<'_> {
    /// Withdraws the task's request to be woken, so that the task is not woken for nothing and its
    /// memory is released.
    fn drop(&mut self) {
        if self.waits {
            // If a packet has come, or another thread is taking the waker out, there is no request
            // to replace.
            let _ = self.receiver.reader.arm(Waker::noop());
        }
    }
}
