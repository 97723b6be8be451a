//! A world of the chaos test: what the threads of one link share.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use onramp::dev::Network;
use onramp::{Link, Sender};

use crate::device::{Weather, while_not};
use crate::ledger::{Ledger, Lent};
use crate::plan::{End, Fault, Plan};
use crate::watch::{Doing, Slot, Watch, nanos, now};

/// Greatest number of ports that a link may have over its lifetime.
pub(crate) const PORTS: usize = 40;
/// Number of times that the senders of a world may fork the process, all senders together.
const FORKS: u32 = 3;

/// State that the threads of a world share.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) weather: Arc<Weather>,
    pub(crate) network: Network,
    /// Packets that one sender made and that another sender is to submit.
    pub(crate) market: Mutex<Vec<Lent>>,
    /// Senders that one thread has left so that another thread takes them over, each with its
    /// record.
    pub(crate) attic: Mutex<Vec<(Sender, Arc<Ledger>)>>,
    ids: AtomicU64,
    /// Number of packets that the link accepted, and number of further packets of which nobody
    /// knows whether the link accepted them.
    pub(crate) accepted: AtomicU64,
    pub(crate) unknown: AtomicU64,
    pub(crate) forks_left: AtomicU32,
    pub(crate) stop: AtomicBool,
    pub(crate) arrived: AtomicUsize,
    pub(crate) settle: AtomicBool,
}

impl World {
    pub(crate) fn new(plan: Plan, watch: &Arc<Watch>) -> Self {
        Self {
            weather: Weather::new(watch, &plan),
            network: Network::new(plan.receivers, plan.capacity),
            market: Mutex::default(),
            attic: Mutex::default(),
            ids: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            forks_left: AtomicU32::new(if plan.forks { FORKS } else { 0 }),
            stop: AtomicBool::new(false),
            arrived: AtomicUsize::new(0),
            settle: AtomicBool::new(false),
            plan,
        }
    }

    /// Makes a sender of the link, and the record of its packets. In some worlds, the sender's
    /// callback panics now and then.
    pub(crate) fn open(&self, slot: &Slot, link: &Link, rng: &mut Rng) -> (Sender, Arc<Ledger>) {
        let panics = self.plan.panics.then(|| rng.fork());
        slot.call(Doing::NewSender, self.plan.at_once(), 0, || {
            Ledger::open(link, self.ids.fetch_add(1, SeqCst), panics)
        })
    }

    /// Makes a sender of the link, and its record. The sender's callback never panics.
    pub(crate) fn open_calm(&self, link: &Link) -> (Sender, Arc<Ledger>) {
        Ledger::open(link, self.ids.fetch_add(1, SeqCst), None)
    }

    /// Waits until all packets of a sender have come home, when no thread sends any more, checks
    /// the sender's record, and drops the sender.
    pub(crate) fn finish(&self, slot: &Slot, mut sender: Sender, ledger: &Ledger) {
        let (watch, plan) = (slot.watch(), &self.plan);
        ledger.calm.store(true, SeqCst);
        // If the last handle of the link was dropped while packets were in flight, no completion is
        // reported for these packets, so there is nothing to check.
        if plan.end != End::Abandoned {
            let (time, end) = (plan.rest(), now() + nanos(plan.rest()));
            // On a closed link, a flush gives up before devices and receivers may have finished, so
            // repeat it.
            let mut flushed = slot.wait(Doing::Flush, time, 1, || sender.flush(time));
            while !flushed && now() < end {
                while_not(|| !self.weather.blocks(), time);
                flushed = slot.wait(Doing::Flush, time, 1, || sender.flush(time));
            }
            if !flushed {
                let below = sender.in_flight();
                watch.failed(&format!(
                    "the link is idle, but a flush did not return in {time:?}: in flight {below}, \
                     {ledger:?}"
                ));
            }
            // If a completion callback panicked, some completions were not reported yet. `reclaim`
            // reports them.
            sender.reclaim();
            if plan.fault == Some(Fault::Forgets) {
                ledger.accepted(1, 0);
            }
            if !ledger.told_mine() {
                watch.failed(&format!("a flush returned too early: {ledger:?}"));
            }
            // Packets of this sender that other senders submitted come home later: such a packet
            // may be in a port of a closed link whose device blocks.
            let all = || ledger.told_all();
            let end = now() + nanos(plan.rest());
            while now() < end {
                sender.reclaim();
                if all() && sender.in_flight() == 0 {
                    break;
                }
                thread::sleep(Duration::from_millis(1));
            }
            if !all() {
                watch.failed(&format!("not every packet was reported exactly once: {ledger:?}"));
            }
            let below = sender.in_flight();
            if below > 0 {
                watch.failed(&format!(
                    "all packets were reported, but {below} are in flight: {ledger:?}"
                ));
            }
        }
        slot.call(Doing::DropSender, plan.patience(), 1, || drop(sender));
    }
}
