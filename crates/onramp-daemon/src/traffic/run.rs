//! The threads that send a traffic.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use onramp::dev::MonotonicClock;
use onramp::{Clock as _, Flow, Link, Sender, TrySendError};
use onramp_core::Instant;
use onramp_queue::{Credits, Meta, Pool};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::Options;
use super::count::{Counts, Ended, Report};
use super::pace::Pace;
use super::packet::Shape;

/// How many packets a thread may have in the device: so many that the limit of a qdisc is reached
/// first, if the traffic has a rate.
const CREDITS: Credits = Credits { packets: Credits::PACKETS_MAX, bytes: 256 << 20 };
/// How many packets a thread may have in the device if the traffic has no rate: fewer than the
/// usual limits of qdiscs.
const WINDOW: u32 = 256;
/// The most packets that a thread sends before it looks whether it shall end.
const BATCH: u32 = 64;
/// The longest time until a thread looks whether it shall end, and the shortest time for which it
/// sleeps. Packets that are due sooner leave together.
const LOOK: Duration = Duration::from_millis(10);
const NAP: Duration = Duration::from_micros(50);
/// How long a thread sleeps if the device takes no more packets, and while packets are left.
const REST: Duration = Duration::from_millis(1);
/// How long a thread waits at the end for the packets that are still in the device.
const DRAIN: Duration = Duration::from_secs(1);

/// A traffic that is being sent. Dropping it ends the traffic.
#[derive(Debug)]
pub(crate) struct Run {
    options: Options,
    orders: Arc<Orders>,
    threads: Vec<Thread>,
    done: mpsc::UnboundedReceiver<Done>,
    begun: Instant,
    counts: Counts,
    ended: Ended,
    until: Instant,
    _places: OwnedSemaphorePermit,
}

/// What the threads of a traffic are told.
#[derive(Debug, Default)]
struct Orders {
    /// Send no more packets.
    stop: AtomicBool,
    /// Do not wait for packets that are still in the device.
    hurry: AtomicBool,
}

/// What a thread reports when it ends.
#[derive(Debug)]
struct Done {
    counts: Counts,
    ended: Ended,
    /// Time at which the last packet was sent or dropped, or the thread ceased to wait for it.
    at: Instant,
}

impl Run {
    pub(super) fn start(
        options: Options,
        link: &Link,
        shape: &Shape,
        places: OwnedSemaphorePermit,
    ) -> io::Result<Self> {
        let (tell, done) = mpsc::unbounded_channel();
        let begun = MonotonicClock.now();
        let mut run = Self {
            orders: Arc::default(),
            threads: Vec::new(),
            done,
            begun,
            counts: Counts::default(),
            ended: Ended::Time,
            until: begun,
            _places: places,
            options,
        };
        let end = begun + Duration::from_secs_f64(run.options.seconds);
        for number in 0..run.options.threads {
            let (orders, tell) = (run.orders.clone(), tell.clone());
            let mut source = Source::new(&run.options, number, link, shape, begun);
            let thread = thread::Builder::new().name("onramp-traffic".to_owned());
            let thread = thread.spawn(move || {
                let ended = source.send(end, &orders);
                let at = source.drain(&orders);
                // If nobody is left to whom to report, the report is not needed.
                let _ = tell.send(Done { counts: source.counts, ended, at });
            })?;
            run.threads.push(thread.thread().clone());
        }
        Ok(run)
    }

    /// Waits until all threads have ended. The call may be given up, and made again later.
    pub(crate) async fn ended(&mut self) {
        while let Some(done) = self.done.recv().await {
            self.counts.add(&done.counts);
            self.until = self.until.max(done.at);
            if done.ended != Ended::Time && self.ended == Ended::Time {
                self.ended = done.ended;
            }
        }
    }

    /// Has the threads send no more packets. They wait a little for packets that are still in the
    /// device, unless the daemon ends.
    pub(crate) fn stop(&mut self, why: Ended) {
        self.ended = why;
        // Relaxed: the threads look again and again.
        self.orders.hurry.store(why == Ended::Daemon, Ordering::Relaxed);
        self.orders.stop.store(true, Ordering::Relaxed); // Relaxed: as above.
        self.threads.iter().for_each(Thread::unpark);
    }

    /// Returns what became of the packets. Call it after [`ended`](Self::ended).
    pub(crate) fn report(&self) -> Report {
        let nanoseconds = self.until.since(self.begun);
        let seconds = Duration::from_nanos(nanoseconds).as_secs_f64();
        Report::new(&self.options, &self.counts, seconds, self.ended)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.stop(Ended::Daemon);
    }
}

