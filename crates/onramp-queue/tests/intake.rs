//! Which operations each state of the intake allows, tested with one thread at a time. `stress.rs`
//! and the loom models test several threads.

/// The attribute `#[test]` that runs a test in a simulation.
#[cfg(sim)]
#[macro_use]
extern crate onramp_simulated_test;

use onramp_queue::{Credits, Full, Intake, Owner, Packet, PacketList, Pool, Pushed};

/// A port for tests: an intake whose value is the list of the cookies that were sent.
type Port = Intake<Vec<u64>>;

fn list(cookies: impl IntoIterator<Item = u64>) -> PacketList {
    let packet = |cookie| {
        let mut pkt = Packet::new(10);
        pkt.cookie = cookie;
        pkt
    };
    cookies.into_iter().map(packet).collect()
}

fn cookies(list: PacketList) -> Vec<u64> {
    list.map(|pkt| pkt.cookie).collect()
}

fn staged(port: &Port, cookies: impl IntoIterator<Item = u64>) {
    assert!(matches!(port.push(list(cookies)), Ok(Pushed::Staged { .. })));
}

/// Pushes packets, and expects that the push makes this thread the owner.
fn owner(port: &Port, cookies: impl IntoIterator<Item = u64>) -> (Owner<'_, Vec<u64>>, PacketList) {
    match port.push(list(cookies)) {
        Ok(Pushed::Owner { owner, fresh }) => (owner, fresh),
        Ok(Pushed::Staged { .. }) => panic!("staged"),
        Err(Full(_)) => panic!("full"),
    }
}

fn refused(port: &Port, pushed: impl IntoIterator<Item = u64>) -> Vec<u64> {
    match port.push(list(pushed)) {
        Err(Full(list)) => {
            assert_eq!(list.bytes(), 10 * u64::from(list.len()));
            cookies(list)
        }
        Ok(_) => panic!("taken"),
    }
}

#[test]
fn a_push_into_an_idle_intake_makes_owner() {
    let port = Port::new(Vec::new(), 4, 2);
    assert!(!port.is_owned() && !port.is_busy());
    let (mut owner, fresh) = owner(&port, [1, 2, 3]);
    assert!(port.is_owned() && port.waiting() == 0);
    assert_eq!((fresh.len(), fresh.bytes()), (3, 30));
    assert_eq!(cookies(fresh), [1, 2, 3]);
    assert!(owner.take().is_empty());
    assert!(owner.leave_idle().is_ok());
    assert!(!port.is_owned());
}

#[test]
fn only_an_idle_intake_is_owned_as_idle() {
    let port = Port::new(Vec::new(), 4, 2);
    let owner = port.own_idle().expect("it is idle");
    assert!(port.is_owned() && port.own_idle().is_none(), "it is owned");
    staged(&port, [1]);
    let mut owner = owner.leave_idle().expect_err("a packet waits");
    assert_eq!(cookies(owner.take()), [1]);
    owner.leave_busy();
    assert!(port.own_idle().is_none(), "it is busy");
    assert!(port.own().expect("nobody owns it").leave_idle().is_ok());
    assert!(port.own_idle().expect("it is idle again").leave_idle().is_ok());
}

#[test]
fn what_waits_is_taken_oldest_first() {
    let port = Port::new(Vec::new(), 100, 2);
    let (mut owner, fresh) = owner(&port, [0]);
    drop(fresh);
    staged(&port, [1]);
    staged(&port, [2, 3, 4]);
    staged(&port, []);
    staged(&port, [5]);
    assert_eq!((port.waiting(), owner.waiting()), (5, 5));
    let taken = owner.take();
    assert_eq!((taken.len(), taken.bytes()), (5, 50));
    assert_eq!(cookies(taken), [1, 2, 3, 4, 5]);
    assert!(owner.take().is_empty());
    assert!(owner.leave_idle().is_ok());
}

#[test]
fn nobody_leaves_idle_while_packets_wait() {
    let port = Port::new(Vec::new(), 4, 2);
    let (owner, _) = owner(&port, [0]);
    staged(&port, [1]);
    let mut owner = owner.leave_idle().expect_err("a packet waits");
    assert!(port.is_owned());
    assert_eq!(cookies(owner.take()), [1]);
    assert!(owner.leave_idle().is_ok());
}

