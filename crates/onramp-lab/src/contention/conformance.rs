//! Tests that every design must pass: no packet is lost, and the packets of a sender leave in the
//! order in which the sender sent them.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use onramp_core::{Device, DeviceInfo, Instant, Transmitted};
use onramp_queue::{Counter, PacketList};

use super::design::Visit;
use super::drive::PAYLOAD;
use super::trial::{self, PATIENCE};
use super::{Design, Load, Manners, Measurement, Plan};
use crate::lockstat::LockRow;
use crate::measure::Steps;
use crate::measure::{Finally, Gate, Phase, PhaseCell};
use crate::memory::Memory;
use crate::path::{Account, Behind, LOCKS, Path, Seat, Sent, Worker};
use crate::peer::{Seen, numbers};

/// A device that records, for every packet that it takes, the sending thread and the packet's
/// number.
struct Recorder {
    info: DeviceInfo,
    seen: Seen,
}

impl Device for Recorder {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        _now: Instant,
    ) -> Transmitted {
        let mut seen = self.seen.lock();
        for pkt in burst.by_ref() {
            seen.push(numbers(pkt.payload()));
            done.push_back(pkt);
        }
        Transmitted { calls: 1, messages: done.len(), retry_at: None }
    }
}

/// A run in which each thread sends packets until it has sent `each`, or until the run is stopped.
struct Race {
    manners: Manners,
    threads: usize,
    each: u64,
    /// Number of packets that thread 0 sends before it stops the whole run.
    stop_after: u64,
}

/// The number of packets that each thread submitted, and what became of all packets.
struct Outcome {
    submitted: Vec<u64>,
    at_the_door: u64,
    account: Account,
}

impl Visit for Race {
    type Out = Outcome;

    fn path<P: Path>(self, mut path: P, _kind: &'static str) -> Outcome {
        let (phase, gate) = (PhaseCell::new(), Gate::default());
        let over = PhaseCell::new();
        let (submitted, at_the_door) = thread::scope(|scope| {
            let (path, phase, gate, race) = (&path, &phase, &gate, &self);
            let _stops = Finally::new(|| over.set(Phase::Stop));
            if path.consumes() {
                // If the drainer (the thread that takes packets out of the queue) stopped together
                // with the senders, packets would stay in the queue. So the drainer runs until the
                // senders have ended, unless the test stops the senders early.
                let until = if self.stop_after == u64::MAX { &over } else { phase };
                scope.spawn(move || path.consume(until, true));
            }
            let send = |thread| scope.spawn(move || race.send(path, thread, phase, gate));
            let senders: Vec<_> = (0..self.threads).map(send).collect();
            gate.gathered(self.threads);
            gate.open();
            let sent: Vec<_> =
                senders.into_iter().map(|sender| sender.join().expect("it only sends")).collect();
            (sent.iter().map(|sent| sent.0).collect(), sent.iter().map(|sent| sent.1).sum())
        });
        Outcome { submitted, at_the_door, account: path.finish() }
    }
}

impl Race {
    /// Returns the number of packets that `thread` submitted, and how many of them were dropped
    /// before they reached the qdisc.
    fn send<P: Path>(&self, path: &P, thread: usize, phase: &PhaseCell, gate: &Gate) -> (u64, u64) {
        let seat = Seat {
            thread,
            threads: self.threads,
            queues: 1,
            timed: true,
            asked: None,
            manners: self.manners,
            gives_way: self.manners == Manners::Equal,
            phase,
        };
        let mut worker = path.worker(&seat);
        let (mut payload, mut sent, mut dropped) = ([0; PAYLOAD], 0_u64, 0);
        payload[..8].copy_from_slice(&(thread as u64).to_le_bytes());
        gate.wait();
        while sent < self.each && !phase.is_stop() {
            if thread == 0 && sent == self.stop_after {
                phase.set(Phase::Stop);
            }
            payload[8..16].copy_from_slice(&sent.to_le_bytes());
            match worker.send(&payload) {
                Sent::Staged | Sent::Congested => sent += 1,
                Sent::Dropped => {
                    sent += 1;
                    dropped += 1;
                    thread::yield_now();
                }
                Sent::Full => worker.wait(),
                Sent::Stopped => break,
            }
            worker.give_way();
        }
        // Wait until all packets have returned, unless the run was stopped.
        worker.flush();
        (sent, dropped)
    }
}

/// Pairs each of `designs` with both kinds of behaviour: the design's original one, and that of
/// Onramp.
fn designs(designs: impl Iterator<Item = Design>) -> impl Iterator<Item = (Design, Manners)> {
    designs.flat_map(|design| Manners::ALL.iter().map(move |manners| (design, *manners)))
}

fn race(design: Design, qdisc: &str, race: Race) -> (Outcome, Vec<(u64, u64)>) {
    race_with(Memory::Pool, design, qdisc, race)
}