/// The part of a traffic that one thread sends.
struct Source {
    sender: Sender,
    /// The thread's own packets. The credits of the sender are too few to fill a qdisc.
    pool: Pool,
    window: u32,
    shape: Shape,
    /// The payload of the last packet.
    payload: Vec<u8>,
    /// The flows with their numbers. They take turns.
    flows: Vec<(u32, Flow)>,
    turn: usize,
    pace: Pace,
    counts: Counts,
}

impl Source {
    fn new(options: &Options, number: u32, link: &Link, shape: &Shape, begun: Instant) -> Self {
        let sender = link.sender();
        let flows = (number..options.flows).step_by(options.threads as usize);
        let flow = |flow| (flow, sender.flow(shape.destination()));
        let flows: Vec<_> = flows.map(flow).collect();
        // Each flow has the same share of the rate.
        let share = |rate: u64| {
            let share = u128::from(rate) * flows.len() as u128 / u128::from(options.flows);
            u64::try_from(share).unwrap_or(u64::MAX)
        };
        let rate = options.bytes_per_second.map(share);
        Self {
            sender,
            pool: Pool::new(CREDITS),
            window: if rate.is_some() { CREDITS.packets } else { WINDOW },
            shape: *shape,
            payload: shape.payload(),
            flows,
            turn: 0,
            pace: Pace::new(begun, rate, shape.size().into()),
            counts: Counts::default(),
        }
    }

    /// Sends packets until `end`, or until the thread is told to stop. Returns why it ended. If
    /// the thread first runs after `end`, it sends a batch of what was due before.
    fn send(&mut self, end: Instant, orders: &Orders) -> Ended {
        let mut has_sent = false;
        loop {
            let now = MonotonicClock.now();
            if now >= end && has_sent {
                return Ended::Time;
            }
            let now = now.min(end);
            has_sent = true;
            // Relaxed: the thread looks again and again.
            if orders.stop.load(Ordering::Relaxed) {
                return Ended::Stopped;
            }
            if let Some(ended) = self.lost() {
                return ended;
            }
            let mut left = BATCH;
            let mut is_full = false;
            while left > 0 && !is_full && self.pace.next() <= now {
                is_full = !self.send_one();
                left -= 1;
            }
            self.reclaim();
            if is_full {
                thread::park_timeout(REST);
            } else if left > 0 {
                let due = self.pace.next().min(end);
                let nap = Duration::from_nanos(due.since(MonotonicClock.now()));
                thread::park_timeout(nap.clamp(NAP, LOOK));
            } else {
                // The sender gives way only after its own calls have taken long, so a thread that
                // sends without a pause yields here.
                thread::yield_now();
            }
        }
    }

    /// Returns why the device takes no packets for good, if this is so.
    fn lost(&mut self) -> Option<Ended> {
        let (_, flow) = self.flows.get(self.turn)?;
        match self.sender.packet(flow, &[]) {
            Err(TrySendError::Closed) => Some(Ended::Deleted),
            Err(TrySendError::PortDead) => Some(Ended::Died),
            _ => None,
        }
    }

    /// Sends a packet of the next flow. Returns false if there is no room.
    fn send_one(&mut self) -> bool {
        let Some((number, flow)) = self.flows.get(self.turn) else { return false };
        if self.pool.out() >= self.window {
            return false;
        }
        let Some(mut packet) = self.pool.take(self.payload.len()) else { return false };
        self.shape.turn_into(&mut self.payload, *number);
        packet.set_payload(&self.payload);
        packet.set_dest(self.shape.destination());
        packet.set_layer(self.shape.layer());
        *packet = Meta { flow: flow.key(), len: self.shape.size(), ..Default::default() };
        if let Err(rejected) = self.sender.submit(flow, packet) {
            self.pool.take_back(rejected.packet);
            return false;
        }
        self.counts.submitted += 1;
        self.turn = (self.turn + 1) % self.flows.len();
        self.pace.sent();
        true
    }

    fn reclaim(&mut self) {
        let counts = &mut self.counts;
        self.pool.reclaim(|completion| counts.complete(completion));
    }

    /// Waits a little until all packets were sent or dropped. Returns the time.
    fn drain(&mut self, orders: &Orders) -> Instant {
        let deadline = MonotonicClock.now() + DRAIN;
        loop {
            self.reclaim();
            let now = MonotonicClock.now();
            // Relaxed: the thread looks again and again.
            let hurries = orders.hurry.load(Ordering::Relaxed);
            if self.pool.out() == 0 || now >= deadline || hurries {
                return now;
            }
            thread::park_timeout(REST);
        }
    }
}
