//! Links: a device with one or more ports, which all senders of the link share.

mod control;
mod lease;
mod ports;

#[cfg(feature = "udp")]
use std::io;
#[cfg(feature = "udp")]
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use onramp_core::{Clock, Instant};
use onramp_dev::MonotonicClock;
#[cfg(feature = "udp")]
use onramp_dev::{UdpReceiver, UdpReceiverOptions, UdpStats};

use onramp_queue::Credits;

pub use self::control::Changing;
use crate::Sender;
use crate::closing::Closing;
use crate::runner::{StartError, ThreadGroup};
use crate::shared::{BoxDevice, CloseReport, Described, Handle, Setup, Shared};
use crate::stats::LinkStats;

/// A device with one or more ports (transmit queues), each with a qdisc in front. A `Link` is cheap
/// to clone: all clones are handles of the same link.
///
/// The qdiscs may be of kinds that the program wrote itself: see [`LinkBuilder::kind`].
///
/// [`LinkBuilder::kind`]: crate::LinkBuilder::kind
///
/// When the last handle and the last [`Sender`] of a link are dropped, the link closes without
/// waiting, and drops the packets that it still holds. Call [`Link::close`] to give these packets
/// time to leave. If a device blocks, it delays the thread that drops the last handle by a second
/// at most.
#[derive(Clone, Debug)]
pub struct Link {
    pub(crate) handle: Arc<Handle>,
}

impl Link {
    /// Starts a link over `devices`, and pins its runners to the processors `cpus`: each runner to
    /// the next processor, starting over at the end of the list.
    pub(crate) fn start(
        setup: Setup,
        devices: Vec<BoxDevice>,
        cpus: &[usize],
    ) -> Result<Self, StartError> {
        let shared = Arc::new(Shared::new(setup));
        let devices: Vec<_> = devices.into_iter().map(Described::new).collect();
        if let Some(plan) = shared.plan() {
            for device in devices {
                let added = shared.add_port(device, &plan);
                debug_assert!(added.is_some(), "there is room for all that are given");
            }
        }
        shared.share_out(0);
        // From here on, the handle owns the link: if this function fails, dropping the handle ends
        // the threads that were started.
        let handle = Arc::new(Handle { shared: shared.clone() });
        let has_threads = shared.rig.threads.descriptor().is_none();
        for me in (0..shared.rig.runners.len()).filter(|_| has_threads) {
            let cpu = cpus.get(me % cpus.len().max(1)).copied();
            ThreadGroup::start(&shared, me, cpu, MonotonicClock)?;
        }
        if shared.ports() > 1 && shared.slots.iter().any(|slot| slot.known.may_block) {
            ThreadGroup::start_watch(&shared, MonotonicClock)?;
        }
        Ok(Self { handle })
    }

    /// Makes a sender. Each thread that sends needs a sender of its own.
    #[must_use]
    pub fn sender(&self) -> Sender {
        Sender::new(self.handle.clone(), self.shared().credits, 0)
    }

    /// Makes a sender with credits of its own, in place of those of the link
    /// ([`LinkBuilder::credits`]): more for a sender of long bursts, fewer for one whose packets
    /// must not wait long. The sender keeps them, however many senders there are, unless
    /// [`LinkBuilder::credits_per_port`] was set: [`Sender::credits`] says what the sender has at
    /// present.
    ///
    /// [`LinkBuilder::credits`]: crate::LinkBuilder::credits
    /// [`LinkBuilder::credits_per_port`]: crate::LinkBuilder::credits_per_port
    ///
    /// # Panics
    ///
    /// Panics when `credits` has 0 packets, or more than 32,768.
    #[must_use]
    pub fn sender_with(&self, credits: Credits) -> Sender {
        let range = 1..=Credits::PACKETS_MAX;
        assert!(
            range.contains(&credits.packets),
            "a sender has credits for 1 to 32768 packets, not for {}",
            credits.packets
        );
        let kept = if self.shared().keeps_own_credits { credits.packets } else { 0 };
        Sender::new(self.handle.clone(), credits, kept)
    }

