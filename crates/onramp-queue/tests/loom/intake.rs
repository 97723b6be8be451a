//! Models of the intake, and of how its value (a qdisc and a device) passes from one owner to the
//! next.

use loom::sync::Arc;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use loom::sync::atomic::{AtomicBool, AtomicU32};
use loom::thread::yield_now;
use onramp_queue::{Full, Intake, Owner, Packet, PacketList, Pushed, Taken};

use crate::{check, join, spawn};

/// A port for tests: an intake whose value is the list of the sent packets' cookies. (A cookie is a
/// number by which a test tells packets apart.)
type Port = Intake<Vec<u64>>;

fn packet(cookie: u64) -> Packet {
    let mut pkt = Packet::new(64);
    pkt.cookie = cookie;
    pkt
}

fn packets(cookies: &[u64]) -> PacketList {
    cookies.iter().copied().map(packet).collect()
}

fn cookies(list: PacketList) -> Vec<u64> {
    list.map(|pkt| pkt.cookie).collect()
}

/// Pushes packets. If the push makes this thread the owner, does the owner's work.
fn send(port: &Port, list: PacketList) {
    match port.push(list) {
        Ok(Pushed::Staged { .. }) => {}
        Ok(Pushed::Owner { mut owner, fresh }) => {
            owner.extend(cookies(fresh));
            run(owner);
        }
        Err(Full(_)) => panic!("the model stays below the cap"),
    }
}

/// Works as owner until no packet waits.
fn run(mut owner: Owner<'_, Vec<u64>>) {
    loop {
        let list = owner.take();
        owner.extend(cookies(list));
        match owner.leave_idle() {
            Ok(()) => return,
            Err(still) => owner = still,
        }
    }
}

/// Checks that no packet waits in the port and that no thread owns the port. Returns the cookies
/// (the numbers that the test gave to the packets) of the packets sent.
fn at_rest(port: &Port) -> Vec<u64> {
    assert_eq!(port.waiting(), 0, "nothing is left behind");
    let owner = port.own().expect("nobody owns it");
    owner.clone()
}

fn in_order(sent: &[u64], of: &[u64]) {
    let seen: Vec<u64> = sent.iter().copied().filter(|cookie| of.contains(cookie)).collect();
    assert_eq!(seen, of, "each once, in the order sent");
}

/// Two senders push into an idle intake. Each packet is taken once, the packets of each sender in
/// order, and by one owner at a time.
///
/// Must fail with each of these mutants: intake-idle-acquire, intake-push-release,
/// intake-take-acquire, intake-leave-idle-release, intake-leave-idle-unchecked,
/// list-restore-linked.
#[test]
fn senders_race_for_an_idle_intake() {
    check(3, || {
        let port = Arc::new(Port::new(Vec::new(), 8, 2));
        let other = port.clone();
        let thread = spawn(move || {
            send(&other, packets(&[10]));
            send(&other, packets(&[11, 12]));
        });
        send(&port, packets(&[20]));
        send(&port, packets(&[21]));
        thread.join().unwrap();
        let sent = at_rest(&port);
        assert_eq!(sent.len(), 5);
        in_order(&sent, &[10, 11, 12]);
        in_order(&sent, &[20, 21]);
    });
}

/// Three senders push one packet each into an idle intake. Each packet is sent once.
///
/// Must fail with each of these mutants: intake-push-release, intake-take-acquire,
/// intake-leave-idle-unchecked.
#[test]
fn three_senders() {
    check(2, || {
        let port = Arc::new(Port::new(Vec::new(), 8, 2));
        let threads = [10, 20].map(|cookie| {
            let port = port.clone();
            spawn(move || send(&port, packets(&[cookie])))
        });
        send(&port, packets(&[30]));
        join(threads);
        let mut sent = at_rest(&port);
        sent.sort_unstable();
        assert_eq!(sent, [10, 20, 30]);
    });
}

/// The intake has room for one more packet, and two senders push one packet each. One packet is
/// accepted, and the other sender gets back exactly its own packet.
///
/// Must fail with each of these mutants: list-restore-linked.
#[test]
fn the_cap_is_exact() {
    check(3, || {
        let port = Arc::new(Port::new(Vec::new(), 2, 2));
        let owner = port.own().unwrap();
        assert!(matches!(port.push(packets(&[1])), Ok(Pushed::Staged { .. })));
        let staged = |port: &Port, cookie| match port.push(packets(&[cookie])) {
            Ok(_) => 1,
            Err(Full(list)) => {
                assert_eq!((list.len(), cookies(list)), (1, vec![cookie]));
                0
            }
        };
        let other = port.clone();
        let thread = spawn(move || staged(&other, 10));
        let mine = staged(&port, 20);
        assert_eq!(mine + thread.join().unwrap(), 1);
        run(owner);
        assert_eq!(at_rest(&port).len(), 2);
    });
}

