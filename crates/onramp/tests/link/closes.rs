//! Closes of links whose devices block, and closes of one link by several threads at the same time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Waker};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use onramp::dev::Null;
use onramp::{
    CloseReport, Device, DeviceInfo, DropReason, Flow, Instant, Link, Mapping, Mode, PacketList,
    Sender, Transmitted, TrySendError,
};

use crate::common::{Fates, Gate, LONG, SHORT, balanced, credits, in_time, now, until};
use crate::trap::{Mortal, Trap};

/// Time limit of a close that no device delays, nanoseconds.
const KEPT_NS: u64 = 60_000_000_000;

/// A device that never has room, and may block the threads that call it.
#[derive(Debug, Default)]
struct Full {
    state: Mutex<State>,
    lets_go: Condvar,
}

#[derive(Debug, Default)]
struct State {
    keeps: Option<Who>,
    /// Whether the device, which is full, asks its port to try again after 200 µs; otherwise, after
    /// 1,000 s.
    soon: bool,
    inside: u32,
}

/// Which threads the device blocks when they call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Runners,
    Others,
    All,
}

struct Filled(DeviceInfo, Arc<Full>);

impl Full {
    fn new(soon: bool) -> Arc<Self> {
        let full = Self::default();
        full.state().soon = soon;
        Arc::new(full)
    }

