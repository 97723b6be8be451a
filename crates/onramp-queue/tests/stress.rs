//! Stress tests: many threads make random choices at the same time, and every packet is accounted
//! for.
//!
//! These tests also run under miri and ThreadSanitizer: `cargo xtask miri`, `cargo xtask tsan`.

use std::backtrace::Backtrace;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::mpsc;
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use onramp_queue::{
    Armed, Bell, Credits, DropReason, Full, Intake, Owner, Packet, PacketList, Pool, Pushed,
};

#[derive(Clone, Copy)]
struct Run {
    senders: u64,
    /// Number of pools that each sender uses, one after the other.
    lives: u64,
    packets_per_life: u64,
    credits: u32,
    cap: u16,
    batch: u16,
    seed: u64,
}

/// A random number generator (xorshift64*): the same seed gives the same choices.
struct Chance(u64);

impl Chance {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % bound
    }

    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// The value behind the intake, a queue and a device in one. Its counts must be exact although no
/// lock protects them.
struct Line {
    held: PacketList,
    /// For each sender, the number that its next packet must have (packets keep their order).
    next: Vec<u64>,
    sent: u64,
    dropped: u64,
    chance: Chance,
    freeing: Vec<mpsc::Sender<PacketList>>,
}

struct Port {
    intake: Intake<Line>,
    told: AtomicBool,
    waker: thread::Thread,
}

impl Line {
    fn enqueue(&mut self, list: PacketList) {
        for mut pkt in list {
            let sender = usize::try_from(pkt.flow).unwrap();
            assert_eq!(pkt.cookie, self.next[sender], "sender {sender}: order, and no gap");
            assert_eq!(pkt.payload(), pkt.cookie.to_le_bytes());
            self.next[sender] += 1;
            if self.chance.once_in(16) {
                pkt.drop_reason = Some(DropReason::Overlimit);
                self.dropped += 1;
            } else {
                self.sent += 1;
            }
            self.held.push_back(pkt);
        }
    }

    /// Removes at most `count` packets from the queue and frees them, in this thread or in a thread
    /// that only frees packets.
    fn transmit(&mut self, count: u64) {
        let mut done = PacketList::new();
        for _ in 0..count {
            done.extend(self.held.pop_front());
        }
        let at = self.chance.below(self.freeing.len() as u64 + 1);
        if let Some(freer) = self.freeing.get(usize::try_from(at).unwrap()) {
            freer.send(done).unwrap();
        }
    }
}

impl Port {
    /// Does the owner's work until no packet waits, or until a random choice makes the owner leave
    /// the intake busy (pushes then only stage packets).
    fn run(&self, mut owner: Owner<'_, Line>, fresh: PacketList) {
        owner.enqueue(fresh);
        loop {
            let list = owner.take();
            owner.enqueue(list);
            if owner.chance.once_in(3) {
                let some = owner.chance.below(8);
                owner.transmit(some);
                self.told.store(true, SeqCst);
                self.waker.unpark();
                owner.leave_busy();
                return;
            }
            let all = u64::from(owner.held.len());
            owner.transmit(all);
            match owner.leave_idle() {
                Ok(()) => return,
                Err(still) => owner = still,
            }
        }
    }

    /// Does the runner's work once: tries until it owns the intake, then works until it can leave
    /// the intake idle.
    fn keep(&self) {
        let mut owner = loop {
            match self.intake.own() {
                Some(owner) => break owner,
                None => thread::yield_now(),
            }
        };
        loop {
            let list = owner.take();
            owner.enqueue(list);
            let all = u64::from(owner.held.len());
            owner.transmit(all);
            match owner.leave_idle() {
                Ok(()) => return,
                Err(still) => owner = still,
            }
        }
    }
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// How many of its packets a sender has submitted, and what became of them.
#[derive(Default)]
struct Books {
    submitted: u64,
    sent: u64,
    dropped: u64,
    /// Packets of unknown fate: they were still out when their pool was dropped.
    unknown: u64,
}

struct Sender<'a> {
    port: &'a Port,
    id: u64,
    run: Run,
    chance: Chance,
    waker: Waker,
    books: Books,
}