/// A thread that becomes the owner by calling `own` sees everything that the previous owner did.
///
/// Must fail with each of these mutants: intake-own-acquire, intake-leave-idle-release.
#[test]
fn own_follows_an_owner() {
    check(3, || {
        let port = Arc::new(Port::new(Vec::new(), 8, 2));
        let other = port.clone();
        let thread = spawn(move || send(&other, packets(&[10])));
        if let Some(owner) = port.own() {
            run(owner);
        }
        thread.join().unwrap();
        assert_eq!(at_rest(&port), [10]);
    });
}

/// A thread that becomes the owner of an idle intake sees everything that the previous owner did,
/// and what is pushed meanwhile leaves as well. Of an intake that is not idle, nobody becomes the
/// owner in this way.
///
/// Must fail with each of these mutants: intake-own-idle-acquire, intake-leave-idle-release.
#[test]
fn own_idle_follows_an_owner() {
    check(3, || {
        let port = Arc::new(Port::new(Vec::new(), 8, 2));
        let other = port.clone();
        let thread = spawn(move || send(&other, packets(&[10])));
        if let Some(mut owner) = port.own_idle() {
            assert!(port.own_idle().is_none());
            owner.push(20);
            run(owner);
        }
        thread.join().unwrap();
        let sent = at_rest(&port);
        assert!(sent == [10] || sent == [10, 20] || sent == [20, 10], "{sent:?}");
    });
}

/// An owner calls the runner, and then leaves the intake busy (pushes then only stage packets).
/// After the runner's visit, all packets have been sent, once and in order.
///
/// Must fail with each of these mutants: intake-leave-busy-release, intake-leave-busy-empty,
/// intake-own-acquire.
#[test]
fn a_runner_takes_over() {
    check(3, || {
        let port = Arc::new(Port::new(Vec::new(), 8, 8));
        let told = Arc::new(AtomicBool::new(false));
        let waker = spawn({
            let (port, told) = (port.clone(), told.clone());
            move || {
                while !told.load(Acquire) {
                    yield_now();
                }
                loop {
                    if let Some(owner) = port.own() {
                        return run(owner);
                    }
                    yield_now();
                }
            }
        });
        let sender = spawn({
            let port = port.clone();
            move || send(&port, packets(&[10, 11]))
        });
        if let Some(mut owner) = port.own() {
            told.store(true, Release);
            let list = owner.take();
            owner.extend(cookies(list));
            owner.leave_busy();
        } else {
            told.store(true, Release);
        }
        sender.join().unwrap();
        waker.join().unwrap();
        assert_eq!(at_rest(&port), [10, 11]);
    });
}

/// One owner takes the packets, puts only the newest one in order and leaves; the next owner puts
/// the others in order, while a sender pushes. Each packet is taken once, and in order.
///
/// Must fail with each of these mutants: intake-own-acquire, intake-leave-busy-release,
/// intake-leave-busy-empty.
#[test]
fn owners_share_the_ordering() {
    check(3, || {
        let port = Arc::new(Intake::new((Vec::new(), Taken::default()), 8, 8));
        let push = |port: &Intake<(Vec<u64>, Taken)>, cookie: u64| {
            let Ok(Pushed::Staged { .. }) = port.push(packets(&[cookie])) else {
                panic!("the intake is owned or busy");
            };
        };
        let mut owner = port.own().expect("nobody owns it");
        (10..12).for_each(|cookie| push(&port, cookie));
        let sender = spawn({
            let port = port.clone();
            move || push(&port, 12)
        });
        let next = spawn({
            let port = port.clone();
            move || {
                loop {
                    if let Some(mut owner) = port.own() {
                        let (sent, taken) = &mut *owner;
                        sent.extend(cookies(std::mem::take(taken).ordered()));
                        return owner.leave_busy();
                    }
                    yield_now();
                }
            }
        });
        let mut taken = owner.take_unordered();
        taken.order(1);
        owner.1 = taken;
        owner.leave_busy();
        sender.join().unwrap();
        next.join().unwrap();
        let mut owner = port.own().expect("nobody owns it");
        let rest = owner.take();
        let (mut sent, taken) = std::mem::take(&mut *owner);
        sent.extend(cookies(taken.ordered()));
        sent.extend(cookies(rest));
        assert_eq!(sent, [10, 11, 12]);
    });
}

/// An owner has left the intake busy (pushes only stage packets, unless a batch waits; a batch is
/// two packets in this model). There is no runner. The push that completes a batch makes its thread
/// the owner, and this thread sees all packets and what the previous owner did.
///
/// Must fail with each of these mutants: intake-push-acquire, intake-push-release,
/// intake-push-never-owns.
#[test]
fn a_batch_is_taken_by_who_completes_it() {
    check(3, || {
        let port = Arc::new(Port::new(Vec::new(), 8, 2));
        let other = port.clone();
        let thread = spawn(move || {
            let mut owner = other.own().unwrap();
            owner.push(1);
            owner.leave_busy();
            send(&other, packets(&[10]));
        });
        while !port.is_busy() {
            yield_now();
        }
        send(&port, packets(&[20]));
        thread.join().unwrap();
        let mut sent = at_rest(&port);
        assert_eq!(sent.len(), 3);
        assert_eq!(sent[0], 1);
        sent.sort_unstable();
        assert_eq!(sent, [1, 10, 20]);
    });
}