#[test]
fn the_cap_is_exact() {
    for cap in [1, 2, 7, u16::MAX] {
        let port = Port::new(Vec::new(), cap, 2);
        let mut owner = port.own().unwrap();
        let count = if cfg!(miri) { 7.min(u64::from(cap)) } else { u64::from(cap) };
        let room = u64::from(cap) - count;
        staged(&port, 0..count);
        if room == 0 {
            assert_eq!(refused(&port, [90]), [90]);
            assert_eq!(refused(&port, [90, 91, 92]), [90, 91, 92]);
        }
        assert_eq!(u64::from(port.waiting()), count);
        assert_eq!(cookies(owner.take()), (0..count).collect::<Vec<_>>());
        // When the owner has taken the packets, there is room in the intake again.
        staged(&port, [1]);
        assert_eq!(cookies(owner.take()), [1]);
        assert!(owner.leave_idle().is_ok());
    }
}

#[test]
fn a_batch_gets_in_whole_or_not_at_all() {
    let port = Port::new(Vec::new(), 4, 2);
    let mut owner = port.own().unwrap();
    staged(&port, [1, 2]);
    assert_eq!(refused(&port, [3, 4, 5]), [3, 4, 5]);
    assert_eq!(port.waiting(), 2);
    staged(&port, [3, 4]);
    assert_eq!(refused(&port, [5]), [5]);
    assert_eq!(cookies(owner.take()), [1, 2, 3, 4]);
    assert!(owner.leave_idle().is_ok());
}

#[test]
fn an_owner_may_take_more_than_the_cap_with_it() {
    let port = Port::new(Vec::new(), 2, 2);
    let (owner, fresh) = owner(&port, 0..5);
    assert_eq!(cookies(fresh), [0, 1, 2, 3, 4], "nothing of it waits");
    assert!(owner.leave_idle().is_ok());
}

#[test]
fn with_no_room_nothing_waits() {
    let port = Port::new(Vec::new(), 0, 2);
    let (owner, fresh) = owner(&port, [0]);
    assert_eq!(cookies(fresh), [0]);
    assert_eq!(refused(&port, [1]), [1]);
    staged(&port, []);
    assert!(owner.leave_idle().is_ok());
}

#[test]
fn own_takes_what_nobody_owns() {
    let port = Port::new(Vec::new(), 4, 2);
    let owner = port.own().expect("idle");
    assert!(port.own().is_none(), "owned");
    owner.leave_busy();
    let owner = port.own().expect("busy");
    assert!(port.own().is_none(), "owned");
    assert!(owner.leave_idle().is_ok());
    assert!(!port.is_busy() && !port.is_owned());
}

#[test]
fn busy_collects_until_a_batch_is_whole() {
    let port = Port::new(Vec::new(), 10, 3);
    port.own().unwrap().leave_busy();
    assert!(port.is_busy() && !port.is_owned());
    staged(&port, [1]);
    staged(&port, [2]);
    let (mut owner, fresh) = owner(&port, [3]);
    assert!(fresh.is_empty(), "it waits in its place");
    assert!(port.is_owned());
    staged(&port, [4]);
    assert_eq!(cookies(owner.take()), [1, 2, 3, 4]);
    assert!(!port.is_busy(), "to take is to take the batch's reason away");
    assert!(owner.leave_idle().is_ok());
    // The intake is idle again, so the next push makes its thread the owner at once.
    let (owner, fresh) = self::owner(&port, [5]);
    assert_eq!(cookies(fresh), [5]);
    assert!(owner.leave_idle().is_ok());
}

#[test]
fn a_chain_may_complete_a_batch_alone() {
    let port = Port::new(Vec::new(), 10, 3);
    port.own().unwrap().leave_busy();
    let (mut owner, fresh) = owner(&port, 1..=4);
    assert!(fresh.is_empty());
    assert_eq!(cookies(owner.take()), [1, 2, 3, 4]);
    owner.leave_busy();
    assert!(port.is_busy());
}

#[test]
fn busy_keeps_what_waits_for_the_runner() {
    let port = Port::new(Vec::new(), 10, 3);
    let owner = port.own().unwrap();
    staged(&port, [1, 2, 3, 4]);
    owner.leave_busy();
    assert_eq!((port.waiting(), port.is_busy(), port.is_owned()), (4, true, false));
    let owner = port.own().expect("the runner");
    let mut owner = owner.leave_idle().expect_err("packets wait");
    assert_eq!(cookies(owner.take()), [1, 2, 3, 4]);
    assert!(owner.leave_idle().is_ok());
}

#[test]
fn a_full_busy_intake_refuses() {
    let port = Port::new(Vec::new(), 2, 3);
    port.own().unwrap().leave_busy();
    staged(&port, [1, 2]);
    assert_eq!(refused(&port, [3]), [3], "the cap is below the batch: the runner's work");
    let mut owner = port.own().unwrap();
    assert_eq!(cookies(owner.take()), [1, 2]);
    assert!(owner.leave_idle().is_ok());
}