impl Sender<'_> {
    fn live(&mut self) {
        let mut pool = Pool::new(Credits { packets: self.run.credits, bytes: 100_000 });
        let until = self.books.submitted + self.run.packets_per_life;
        while self.books.submitted < until {
            let want = (1 + self.chance.below(4)).min(until - self.books.submitted);
            let mut list = PacketList::new();
            while u64::from(list.len()) < want {
                let cookie = self.books.submitted + u64::from(list.len());
                match self.packet(&mut pool, cookie) {
                    Some(pkt) => list.push_back(pkt),
                    None if list.is_empty() => self.wait(&mut pool),
                    None => break,
                }
            }
            self.push(&mut pool, list);
            if self.chance.once_in(8) {
                self.reclaim(&mut pool);
            }
        }
        // A sender whose number (`id`) is even waits until all of its packets are home. Packets of
        // the other senders may outlive their pool.
        while self.id.is_multiple_of(2) && pool.out() > 0 {
            self.wait(&mut pool);
        }
        self.reclaim(&mut pool);
        self.books.unknown += u64::from(pool.out());
    }

    fn packet(&mut self, pool: &mut Pool, cookie: u64) -> Option<Packet> {
        let mut pkt = pool.take(8)?;
        (pkt.flow, pkt.cookie) = (self.id, cookie);
        pkt.set_payload(&cookie.to_le_bytes());
        pkt.set_submitted(true);
        Some(pkt)
    }

    fn push(&mut self, pool: &mut Pool, mut list: PacketList) {
        loop {
            let count = u64::from(list.len());
            match self.port.intake.push(list) {
                Ok(pushed) => {
                    self.books.submitted += count;
                    if let Pushed::Owner { owner, fresh } = pushed {
                        self.port.run(owner, fresh);
                    }
                    return;
                }
                Err(Full(back)) => {
                    assert_eq!(u64::from(back.len()), count);
                    list = back;
                    self.reclaim(pool);
                    thread::yield_now();
                }
            }
        }
    }

    /// Waits for packets to come home, and takes them in.
    fn wait(&mut self, pool: &mut Pool) {
        let need = 1 + u32::try_from(self.chance.below(u64::from(pool.out()))).unwrap();
        loop {
            match pool.arm(&self.waker, need) {
                Armed::Ready => break,
                Armed::Armed if self.chance.once_in(32) => pool.disarm(),
                Armed::Armed => thread::park(),
                Armed::Busy => thread::yield_now(),
            }
        }
        assert!(self.reclaim(pool) >= need);
    }

    fn reclaim(&mut self, pool: &mut Pool) -> u32 {
        let books = &mut self.books;
        pool.reclaim(|fate| match fate.drop_reason {
            None => books.sent += 1,
            Some(_) => books.dropped += 1,
        })
    }
}

/// Aborts the process at the first failed assertion, because other threads may wait for the failed
/// thread for ever.
fn fail_fast() {
    std::panic::set_hook(Box::new(|info| {
        // `eprintln!` would not do, because the test harness captures its output.
        let _ = writeln!(std::io::stderr(), "{info}\n{}", Backtrace::force_capture());
        std::process::abort();
    }));
}

/// Runs the stress test with the parameters in `run`, and compares the counts of all threads.
fn stress(run: Run) {
    fail_fast();
    let (freeing, freers): (Vec<_>, Vec<_>) = (0..2).map(|_| mpsc::channel()).unzip();
    let line = Line {
        held: PacketList::new(),
        next: vec![0; usize::try_from(run.senders).unwrap()],
        sent: 0,
        dropped: 0,
        chance: Chance::new(run.seed),
        freeing,
    };
    let intake = Intake::new(line, run.cap, run.batch);
    let port = &Port { intake, told: AtomicBool::new(false), waker: thread::current() };
    let send = |id| {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let chance = Chance::new(run.seed + 1 + id);
        let mut sender = Sender { port, id, run, chance, waker, books: Books::default() };
        (0..run.lives).for_each(|_| sender.live());
        port.waker.unpark();
        sender.books
    };
    thread::scope(|scope| {
        for freer in freers {
            scope.spawn(move || freer.into_iter().for_each(drop::<PacketList>));
        }
        let senders: Vec<_> = (0..run.senders).map(|id| scope.spawn(move || send(id))).collect();
        while !senders.iter().all(thread::ScopedJoinHandle::is_finished) {
            thread::park_timeout(Duration::from_millis(1));
            if port.told.swap(false, SeqCst) {
                port.keep();
            }
        }
        port.keep();
        let books = senders.into_iter().map(|sender| sender.join().unwrap());
        balance(run, books, port.intake.own().unwrap());
    });
}