/// An owner leaves the intake busy (pushes then only stage packets) while two threads push. Either
/// one of them becomes the owner, or all packets wait for the next owner.
///
/// Must fail with each of these mutants: intake-leave-busy-release, intake-push-acquire,
/// intake-leave-busy-empty.
#[test]
fn an_owner_leaves_busy_under_pushes() {
    check(2, || {
        let port = Arc::new(Port::new(Vec::new(), 8, 2));
        let owner = port.own().unwrap();
        let threads = [10, 20].map(|cookie| {
            let port = port.clone();
            spawn(move || send(&port, packets(&[cookie])))
        });
        let mut owner = owner;
        owner.push(1);
        owner.leave_busy();
        join(threads);
        // Packets that were pushed before the owner left wait for the runner. In this model, this
        // thread acts as the runner.
        run(port.own().expect("whoever took the batch has left"));
        let mut sent = at_rest(&port);
        sent.sort_unstable();
        assert_eq!(sent, [1, 10, 20]);
    });
}

/// A thread that finds the intake quiet (no owner, and no packet waiting) sees what the last owner
/// wrote to a counter beside the intake, if that owner left the intake idle. (The owner writes to
/// the counter twice. Once a thread has yielded, loom no longer shows it values from before the
/// yield, so an outdated value must come from the first write.)
///
/// Must fail with each of these mutants: intake-quiet-acquire, intake-leave-idle-release.
#[test]
fn quiet_means_that_the_books_are_done() {
    quiet(|owner| assert!(owner.leave_idle().is_ok(), "nothing waits"));
}

/// A thread that finds the intake quiet (no owner, and no packet waiting) sees what the last owner
/// wrote to a counter beside the intake, if that owner left the intake busy.
///
/// Must fail with each of these mutants: intake-quiet-acquire, intake-leave-busy-release.
#[test]
fn quiet_and_busy_means_that_the_books_are_done() {
    quiet(|owner| owner.leave_busy());
}

fn quiet(leave: fn(Owner<'_, Vec<u64>>)) {
    check(3, move || {
        let port = Arc::new(Port::new(Vec::new(), 8, 8));
        port.own().expect("nobody owns it").leave_busy();
        assert!(matches!(port.push(packets(&[10, 11])), Ok(Pushed::Staged { .. })));
        let taken = Arc::new(AtomicU32::new(0));
        let thread = spawn({
            let (port, taken) = (port.clone(), taken.clone());
            move || {
                let mut owner = port.own().expect("nobody else wants it");
                for (_packet, number) in owner.take().zip(1..) {
                    taken.store(number, Relaxed);
                }
                leave(owner);
            }
        });
        if port.is_quiet() {
            assert_eq!(taken.load(Relaxed), 2, "they were taken, and that was written down");
        }
        thread.join().unwrap();
        assert!(port.is_quiet());
    });
}

/// An owner has left the intake busy (pushes only stage packets), and only the runner takes
/// packets. A push that finds no packet waiting calls the runner. At its first visit, the runner
/// takes nothing and, because packets still wait, makes itself come again. In the end it has taken
/// both packets.
///
/// Must fail with each of these mutants: intake-push-never-first.
#[test]
fn a_runner_is_called_for_what_waits() {
    check(3, || {
        let port = Arc::new(Port::new(Vec::new(), 8, 8));
        port.own().unwrap().leave_busy();
        let called = Arc::new(AtomicBool::new(false));
        let waker = spawn({
            let (port, called) = (port.clone(), called.clone());
            move || {
                let (mut takes, mut taken) = (false, 0);
                while taken < 2 {
                    if !called.swap(false, AcqRel) {
                        loom::thread::park();
                        continue;
                    }
                    let mut owner = port.own().expect("it alone owns it");
                    if takes {
                        let list = owner.take();
                        taken += list.len();
                        owner.extend(cookies(list));
                    }
                    takes = true;
                    if owner.waiting() > 0 {
                        called.swap(true, AcqRel);
                    }
                    owner.leave_busy();
                }
            }
        });
        let push =
            |port: &Port, called: &AtomicBool, cookie, thread: &loom::thread::Thread| match port
                .push(packets(&[cookie]))
            {
                Ok(Pushed::Staged { first: true }) => {
                    called.swap(true, AcqRel);
                    thread.unpark();
                }
                Ok(Pushed::Staged { first: false }) => {}
                other => panic!("it only stages: {other:?}"),
            };
        let (theirs, calls, thread) = (port.clone(), called.clone(), waker.thread().clone());
        let other = spawn(move || push(&theirs, &calls, 10, &thread));
        push(&port, &called, 20, waker.thread());
        other.join().unwrap();
        waker.join().unwrap();
        assert_eq!(at_rest(&port).len(), 2);
    });
}