    fn device(self: &Arc<Self>) -> Box<dyn Device> {
        Box::new(Filled(DeviceInfo::new("full".to_owned(), 1_514), self.clone()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn keep(&self, who: Who) {
        self.state().keeps = Some(who);
    }

    fn let_go(&self) {
        self.state().keeps = None;
        self.lets_go.notify_all();
    }

    fn inside(&self) -> u32 {
        self.state().inside
    }
}

impl Device for Filled {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }

    fn transmit(&mut self, _: &mut PacketList, _: &mut PacketList, now: Instant) -> Transmitted {
        let name = thread::current().name().map(str::to_owned);
        let is_runner = name.is_some_and(|name| name.starts_with("onramp-run"));
        let mut state = self.1.state();
        let keeps = |state: &State| match state.keeps {
            None => false,
            Some(Who::All) => true,
            Some(who) => (who == Who::Runners) == is_runner,
        };
        if keeps(&state) {
            state.inside += 1;
            state = self.1.lets_go.wait_while(state, |state| keeps(state)).unwrap();
            state.inside -= 1;
        }
        let wait = if state.soon { 200_000 } else { 1_000_000_000_000 };
        Transmitted { calls: 1, messages: 0, retry_at: Some(now.after(wait)) }
    }
}

/// Makes a link whose ports are over devices that are always full. Packets of one sender are in
/// each port. Returns the link, the devices, the sender, and the completions of its packets.
fn filled(ports: usize, soon: bool, mode: Mode) -> (Link, Vec<Arc<Full>>, Sender, Fates) {
    let fulls: Vec<_> = (0..ports).map(|_| Full::new(soon)).collect();
    let devices: Vec<_> = fulls.iter().map(|full| full.device()).collect();
    let builder = Link::devices(devices).qdisc("pfifo limit 10000").mode(mode).runners(1);
    let link = builder.credits(credits(2_000)).build().unwrap();
    let mut sender = link.sender();
    let fates = Fates::of(&mut sender);
    for port in 0..ports {
        let flow = sender.flow_with(None, Mapping::Port(port));
        (0..90).for_each(|_| sender.send(&flow, b"x").unwrap());
    }
    (link, fulls, sender, fates)
}

/// Waits until all packets of the sender have come home. A single flush is not enough: on a closed
/// link it waits for a second only, and the thread that holds the packets may need longer.
fn come_home(sender: &mut Sender) {
    until("they come home", || sender.flush(Duration::ZERO));
}

/// Checks that all submitted packets were purged, counted as purged, and reported to their sender.
#[track_caller]
fn purged(link: &Link, sender: &mut Sender, fates: &Fates, packets: u64) {
    come_home(sender);
    until("all is counted", || link.stats().held == 0);
    let stats = link.stats();
    assert_eq!((stats.submitted, stats.sent), (packets, 0));
    assert_eq!(stats.dropped.get(&DropReason::Purged), Some(&packets));
    assert_eq!((fates.get(Some(DropReason::Purged)), fates.total()), (packets, packets));
    balanced(&stats);
}

/// A close does not call devices that would block it, even if packets are left in their ports.
#[test]
fn a_close_goes_to_no_device_that_blocks() {
    for (mode, patience) in
        [(Mode::Inline, Duration::ZERO), (Mode::Inline, SHORT), (Mode::Hybrid, SHORT)]
    {
        in_time(move || {
            let (link, fulls, mut sender, fates) = filled(8, false, mode);
            // While a runner moves packets from the intake to the qdisc, the counters of both may
            // miss these packets. So wait until the counters show all packets.
            until("packets are left", || link.stats().held == 8 * 90);
            fulls.iter().for_each(|full| full.keep(Who::All));
            let began = now();
            let report = link.close(patience);
            assert!(now().since(began) < KEPT_NS, "a device kept it");
            // One port may count as blocked: the one whose device the only runner has called or is
            // about to call.
            let runners = usize::from(mode == Mode::Hybrid);
            assert!(!report.flushed && report.blocked <= runners, "{report:?}");
            fulls.iter().for_each(|full| full.let_go());
            purged(&link, &mut sender, &fates, 8 * 90);
        });
    }
}

/// A close reports the number of ports whose devices block a runner.
#[test]
fn a_close_counts_the_ports_that_are_blocked() {
    for (mode, patience) in [(Mode::Inline, Duration::ZERO), (Mode::Dedicated, SHORT)] {
        in_time(move || {
            let (link, fulls, mut sender, fates) = filled(8, true, mode);
            fulls[..5].iter().for_each(|full| full.keep(Who::Runners));
            until("they keep runners", || fulls[..5].iter().all(|full| full.inside() == 1));
            let began = now();
            let report = link.close(patience);
            assert!(now().since(began) < KEPT_NS, "a device kept it");
            let told = CloseReport { flushed: false, purged: 3 * 90, blocked: 5 };
            assert_eq!(report, told);
            fulls.iter().for_each(|full| full.let_go());
            purged(&link, &mut sender, &fates, 8 * 90);
            assert_eq!(link.close(Duration::ZERO).blocked, 0);
        });
    }
}

/// Dropping the last handle and the last sender of a link takes no longer than a close, even if
/// devices block.
#[test]
fn a_drop_goes_to_no_device_that_blocks() {
    for (soon, who) in [(false, Who::All), (true, Who::Runners), (true, Who::All)] {
        in_time(move || {
            let (link, fulls, sender, _fates) = filled(8, soon, Mode::Inline);
            fulls.iter().for_each(|full| full.keep(who));
            if soon {
                until("they keep runners", || fulls.iter().all(|full| full.inside() == 1));
            }
            let began = now();
            drop(sender);
            drop(link);
            assert!(now().since(began) < KEPT_NS, "a device kept it");
            fulls.iter().for_each(|full| full.let_go());
            until("the devices are gone", || fulls.iter().all(|full| Arc::strong_count(full) == 1));
        });
    }
}

/// A sender leaves more packets in a port than one run sends (a quota). The device begins to block,
/// and the link is closed or dropped at once. The close or drop is not delayed, whether or not a
/// runner has called the device before.
#[test]
fn a_close_after_a_burst_is_not_kept() {
    for drops in [false, true] {
        in_time(move || {
            for _ in 0..4 {
                let trap = Trap::new();
                let builder = Link::devices([trap.device()]).qdisc("pfifo").mode(Mode::Inline);
                let link = builder.build().unwrap();
                let (theirs, watch) = (trap.clone(), link.clone());
                let mut sender = link.sender();
                let flow = sender.flow(None);
                sender.cork();
                assert_eq!(sender.try_send_batch(&flow, [b"x"; 90]), Ok(90));
                sender.uncork().unwrap();
                theirs.shut();
                let began = now();
                if drops {
                    // This thread drops the last handle, so the link ends here, in this thread.
                    drop((sender, link));
                    drop(watch);
                    assert!(now().since(began) < KEPT_NS, "a device kept it");
                    trap.open();
                    until("the device is gone", || Arc::strong_count(&theirs) == 2);
                    continue;
                }
                let report = watch.close(Duration::ZERO);
                assert!(now().since(began) < KEPT_NS, "a device kept it");
                assert!(report.blocked <= 1, "{report:?}");
                trap.open();
                come_home(&mut sender);
                until("all is counted", || link.stats().held == 0);
                assert_eq!(link.stats().sent, trap.taken().len() as u64);
                balanced(&link.stats());
            }
        });
    }
}

/// Which call of a sender makes the sender's thread call the device. With `Runs`, a runner calls
/// the device instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Waits,
    Polls,
    Flushes,
    Sends,
    Runs,
}

impl How {
    /// Makes calls of this kind, which may call the device, until the link is closed.
    fn come_by(self, sender: &mut Sender, flow: &Flow) {
        let moment = Duration::from_millis(1);
        loop {
            match self {
                Self::Waits => _ = sender.wait_room_timeout(flow, 1, moment),
                Self::Polls => {
                    let mut cx = Context::from_waker(Waker::noop());
                    let _ = sender.poll_ready(&mut cx, flow, 1);
                }
                Self::Flushes => _ = sender.flush(moment),
                Self::Sends | Self::Runs => {}
            }
            match sender.try_send(flow, b"x") {
                Ok(()) | Err(TrySendError::Full) => thread::yield_now(),
                Err(why) => {
                    assert_eq!(why, TrySendError::Closed);
                    return;
                }
            }
        }
    }
}

/// A link is closed while a device blocks a thread. When that thread returns, it purges all packets
/// of the port and counts them, however many there are.
#[test]
fn what_a_blocked_port_holds_is_purged_at_last() {
    for how in [How::Waits, How::Polls, How::Flushes, How::Sends, How::Runs] {
        in_time(move || {
            let full = Full::new(true);
            let builder = Link::devices([full.device()]).qdisc("pfifo limit 10000");
            let link = builder.credits(credits(1_000)).build().unwrap();
            let mut sender = link.sender();
            let fates = Fates::of(&mut sender);
            let flow = sender.flow(None);
            (0..1_000).for_each(|_| sender.send(&flow, b"x").unwrap());
            full.keep(if how == How::Runs { Who::Runners } else { Who::Others });
            let caught = thread::Builder::new().spawn(move || {
                how.come_by(&mut sender, &flow);
                sender
            });
            until("somebody is inside", || full.inside() == 1);
            let report = link.close(Duration::ZERO);
            assert_eq!(report, CloseReport { flushed: false, purged: 0, blocked: 1 }, "{how:?}");
            full.let_go();
            let mut sender = caught.unwrap().join().unwrap();
            come_home(&mut sender);
            let packets = link.stats().submitted;
            purged(&link, &mut sender, &fates, packets);
        });
    }
}

fn closes(link: &Link, timeout: Duration) -> JoinHandle<CloseReport> {
    let link = link.clone();
    let thread = thread::Builder::new().name("closer".to_owned());
    thread.spawn(move || link.close(timeout)).unwrap()
}

/// If two threads close a link at the same time, both of them report the same blocked port.
#[test]
fn two_closes_agree() {
    in_time(|| {
        let (link, fulls, mut sender, fates) = filled(3, true, Mode::Hybrid);
        fulls[1].keep(Who::Runners);
        until("it keeps a runner", || fulls[1].inside() == 1);
        let closing = [closes(&link, Duration::ZERO), closes(&link, Duration::ZERO)];
        let last = link.close(Duration::ZERO);
        let reports = closing.map(|closing| closing.join().unwrap());
        for report in reports.into_iter().chain([last]) {
            assert!(!report.flushed, "{report:?}");
            assert_eq!(report.blocked, 1, "{report:?}");
            assert!(report.purged <= 2 * 90, "{report:?}");
        }
        fulls[1].let_go();
        purged(&link, &mut sender, &fates, 3 * 90);
    });
}

/// Makes a link with two ports. The first port holds 20 packets until its device is told to die.
fn holds_and_dies() -> (Link, Sender, Arc<AtomicBool>) {
    let (device, dies) = Mortal::over(Gate::new(false).device());
    let link = Link::devices([device, Box::new(Null::default())]).qdisc("pfifo").build().unwrap();
    let mut sender = link.sender();
    let flow = sender.flow_with(None, Mapping::Port(0));
    (0..20).for_each(|_| sender.try_send(&flow, b"x").unwrap());
    (link, sender, dies)
}

/// If a port dies while a close or a removal waits for its packets, its packets count neither as
/// sent nor as purged, and the report does not say that all were sent.
#[test]
fn a_port_that_dies_meanwhile_has_not_flushed() {
    in_time(|| {
        for removes in [false, true] {
            let (link, mut sender, dies) = holds_and_dies();
            thread::scope(|scope| {
                let ends = scope.spawn(|| match removes {
                    true => link.remove_port(0, LONG * 10).unwrap(),
                    false => link.close(LONG * 10),
                });
                let flow = sender.flow_with(None, Mapping::Port(0));
                until("it takes nothing", || sender.try_send(&flow, b"x").is_err());
                dies.store(true, Ordering::SeqCst);
                let report = ends.join().unwrap();
                assert_eq!(report, CloseReport { flushed: false, purged: 0, blocked: 0 });
            });
            let stats = link.stats();
            assert_eq!(stats.sent + stats.dropped[&DropReason::PortDead], stats.submitted);
            balanced(&stats);
        }
    });
}

/// If a close ends the removal of a port, the report of the close and the report of the removal
/// both say that not all packets were sent, and both count the packets that the close purged.
#[test]
fn a_removal_that_a_close_ends_has_not_flushed() {
    in_time(|| {
        let (link, mut sender, _) = holds_and_dies();
        thread::scope(|scope| {
            let removes = scope.spawn(|| link.remove_port(0, LONG * 10).unwrap());
            let flow = sender.flow_with(None, Mapping::Port(0));
            until("it takes nothing", || sender.try_send(&flow, b"x").is_err());
            let closed = link.close(Duration::ZERO);
            let removed = removes.join().unwrap();
            let purged = link.stats().dropped[&DropReason::Purged];
            assert_eq!((closed.flushed, closed.purged), (false, purged));
            assert_eq!((removed.flushed, removed.purged), (false, purged));
        });
        balanced(&link.stats());
    });
}

/// A close whose time limit has not passed finds that the link holds no packets, because another
/// close has purged them. Its report does not say that the packets were sent.
#[test]
fn a_close_that_another_purges_for_has_not_flushed() {
    in_time(|| {
        let gate = Gate::new(false);
        let seen = Arc::default();
        let device = Seen { device: gate.device(), seen: Arc::clone(&seen), info: never_blocks() };
        let link = Link::devices([Box::new(device) as Box<_>]).qdisc("pfifo").build().unwrap();
        let mut sender = link.sender();
        let fates = Fates::of(&mut sender);
        let flow = sender.flow(None);
        (0..20).for_each(|_| sender.try_send(&flow, b"x").unwrap());
        let long = closes(&link, LONG * 10);
        until("it waits", || *seen.lock().unwrap());
        let short = link.close(Duration::ZERO);
        assert_eq!(short, CloseReport { flushed: false, purged: 20, blocked: 0 });
        let long = long.join().unwrap();
        assert!(!long.flushed && long.blocked == 0, "{long:?}");
        purged(&link, &mut sender, &fates, 20);
    });
}

fn never_blocks() -> DeviceInfo {
    DeviceInfo::new("seen".to_owned(), 1_514).never_blocks()
}

/// A device that records whether the closing thread has called it. A thread that closes a link
/// helps to send the packets for which it waits.
struct Seen {
    device: Box<dyn Device>,
    seen: Arc<Mutex<bool>>,
    info: DeviceInfo,
}

impl Device for Seen {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        *self.seen.lock().unwrap() |= thread::current().name() == Some("closer");
        self.device.transmit(burst, done, now)
    }
}