fn balance(run: Run, books: impl Iterator<Item = Books>, mut line: Owner<'_, Line>) {
    let mut total = Books::default();
    for (id, books) in books.enumerate() {
        assert_eq!(books.submitted, run.lives * run.packets_per_life, "sender {id}");
        assert_eq!(books.submitted, line.next[id], "sender {id}: all were enqueued");
        assert_eq!(books.submitted, books.sent + books.dropped + books.unknown, "sender {id}");
        total.submitted += books.submitted;
        total.sent += books.sent;
        total.dropped += books.dropped;
        total.unknown += books.unknown;
    }
    assert_eq!((line.waiting(), line.held.len()), (0, 0));
    assert_eq!(total.submitted, line.sent + line.dropped);
    assert!(total.sent <= line.sent && total.dropped <= line.dropped);
    assert_eq!(line.sent + line.dropped - total.sent - total.dropped, total.unknown);
    // Close the channels, which ends the threads that free packets.
    line.freeing.clear();
}

#[test]
fn a_few_busy_senders() {
    let (senders, lives, packets_per_life) = if cfg!(miri) { (3, 2, 24) } else { (6, 60, 3_000) };
    stress(Run { senders, lives, packets_per_life, credits: 7, cap: 9, batch: 4, seed: 1 });
}

#[test]
fn many_senders() {
    let (senders, lives, packets_per_life) = if cfg!(miri) { (5, 1, 10) } else { (240, 5, 200) };
    stress(Run { senders, lives, packets_per_life, credits: 16, cap: 200, batch: 32, seed: 2 });
}

#[test]
fn one_packet_each() {
    let (senders, lives, packets_per_life) = if cfg!(miri) { (3, 2, 4) } else { (8, 1_000, 5) };
    stress(Run { senders, lives, packets_per_life, credits: 1, cap: 1, batch: 1, seed: 3 });
}