fn race_with(
    memory: Memory,
    design: Design,
    qdisc: &str,
    race: Race,
) -> (Outcome, Vec<(u64, u64)>) {
    let seen = Seen::default();
    let info = DeviceInfo::new("recorder".to_owned(), 1_514);
    let device = Recorder { info, seen: Arc::clone(&seen) };
    let tree = onramp_core::Setup::of(qdisc.parse().expect("a qdisc"));
    let devices: Vec<Box<dyn Device>> = vec![Box::new(device)];
    let manners = race.manners;
    let behind = Behind { tree: &tree, devices, credits: None, memory, manners, timed: true };
    let threads = race.threads;
    let opened = design.open(threads, behind, Some(Arc::clone(&seen)), race);
    let outcome = opened.expect("it opens");
    let seen = std::mem::take(&mut *seen.lock());
    (outcome, seen)
}

/// Asserts that no packet is missing, and that each thread's packets left in the order in which the
/// thread sent them.
fn assert_conforms(design: Design, outcome: &Outcome, seen: &[(u64, u64)]) {
    let name = design.name();
    let submitted: u64 = outcome.submitted.iter().sum();
    let dropped = outcome.at_the_door + outcome.account.dropped.values().sum::<u64>();
    assert_eq!(outcome.account.held, 0, "{name}");
    assert_eq!(submitted, outcome.account.sent + dropped, "{name}");
    assert_eq!(seen.len() as u64, outcome.account.sent, "{name}");
    for (thread, submitted) in (0_u64..).zip(&outcome.submitted) {
        let numbers: Vec<u64> =
            seen.iter().filter(|one| one.0 == thread).map(|one| one.1).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "{name}: thread {thread} was reordered");
        if dropped == 0 {
            assert_eq!(numbers.len() as u64, *submitted, "{name}: thread {thread}");
        }
    }
}

#[test]
fn nothing_is_lost_or_reordered() {
    for (design, manners) in designs(Design::every()) {
        // A ticket lock goes to the thread that has waited longest. If that thread is not running,
        // all threads wait until the scheduler runs it, so each thread sends only a few packets.
        let each = if design == Design::Ticket { 40 } else { 1_500 };
        let run = Race { manners, threads: 5, each, stop_after: u64::MAX };
        let (outcome, seen) = race(design, "pfifo limit 100000", run);
        assert_eq!(outcome.submitted, [each; 5], "{}", design.name());
        assert_conforms(design, &outcome, &seen);
    }
}

#[test]
fn nothing_is_lost_when_it_is_time_to_stop() {
    for (design, manners) in designs(Design::every()) {
        for qdisc in ["pfifo limit 100000", "pfifo limit 20", "fq"] {
            let stop_after = if design == Design::Ticket { 5 } else { 200 };
            let run = Race { manners, threads: 6, each: u64::MAX, stop_after };
            let (outcome, seen) = race(design, qdisc, run);
            assert_conforms(design, &outcome, &seen);
        }
    }
}

/// With packets from the heap instead of pools, the designs without qdisc and device lose no
/// packet, and credits return to the senders: each of 70 senders sends more packets than it has
/// credits.
#[test]
fn packets_from_the_heap_are_not_lost_either() {
    for (design, manners) in designs(Design::every().filter(|design| design.is_peer())) {
        let run = Race { manners, threads: 70, each: 200, stop_after: u64::MAX };
        let (outcome, seen) = race_with(Memory::Malloc, design, "pfifo", run);
        assert_eq!(outcome.submitted, [200; 70], "{}", design.name());
        assert_conforms(design, &outcome, &seen);
    }
}

/// `fq` paces the packets of two senders, and both wait until their packets have left. With every
/// design, some thread must run `fq` when the next packet may leave, although no thread sends then.
#[test]
fn paced_packets_leave_though_senders_wait_for_them() {
    for (design, manners) in designs(Design::ALL.iter().chain(Design::OTHERS).copied()) {
        // A packet has 106 bytes and takes 53 µs at 16 Mbit/s, so the 20 packets of each sender
        // take about 1 ms.
        let run = Race { manners, threads: 2, each: 20, stop_after: u64::MAX };
        let qdisc = "fq maxrate 16mbit quantum 256 initial_quantum 256 timer_slack 0";
        let (outcome, seen) = race(design, qdisc, run);
        assert_eq!(outcome.submitted, [20; 2], "{}", design.name());
        assert_conforms(design, &outcome, &seen);
    }
}

fn plan(designs: &[Design]) -> Plan {
    Plan {
        designs: designs.to_vec(),
        threads: vec![3],
        queues: 1,
        qdisc: "pfifo".parse().expect("a qdisc"),
        manners: vec![Manners::Equal],
        device_ns: 0,
        pin: false,
        window: Duration::from_millis(20),
        rounds: 1,
        load: Load::Stream,
        credits: vec![None],
        memory: vec![Memory::Pool],
    }
}

/// Returns the settings of a measurement of the bare queue `floor`. In such a measurement there is
/// no device that counts packets.
fn floor() -> Measurement {
    let (design, manners, memory) = (Design::Floor, Manners::Equal, Memory::Pool);
    Measurement { design, manners, threads: 1, credits: None, memory }
}