/// A push reports in `first` whether no packet waited before it. If so, the pushing thread must
/// call a runner; after later pushes it need not.
#[test]
fn the_first_to_wait_is_told() {
    let first = |port: &Port, cookies: &[u64]| match port.push(list(cookies.iter().copied())) {
        Ok(Pushed::Staged { first }) => first,
        other => panic!("it only stages: {other:?}"),
    };
    let port = Port::new(Vec::new(), 10, 10);
    assert!(!first(&port, &[]), "nothing waits for anybody");
    let owner = port.own().unwrap();
    assert!(!first(&port, &[]));
    assert!(first(&port, &[1]));
    assert!(!first(&port, &[2]) && !first(&port, &[3, 4]));
    owner.leave_busy();
    assert!(!first(&port, &[5]), "five wait");
    let mut owner = port.own().unwrap();
    assert_eq!(owner.take().len(), 5);
    owner.leave_busy();
    assert!(first(&port, &[6, 7]));
    assert!(!first(&port, &[8]));
}

#[test]
fn an_intake_tells_what_it_is_at() {
    let port = Port::new(Vec::new(), 9, 10);
    let told = |port: &Port| (port.is_owned(), port.is_busy(), port.is_quiet(), port.waiting());
    assert_eq!((port.cap(), told(&port)), (9, (false, false, true, 0)));
    assert_eq!(Port::new(Vec::new(), u16::MAX, 1).cap(), u16::MAX);
    let owner = port.own().unwrap();
    assert_eq!((told(&port), owner.was_busy()), ((true, false, false, 0), false));
    staged(&port, [1]);
    assert_eq!(told(&port), (true, false, false, 1));
    owner.leave_busy();
    assert_eq!(told(&port), (false, true, false, 1), "a packet waits");
    let mut owner = port.own().unwrap();
    assert_eq!((told(&port), owner.was_busy()), ((true, true, false, 1), true));
    drop(owner.take());
    assert_eq!((told(&port), owner.was_busy()), ((true, false, false, 0), false), "taken");
    owner.leave_busy();
    assert_eq!(told(&port), (false, true, true, 0), "busy, and nothing waits");
    assert!(port.own().unwrap().leave_idle().is_ok());
    port.prefetch();
    assert_eq!(told(&port), (false, false, true, 0));
}

#[test]
fn the_value_goes_from_owner_to_owner() {
    let port = Port::new(vec![7], 4, 2);
    let (mut first, fresh) = owner(&port, [0]);
    first.extend(cookies(fresh));
    assert!(first.leave_idle().is_ok());
    let second = port.own().unwrap();
    assert_eq!(*second, [7, 0]);
    second.leave_busy();
    staged(&port, [1]);
    let (mut third, _) = owner(&port, [2]);
    let taken = cookies(third.take());
    third.extend(taken);
    assert_eq!(*third, [7, 0, 1, 2]);
}

#[test]
fn a_dropped_intake_sends_its_packets_home() {
    let mut pool = Pool::new(Credits { packets: 3, bytes: 100 });
    let port = Port::new(Vec::new(), 4, 2);
    let owner = port.own().unwrap();
    let out: PacketList = std::iter::from_fn(|| pool.take(8)).collect();
    assert!(matches!(port.push(out), Ok(Pushed::Staged { .. })));
    drop(owner);
    assert!(port.is_owned() && port.own().is_none(), "an owner that only vanishes keeps it");
    drop(port);
    assert_eq!(pool.reclaim(|_| {}), 3);
}

/// Like `&mut T`, an owner is `Sync` only if `T` is `Sync`.
#[test]
fn owners_are_as_thread_safe_as_their_value() {
    use std::cell::Cell;

    /// Shows that a type is not `Sync`: for a `Sync` type, both implementations of this trait
    /// apply, so a call of `check` is ambiguous and does not compile.
    trait NotSync<Which> {
        fn check() {}
    }
    struct IsSync;
    impl<T> NotSync<()> for T {}
    impl<T: Sync> NotSync<IsSync> for T {}
    fn send<T: Send>() {}
    fn sync<T: Sync>() {}

    send::<Intake<Cell<u8>>>();
    sync::<Intake<Cell<u8>>>();
    send::<Owner<'_, Cell<u8>>>();
    sync::<Owner<'_, u8>>();
    <Owner<'_, Cell<u8>> as NotSync<_>>::check();
}