/// Pushes packets from the heap, whose memory the allocator soon reuses at the same address.
#[test]
fn addresses_that_come_again() {
    let (senders, packets) = if cfg!(miri) { (3, 16) } else { (6, 20_000_u64) };
    fail_fast();
    let intake = Intake::new(0_u64, 4, 2);
    let push = |count: u64| {
        for _ in 0..count {
            let mut list: PacketList = std::iter::once(Packet::new(1)).collect();
            loop {
                match intake.push(list) {
                    Ok(Pushed::Staged { .. }) => break,
                    Ok(Pushed::Owner { mut owner, fresh }) => {
                        *owner += u64::from(fresh.len());
                        drop(fresh);
                        break drain(owner);
                    }
                    Err(Full(back)) => list = back,
                }
                thread::yield_now();
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..senders {
            scope.spawn(|| push(packets));
        }
    });
    assert_eq!(*intake.own().unwrap(), senders * packets);
}

fn drain(mut owner: Owner<'_, u64>) {
    loop {
        let list = owner.take();
        *owner += u64::from(list.len());
        drop(list);
        match owner.leave_idle() {
            Ok(()) => return,
            Err(still) => owner = still,
        }
    }
}

/// R6, a bug of Linux (one of R1 to R8 in `onramp-core/tests/port/regressions.rs`): Linux did not
/// reset the counter of waiting packets in one step with the list of these packets, so more packets
/// than the limit could wait. The intake never holds more packets than its cap, even while the
/// owner takes packets.
#[test]
fn r6_the_cap_is_exact() {
    const CAP: u16 = 50;
    let (pushers, rounds) = if cfg!(miri) { (3, 3) } else { (8, 2_000) };
    fail_fast();
    for _ in 0..rounds {
        let intake = Intake::new((), CAP, CAP);
        let mut owner = intake.own().unwrap();
        let (taken, accepted) = thread::scope(|scope| {
            let push = || {
                let mut accepted = 0_u32;
                for _ in 0..30 {
                    match intake.push(PacketList::from_iter([Packet::new(1)])) {
                        Ok(Pushed::Staged { .. }) => accepted += 1,
                        Ok(Pushed::Owner { .. }) => panic!("it has an owner"),
                        Err(Full(_)) => {}
                    }
                    assert!(intake.waiting() <= CAP.into());
                }
                accepted
            };
            let threads: Vec<_> = (0..pushers).map(|_| scope.spawn(push)).collect();
            let mut taken = 0;
            for _ in 0..3 {
                let list = owner.take();
                assert!(list.len() <= CAP.into(), "{} of {CAP}", list.len());
                taken += list.len();
            }
            let accepted: u32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
            (taken, accepted)
        });
        // Each packet that the intake accepted was taken, or still waits. If the intake refused a
        // packet, it was full at that time, so it had accepted at least `CAP` packets.
        assert_eq!(taken + intake.waiting(), accepted);
        assert!(accepted == pushers * 30 || accepted >= CAP.into());
        drop(owner.take());
        assert!(owner.leave_idle().is_ok());
    }
}

/// State shared by a sender and by the thread that rings the sender's bell (to wake the sender).
struct Rings {
    bell: Bell,
    /// The round for which the bell was rung. Only the bell orders accesses to this number.
    asked: AtomicU64,
    seen: AtomicU64,
}

/// Senders wait for packets, or only for the bell, while another thread rings their bells. They
/// notice every ring, even while pools are dropped.
#[test]
fn every_ring_is_heard() {
    let (senders, rounds) = if cfg!(miri) { (2, 6) } else { (4, 5_000) };
    fail_fast();
    let credits = Credits { packets: 3, bytes: 1_000 };
    let mut pools: Vec<Pool> = (0..senders).map(|_| Pool::new(credits)).collect();
    let rings = |pool: &mut Pool| Rings {
        bell: pool.bell().unwrap(),
        asked: AtomicU64::new(0),
        seen: AtomicU64::new(0),
    };
    let rings: Vec<Rings> = pools.iter_mut().map(rings).collect();
    let (freeing, freer) = mpsc::channel::<Packet>();
    thread::scope(|scope| {
        scope.spawn(move || freer.into_iter().for_each(drop::<Packet>));
        for (id, (pool, rings)) in pools.drain(..).zip(&rings).enumerate() {
            let (freeing, chance) = (freeing.clone(), Chance::new(id as u64));
            scope.spawn(move || listen(pool, rings, rounds, &freeing, chance));
        }
        drop(freeing);
        for round in 1..=rounds {
            for one in &rings {
                one.asked.store(round, Relaxed);
                one.bell.ring();
            }
            while rings.iter().any(|one| one.seen.load(SeqCst) < round) {
                thread::yield_now();
            }
        }
        // A bell can also be rung when its pool is gone.
        rings.iter().for_each(|one| one.bell.ring());
    });
}

fn listen(
    mut pool: Pool,
    rings: &Rings,
    rounds: u64,
    freeing: &mpsc::Sender<Packet>,
    mut chance: Chance,
) {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    for round in 1..=rounds {
        while rings.asked.load(Relaxed) < round {
            pool.reclaim(|_| {});
            match pool.take(8) {
                Some(packet) if chance.once_in(4) => pool.take_back(packet),
                Some(packet) => freeing.send(packet).unwrap(),
                None => {}
            }
            let need = u32::try_from(chance.below(4)).unwrap();
            let armed = if need == 0 { pool.listen(&waker) } else { pool.arm(&waker, need) };
            match armed {
                Armed::Armed if chance.once_in(8) => pool.disarm(),
                Armed::Armed if chance.once_in(8) => drop(pool.forget_waker()),
                Armed::Armed => thread::park(),
                Armed::Ready => {}
                Armed::Busy => thread::yield_now(),
            }
        }
        rings.seen.store(round, SeqCst);
    }
}