/// A trial that has two queues, pinned threads, a slow device and transactions yields all figures.
#[test]
fn a_trial_of_everything() {
    let mut plan = plan(Design::ALL);
    plan.manners = Manners::ALL.to_vec();
    (plan.queues, plan.device_ns, plan.pin, plan.load) = (2, 100, true, Load::Rr(8));
    let (rows, told) = Steps::whole(|steps| super::run(&plan, steps));
    assert_eq!(told, 4 * Design::ALL.len());
    let names: Vec<_> = rows.iter().map(|row| (row.manners, row.design)).collect();
    let of = |manners: Manners| Design::ALL.iter().map(move |design| (manners, *design));
    assert_eq!(names, Manners::ALL.iter().copied().flat_map(of).collect::<Vec<_>>());
    for row in rows {
        let name = row.design.name();
        // The numbers of packets and of waits depend on the scheduler, so this test does not check
        // them.
        assert!(row.packets_per_second().is_some_and(|rate| rate.min > 0.0), "{name}");
        let known = |lock: &LockRow| LOCKS.contains(&lock.name.as_str());
        assert!(row.locks.iter().all(known), "{name}");
        let packets = &row.packets;
        assert!(packets.taken >= packets.allocated && packets.repeated.is_some(), "{name}");
        assert!(packets.freed >= packets.foreign.max(packets.batches), "{name}");
        // The three threads have at most 24 packets in flight, a burst of 8 each. If they took more
        // packets than that, earlier ones must have been freed and returned.
        let home = packets.taken <= 24 || packets.freed > 0 && packets.batches > 0;
        assert!(home, "{name}: {packets:?}");
        if row.design.is_product() {
            assert!(row.locks.is_empty(), "nobody waits for a lock");
        }
    }
}

/// With every design, packets leave even if each sender has few credits, or only one.
#[test]
fn few_credits_are_enough() {
    let plan = Plan { window: Duration::from_millis(5), ..plan(&[]) };
    for (design, manners) in designs(Design::every()) {
        for (threads, credits) in [(1, 1), (1, 2), (1, 16), (2, 1), (2, 16)] {
            let memory = Memory::Pool;
            let cell = Measurement { design, manners, threads, credits: Some(credits), memory };
            let trial = trial::run(&plan, cell, false).expect("packets come out");
            assert!(trial.sent > 0, "{cell}");
        }
    }
}

/// A trial fails if its path refuses every packet, so that no packet leaves in the measured window.
#[test]
fn a_trial_in_which_nothing_comes_out_fails() {
    struct Wall;
    struct End;
    impl Path for Wall {
        type Worker<'a> = End;
        fn worker<'a>(&'a self, _seat: &'a Seat<'a>) -> End {
            End
        }
        fn sent(&self) -> Option<u64> {
            Some(7)
        }
        fn finish(&mut self) -> Account {
            Account::default()
        }
    }
    impl Worker for End {
        fn send(&mut self, _payload: &[u8]) -> Sent {
            Sent::Full
        }
        fn wait(&mut self) {
            thread::yield_now();
        }
        fn flush(&mut self) {}
    }
    let cell = Measurement { threads: 2, credits: Some(16), ..floor() };
    let error =
        trial::of_path(&plan(&[]), cell, Duration::ZERO, Wall).expect_err("nothing comes out");
    let told = error.to_string();
    assert!(
        told.contains("no packet left the device: floor with 2 threads, equal manners, 16 credits"),
        "{told}"
    );
}

/// A trial fails if the path loses a packet, or if the path reports at the end that it still holds
/// a packet.
#[test]
fn a_trial_whose_packets_do_not_add_up_fails() {
    struct Lossy {
        count: Counter,
        held: u64,
    }
    /// A sender's end of the path `Lossy`, and the number of packets that the sender submitted.
    struct End<'a>(&'a Lossy, u64);
    impl Path for Lossy {
        type Worker<'a> = End<'a>;
        fn worker<'a>(&'a self, _seat: &'a Seat<'a>) -> End<'a> {
            End(self, 0)
        }
        fn sent(&self) -> Option<u64> {
            Some(self.count.get())
        }
        fn finish(&mut self) -> Account {
            Account { sent: self.count.get(), held: self.held, ..Account::default() }
        }
    }
    impl Worker for End<'_> {
        fn send(&mut self, _payload: &[u8]) -> Sent {
            // If `held` is 0, count only every second packet as sent, so that the others seem lost.
            // Otherwise count all, so that the only error is the packet that the path still holds.
            self.1 += 1;
            self.0.count.add(u64::from(self.0.held > 0 || self.1.is_multiple_of(2)));
            Sent::Staged
        }
        fn wait(&mut self) {}
        fn flush(&mut self) {}
    }
    for held in [0, 1] {
        let lossy = Lossy { count: Counter::new(), held };
        let error = trial::of_path(&plan(&[]), floor(), PATIENCE, lossy).expect_err("it lies");
        let told = error.to_string();
        assert!(told.contains("were lost or duplicated") && told.contains("submitted"), "{told}");
    }
}

#[test]
fn every_name_is_that_of_its_design() {
    for design in Design::every() {
        assert_eq!(Design::named(design.name()), Some(design));
    }
    assert_eq!(Design::named("fifo"), None);
}