    /// Does the work of the runner in a link that was built [without
    /// threads](crate::LinkBuilder::manual): sends the packets whose time has come, at most a quota
    /// from each port. Returns the time, on [the link's clock](Self::now), at which to call again;
    /// a time in the past means at once. `None`: there is nothing to do until a thread, this one
    /// included, sends packets or a device has room again. The [descriptor](Self::descriptor) tells
    /// all of this.
    ///
    /// One thread at a time does this work. A call returns `None` at once while another thread does
    /// it, and in a child of `fork`.
    ///
    /// # Panics
    ///
    /// Panics if the link has threads, which do this work.
    pub fn run(&self) -> Option<Instant> {
        assert!(self.descriptor().is_some(), "the threads of this link do the work of its runner");
        self.shared().turn()
    }

    /// Returns the descriptor that a program has to wait for, with `poll(2)`, `epoll(7)` or an
    /// executor, before it calls [`run`](Self::run) again: it is readable when the work of the
    /// runner is due. Do not read from it: `run` makes it unreadable. `None` if the link has
    /// threads.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.shared().rig.threads.descriptor()
    }

    /// Returns the number of ports (transmit queues) that the link has ever had. Removed ports are
    /// included, because they keep their numbers.
    #[must_use]
    pub fn ports(&self) -> usize {
        self.shared().slots.len()
    }

    /// Returns the present time on the link's clock, in nanoseconds. Departure times (`txtime_ns`)
    /// are times on this clock.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.shared().clock.now()
    }

    /// Returns the counters of the link, its ports and its runners. The counters are read one after
    /// another, so they agree with each other exactly only when nobody sends.
    #[must_use]
    pub fn stats(&self) -> LinkStats {
        let shared = self.shared();
        // Read the counters of the ports before those of the senders. Then a packet that moves in
        // between counts as held by the link; in the other order, more packets could have left than
        // were submitted.
        let ports = shared.slots.iter().map(|slot| slot.port.snapshot()).collect();
        let mut stats = LinkStats::new(ports, shared.sender_totals());
        (stats.senders, stats.credits) = shared.senders_and_credits();
        for runner in &*shared.rig.runners {
            stats.add_runner(&runner.stats);
        }
        for slot in shared.slots.iter() {
            stats.add_calls(slot.calls());
        }
        stats
    }

    /// Returns the counters of the UDP sockets over which the link was built, one entry for each
    /// port. Empty for a link over other devices. A device that was added later has counters of its
    /// own, which are not included.
    #[cfg(feature = "udp")]
    #[must_use]
    pub fn udp_stats(&self) -> &[Arc<UdpStats>] {
        &self.shared().udp.stats
    }

    /// Returns the UDP socket of a port. Use it to set options, to learn the
    /// [address](std::net::UdpSocket::local_addr) to which a link has bound it, or to receive: a
    /// link only sends. `None` for a port that was added later, and for a link over other devices.
    /// The socket is closed when the link and all clones of the result are dropped.
    #[cfg(feature = "udp")]
    #[must_use]
    pub fn socket(&self, port: usize) -> Option<&Arc<UdpSocket>> {
        self.shared().udp.sockets.get(port)
    }

    /// Returns the local address of the UDP socket of a port: the address and port number that the
    /// system has chosen where the builder left the choice to it. `None` as for
    /// [`socket`](Self::socket).
    #[cfg(feature = "udp")]
    #[must_use]
    pub fn local_addr(&self, port: usize) -> Option<SocketAddr> {
        self.socket(port)?.local_addr().ok()
    }

    /// Makes a receiver of the datagrams that come to the [socket](Self::socket) of a port. Have
    /// only one for each port: of several, each datagram comes to one.
    ///
    /// ```
    /// use onramp::dev::{Receive as _, UdpReceiverOptions};
    /// use onramp::frame::Datagram;
    /// use onramp::{Link, Packet, PacketList};
    ///
    /// let server = Link::udp("127.0.0.1:0").build()?;
    /// let mut requests = server.udp_receiver(0, UdpReceiverOptions::default())?;
    /// let address = server.socket(0).expect("it has one port").local_addr()?;
    ///
    /// let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// client.send_to(b"a question", address)?;
    /// let mut list = PacketList::new();
    /// let mut make = |bytes: usize| Some(Packet::with_capacity(bytes.try_into().ok()?));
    /// while requests.receive(64, &mut make, &mut list)? == 0 {
    ///     // A program would wait until the receiver's descriptor is readable.
    ///     std::thread::yield_now();
    /// }
    /// let packet = list.pop_front().expect("it was counted");
    /// let request = Datagram::of(&packet).expect("a receiver makes IP packets");
    /// assert_eq!((request.data, request.source), (&b"a question"[..], client.local_addr()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `NotFound` if the port has no socket, and the errors of [`UdpReceiver::new`].
    #[cfg(feature = "udp")]
    pub fn udp_receiver(
        &self,
        port: usize,
        options: UdpReceiverOptions,
    ) -> io::Result<UdpReceiver> {
        let Some(socket) = self.socket(port) else {
            let why = format!("port {port} of the link has no UDP socket");
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        };
        UdpReceiver::new(socket.try_clone()?, options)
    }

    /// Returns the numbers of the ports that are dead, each with the message of the panic of its
    /// qdisc or device. Other ports are not affected. A dead port drops all packets that it held or
    /// still gets, counted as [`port_dead`](onramp_queue::DropReason::PortDead).
    #[must_use]
    pub fn deaths(&self) -> Vec<(usize, String)> {
        let slots = self.shared().slots.iter().enumerate();
        slots.filter_map(|(port, slot)| Some((port, slot.port.death()?.to_owned()))).collect()
    }

    /// Blocks until the link holds no packet, but at most for `timeout`. Returns true if the link
    /// holds no packet.
    ///
    /// While other threads go on sending, the link may never become empty. If another thread closes
    /// the link, the call returns soon after that close ends. Packets that a cork holds back are
    /// not in the link yet, so this call does not wait for them.
    pub fn flush(&self, timeout: Duration) -> bool {
        self.shared().flush(timeout, |_| true)
    }

    /// Closes the link: refuses new packets, blocks until the link holds no packet or `timeout` has
    /// passed, drops the packets that are left (counted as
    /// [`purged`](onramp_queue::DropReason::Purged)), and ends the link's threads.
    ///
    /// Threads that wait for the link are woken: [`send`](Sender::send) and
    /// [`ready`](Sender::ready) as soon as the link refuses packets, [`flush`](Sender::flush) when
    /// the link holds no packet any more. If a device blocks, the call returns at most a second
    /// after `timeout`, see [`CloseReport::blocked`]. Wakers of tasks may run in the thread that
    /// calls this method, so a waker that blocks delays the call.
    ///
    /// Several threads may close a link at the same time. The shortest `timeout` then applies to
    /// all of them.
    ///
    /// In a child of `fork`, the link is a closed copy without threads, and this method does
    /// nothing.
    pub fn close(&self, timeout: Duration) -> CloseReport {
        self.shared().close(timeout)
    }

    /// Returns a future that closes the link as [`close`](Self::close) does, and blocks no thread.
    /// The close begins when the future is first polled. Use it in an asynchronous program; it
    /// works with any executor.
    ///
    /// The link's threads have been told to end when the future is ready, and may run for a moment
    /// more. If a device blocks, the future is ready at most a second after `timeout`, as a call of
    /// `close` returns. In a link [without threads](crate::LinkBuilder::manual), the program goes
    /// on [running](Self::run) the link until the future is ready.
    ///
    /// The future is a handle of the link. If it is dropped before it is ready, the link refuses
    /// new packets from then on, but goes on sending those that it holds, until another close ends
    /// or the last handle is dropped.
    ///
    /// ```
    /// # use std::task::{Context, Poll, Wake, Waker};
    /// # struct Unpark(std::thread::Thread);
    /// # impl Wake for Unpark {
    /// #     fn wake(self: std::sync::Arc<Self>) {
    /// #         self.0.unpark();
    /// #     }
    /// # }
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let waker = Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
    /// #     loop {
    /// #         match future.as_mut().poll(&mut Context::from_waker(&waker)) {
    /// #             Poll::Ready(output) => return output,
    /// #             Poll::Pending => std::thread::park(),
    /// #         }
    /// #     }
    /// # }
    /// use std::time::Duration;
    ///
    /// use onramp::Link;
    ///
    /// let link = Link::devices([Box::new(onramp::dev::Null::default()) as Box<_>])
    ///     .qdisc("netem delay 10ms")
    ///     .build()?;
    /// let mut sender = link.sender();
    /// let flow = sender.flow(None);
    /// # block_on(async {
    /// sender.try_send(&flow, b"hello")?;
    /// assert!(sender.flushed().await);
    /// let report = link.closing(Duration::from_secs(5)).await;
    /// assert!(report.flushed);
    /// # Ok::<(), onramp::TrySendError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn closing(&self, timeout: Duration) -> Closing {
        Closing::new(self.handle.clone(), timeout)
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.handle.shared
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use onramp_dev::Null;

    use super::*;
    use crate::LinkBuilder;

    fn link(ports: usize) -> Link {
        let devices = (0..ports).map(|_| Box::new(Null::default()) as BoxDevice);
        Link::devices(devices).build().expect("a link")
    }

    #[test]
    fn credits_are_shared_out_to_the_packet() {
        for ports in [1_u32, 2, 3, 7] {
            let link = link(ports as usize);
            let share = |count: u32| (8_192 * ports / count.max(1)).max(4);
            let mut senders = Vec::new();
            let most = 2_100 * ports;
            for count in 1..=most {
                senders.push(link.sender());
                assert_eq!(link.shared().fair_credits(), share(count), "{count} senders");
            }
            assert_eq!(link.shared().fair_credits(), 4, "never less");
            for count in (0..most).rev() {
                senders.pop();
                assert_eq!(link.shared().fair_credits(), share(count), "{count} senders");
            }
        }
    }

    #[test]
    fn credits_that_are_set_are_kept() {
        let builder = || Link::devices([Box::new(Null::default()) as BoxDevice]);
        let credits = Credits { packets: 512, bytes: 1 << 20 };
        let kept = builder().credits(credits).build().expect("a link");
        let senders: Vec<_> = (0..500).map(|_| kept.sender()).collect();
        assert_eq!((kept.stats().senders, kept.stats().credits), (500, 512));
        drop(senders);
        let shared = builder().credits(credits).credits_per_port(1_000).build().expect("a link");
        let mut senders = vec![shared.sender()];
        assert_eq!((shared.stats().senders, shared.stats().credits), (1, 512));
        senders.extend((0..9).map(|_| shared.sender()));
        assert_eq!((shared.stats().senders, shared.stats().credits), (10, 100));
        senders.extend((0..990).map(|_| shared.sender()));
        assert_eq!(shared.stats().credits, 4, "never less");
        senders.truncate(4);
        assert_eq!((shared.stats().senders, shared.stats().credits), (4, 250));
        for (wrong, one) in [(511, Some(credits)), (3, None), (0, None)] {
            let builder = builder().credits_per_port(wrong);
            let builder = one.into_iter().fold(builder, LinkBuilder::credits);
            let error = builder.build().expect_err("too few").to_string();
            assert!(
                error.contains("credits per port") && error.contains(&wrong.to_string()),
                "{error}"
            );
        }
        assert_eq!(builder().credits_per_port(10).build().expect("a link").stats().senders, 0);
    }

    #[test]
    fn credits_are_shared_out_though_senders_come_at_once() {
        let link = link(1);
        let keep: Vec<_> = (0..100).map(|_| link.sender()).collect();
        for round in 0..2_000 {
            let barrier = std::sync::Barrier::new(2);
            let made: Vec<_> = thread::scope(|scope| {
                let make = || {
                    barrier.wait();
                    (0..4).map(|_| link.sender()).collect::<Vec<_>>()
                };
                [scope.spawn(make), scope.spawn(make)].map(|made| made.join().unwrap()).into()
            });
            assert_eq!(link.shared().fair_credits(), 8_192 / 108, "round {round}");
            drop(made);
        }
        drop(keep);
    }

    #[test]
    fn more_senders_than_processors_are_a_crowd() {
        let link = link(1);
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let mut senders: Vec<_> = (0..processors).map(|_| link.sender()).collect();
        assert!(!link.shared().crowded());
        senders.push(link.sender());
        assert!(link.shared().crowded());
        senders.pop();
        assert!(!link.shared().crowded());
    }
}
