//! Credits, completions, wake-ups and the lifetimes of pools and packets, tested with one thread at
//! a time.

/// The attribute `#[test]` that runs a test in a simulation.
#[cfg(sim)]
#[macro_use]
extern crate onramp_simulated_test;

mod bell;
mod below;
mod cancel;
mod requests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::task::{Wake, Waker};
use std::thread;

use onramp_queue::{Armed, Completion, Credits, DropReason, PAYLOAD_MAX, Packet, PacketList, Pool};

fn pool(packets: u32, bytes: u32) -> Pool {
    Pool::new(Credits { packets, bytes })
}

/// A waker that counts its calls.
#[derive(Default)]
struct Calls(AtomicU32);

impl Calls {
    fn new() -> (Arc<Self>, Waker) {
        let calls = Arc::new(Self::default());
        (calls.clone(), Waker::from(calls))
    }

    fn count(&self) -> u32 {
        self.0.load(SeqCst)
    }
}

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn packets_are_limited() {
    let mut pool = pool(2, 1_000);
    let (first, second) = (pool.take(1).unwrap(), pool.take(1).unwrap());
    assert!(!pool.has_room(0) && pool.take(0).is_none());
    drop(first);
    assert!(pool.take(1).is_none(), "home, but not taken in");
    assert_eq!((pool.returned(), pool.out()), (1, 2));
    assert_eq!(pool.reclaim(|_| {}), 1);
    assert_eq!((pool.returned(), pool.out()), (0, 1));
    assert!(pool.take(1).is_some());
    drop(second);
}

#[test]
fn bytes_are_limited_but_one_packet_may_always_go() {
    let mut pool = pool(10, 100);
    let small = pool.take(60).unwrap();
    assert!(pool.has_room(40) && !pool.has_room(41));
    assert!(pool.take(41).is_none());
    let other = pool.take(40).unwrap();
    assert!(pool.take(1).is_none());
    assert!(pool.take(0).is_some(), "a packet that carries nothing costs no bytes");
    drop((small, other));
    assert_eq!(pool.reclaim(|_| {}), 3);
    let large = pool.take(5_000).unwrap();
    assert!(!pool.has_room(0), "it owes more than there is");
    drop(large);
    assert_eq!(pool.reclaim(|_| {}), 1);
    assert!(pool.has_room(100));
}

#[test]
fn a_charge_is_what_was_asked_for() {
    let mut pool = pool(10, 65_535);
    // A pool applies its limit on bytes only while one of its packets is out, so keep a packet out.
    let _out = pool.take(0).unwrap();
    for payload in
        [0, 1, 128, 129, 512, 513, 2_048, 2_049, 4_096, 4_097, 16_384, 16_385, PAYLOAD_MAX]
    {
        for (submitted, bare) in [(true, false), (false, false), (true, true), (false, true)] {
            // The payload of a bare packet lies elsewhere.
            let mut pkt = if bare { pool.take_bare(payload) } else { pool.take(payload) }.unwrap();
            assert!(pkt.capacity() >= payload || bare && pkt.capacity() == 128);
            assert!(pkt.capacity() <= (4 * payload).max(128), "no larger than it needs");
            assert_eq!(pkt.payload().len(), 0);
            let left = 65_535 - u32::try_from(payload).unwrap();
            assert!(pool.has_room(left) && !pool.has_room(left + 1), "{payload}");
            pkt.set_submitted(submitted);
            drop(pkt);
            assert_eq!(pool.reclaim(|_| {}), 1);
            assert!(pool.has_room(65_535), "all bytes are back after {payload}");
        }
    }
}

#[test]
#[should_panic(expected = "at most 65535 bytes")]
fn too_large_a_payload() {
    let _ = pool(1, 1).take(PAYLOAD_MAX + 1);
}

#[test]
fn credits_out_of_range() {
    for packets in [0, Credits::PACKETS_MAX + 1] {
        let made = catch_unwind(|| pool(packets, 1));
        assert!(made.is_err(), "{packets} packets");
    }
}

#[test]
fn nodes_are_kept_by_size() {
    let mut pool = pool(4, u32::MAX);
    let address = |pkt: &Packet| pkt.payload().as_ptr().addr();
    let (small, large) = (pool.take(100).unwrap(), pool.take(1_500).unwrap());
    let (small_at, large_at) = (address(&small), address(&large));
    drop((small, large));
    pool.reclaim(|_| {});
    let (large, small) = (pool.take(513).unwrap(), pool.take(128).unwrap());
    assert_eq!((address(&small), address(&large)), (small_at, large_at));
}

#[test]
fn a_taken_packet_is_as_good_as_new() {
    let mut pool = pool(1, 1_000);
    let fresh = format!("{:?}", pool.take(16).unwrap());
    pool.reclaim(|_| {});
    let mut pkt = pool.take(16).unwrap();
    pkt.set_payload(b"what was sent");
    pkt.set_dest(Some("127.0.0.1:9".parse().unwrap()));
    pkt.set_submitted(true);
    pkt.flow = 1;
    pkt.txtime_ns = 2;
    pkt.enqueued_ns = 3;
    pkt.cookie = 4;
    pkt.pacing_rate = 5;
    pkt.len = 6;
    pkt.priority = 7;
    pkt.mark = 8;
    pkt.gso_size = 9;
    pkt.ecn = 3;
    pkt.drop_reason = Some(DropReason::Overlimit);
    assert_ne!(format!("{pkt:?}"), fresh);
    drop(pkt);
    assert_eq!(pool.reclaim(|_| {}), 1);
    let again = pool.take(16).unwrap();
    assert_eq!(format!("{again:?}"), fresh);
    drop(again);
    let mut told = 0;
    pool.reclaim(|_| told += 1);
    assert_eq!(told, 0, "nothing was submitted");
}

/// The bound on bytes may change at any time, but never exceeds the credits.
#[test]
fn a_bound_on_bytes_is_below_the_credits() {
    let mut pool = pool(10, 100);
    pool.allow_bytes(50);
    let first = pool.take(30).expect("one may always be out");
    assert!(pool.take(21).is_none() && !pool.has_room(21));
    let second = pool.take(20).expect("50 bytes are out then");
    pool.allow_bytes(10);
    assert!(!pool.has_room(0), "more than the bound is out");
    drop((first, second));
    assert_eq!(pool.reclaim(|_| ()), 2);
    let first = pool.take(60).expect("one may always be out");
    pool.allow_bytes(1_000);
    assert!(pool.has_room(40) && !pool.has_room(41), "the credits bound it");
    drop(first);
}

#[test]
fn only_submitted_packets_have_a_fate() {
    let mut pool = pool(4, 1_000);
    let mut list = PacketList::new();
    for cookie in 0..4 {
        let mut pkt = pool.take(8).unwrap();
        pkt.cookie = cookie;
        pkt.len = 100 + u32::try_from(cookie).unwrap();
        (pkt.flow, pkt.enqueued_ns, pkt.txtime_ns) = (7, 20, 10 + 10 * cookie);
        pkt.set_submitted(cookie != 1);
        pkt.drop_reason = (cookie == 2).then_some(DropReason::Refused);
        list.push_back(pkt);
    }
    drop(list);
    let mut fates = Vec::new();
    assert_eq!(pool.reclaim(|fate| fates.push(fate)), 4);
    fates.sort_by_key(|fate| fate.cookie);
    let sent = |cookie, len, left| Completion {
        flow: 7,
        cookie,
        drop_reason: None,
        len,
        payload: 8,
        pushed_ns: 20,
        left_ns: Some(left),
    };
    let refused = Completion { drop_reason: Some(DropReason::Refused), ..sent(2, 102, 30) };
    // The first packet cannot have left before it was pushed.
    assert_eq!(fates, [sent(0, 100, 20), refused, sent(3, 103, 40)]);
    assert_eq!(pool.reclaim(|_| panic!("told twice")), 0);
}

/// A tag stays with a packet of the pool until the packet comes home. A packet that no port
/// accepted loses its tag, and packets of other pools have none.
#[test]
fn a_tag_comes_home_with_its_packet() {
    let (mut pool, mut other) = (pool(2, 1_000), pool(1, 1_000));
    let mut list: PacketList = std::iter::from_fn(|| pool.take(8)).chain(other.take(8)).collect();
    pool.submit(&mut list, 5);
    let tag_all = |pool: &Pool, list: &mut PacketList, first: u16| {
        let counted = pool.counted(list).zip(first..);
        counted.map(|((_, tag), number)| std::mem::replace(tag, number)).collect::<Vec<_>>()
    };
    assert_eq!(tag_all(&pool, &mut list, 7), [0, 0], "the packet of the other pool is left out");
    pool.revoke(&mut list);
    pool.submit(&mut list, 6);
    assert_eq!(tag_all(&pool, &mut list, 3), [0, 0], "the first tags are gone");
    pool.submit(&mut list, 7);
    assert_eq!(tag_all(&pool, &mut list, 9), [0; 0], "they are counted already");
    drop(list);
    let mut tags = Vec::new();
    pool.reclaim_tagged(|completion, tag| tags.push((completion.pushed_ns, tag)));
    other.reclaim_tagged(|completion, tag| tags.push((completion.pushed_ns, tag)));
    tags.sort_unstable();
    assert_eq!(tags, [(7, 0), (7, 3), (7, 4)]);
    let mut next: PacketList = pool.take(8).into_iter().collect();
    pool.submit(&mut next, 8);
    assert_eq!(tag_all(&pool, &mut next, 1), [0], "a packet begins without a tag");
}

/// The closure that receives completions may panic. The completion that it was given counts as
/// reported, and the next call reports the others. All packets that are home are taken in at once.
#[test]
fn a_panic_while_fates_are_told_keeps_no_packet_out() {
    let sizes = [128, 512, 2_048, 0, 128];
    for panics_at in 1..=5 {
        let mut pool = pool(5, sizes.iter().sum());
        let take = |pool: &mut Pool| -> Vec<Packet> {
            sizes.iter().map(|&size| pool.take(size as usize).unwrap()).collect()
        };
        let address = |pkt: &Packet| pkt.payload().as_ptr().addr();
        let mut out = take(&mut pool);
        out.iter_mut().for_each(|pkt| pkt.set_submitted(true));
        let mut before: Vec<_> = out.iter().map(address).collect();
        let (calls, waker) = Calls::new();
        assert_eq!(pool.arm(&waker, 5), Armed::Armed);
        drop(out);
        let mut told = 0;
        let panics = AssertUnwindSafe(|| {
            pool.reclaim(|_| {
                told += 1;
                assert!(told < panics_at, "as the test wants it");
            })
        });
        assert!(catch_unwind(panics).is_err());
        assert_eq!((told, pool.out(), pool.returned()), (panics_at, 0, 0));
        assert_eq!(pool.reclaim(|_| told += 1), 0);
        assert_eq!(told, 5, "each once");
        assert_eq!(pool.reclaim(|_| panic!("told twice")), 0);
        // The pool hands out the memory of the returned packets again, each packet once, and all
        // credits can be used again.
        let again = take(&mut pool);
        let mut after: Vec<_> = again.iter().map(address).collect();
        before.sort_unstable();
        after.sort_unstable();
        assert_eq!(before, after);
        assert!(!pool.has_room(0));
        // A new request to be woken counts only packets that come home from now on.
        assert_eq!(pool.arm(&waker, 5), Armed::Armed);
        drop(again);
        assert_eq!((calls.count(), pool.reclaim(|_| {}), pool.out()), (2, 5, 0));
    }
}

#[test]
fn a_packet_is_taken_back() {
    let (mut ours, mut theirs) = (pool(1, 100), pool(1, 100));
    let mine = ours.take(100).unwrap();
    ours.take_back(mine);
    assert_eq!((ours.out(), ours.returned()), (0, 0));
    assert!(ours.has_room(100));
    // If a sender gives back a packet of another pool, it returns to its own home. If it gives back
    // a packet from the heap, that is freed.
    let stranger = theirs.take(100).unwrap();
    ours.take_back(stranger);
    ours.take_back(Packet::new(1));
    assert_eq!((ours.out(), theirs.returned(), theirs.out()), (0, 1, 1));
    assert_eq!(theirs.reclaim(|_| {}), 1);
}

#[test]
fn the_waker_is_called_once_when_enough_is_home() {
    let mut pool = pool(4, 1_000);
    let mut out: Vec<Packet> = (0..4).map(|_| pool.take(8).unwrap()).collect();
    let (calls, waker) = Calls::new();
    assert_eq!(pool.arm(&waker, 3), Armed::Armed);
    drop(out.pop());
    drop(out.pop());
    assert_eq!((calls.count(), pool.returned()), (0, 2));
    drop(out.pop());
    assert_eq!((calls.count(), pool.returned()), (1, 3));
    drop(out.pop());
    assert_eq!((calls.count(), pool.returned()), (1, 4));
    assert_eq!(pool.arm(&waker, 4), Armed::Ready);
    assert_eq!((pool.reclaim(|_| {}), pool.out(), calls.count()), (4, 0, 1));
    drop(waker);
    assert_eq!(Arc::strong_count(&calls), 1, "a woken pool keeps no waker");
}

#[test]
fn a_run_that_brings_more_than_enough_wakes_once() {
    let mut pool = pool(5, 1_000);
    let list: PacketList = std::iter::from_fn(|| pool.take(8)).collect();
    let (calls, waker) = Calls::new();
    assert_eq!(pool.arm(&waker, 2), Armed::Armed);
    drop(list);
    assert_eq!((calls.count(), pool.returned(), pool.reclaim(|_| {})), (1, 5, 5));
}

#[test]
fn requests_replace_each_other() {
    let mut pool = pool(3, 1_000);
    let mut out: Vec<Packet> = (0..3).map(|_| pool.take(8).unwrap()).collect();
    let ((old, old_waker), (new, new_waker)) = (Calls::new(), Calls::new());
    assert_eq!(pool.arm(&old_waker, 3), Armed::Armed);
    drop(out.pop());
    assert_eq!(pool.arm(&new_waker, 2), Armed::Armed);
    drop(old_waker);
    assert_eq!(Arc::strong_count(&old), 1, "replaced, hence dropped");
    drop(out.pop());
    assert_eq!((old.count(), new.count(), pool.returned()), (0, 1, 2));
    // A request that was cancelled wakes nobody. The pool still counts the packets that return
    // meanwhile.
    assert_eq!(pool.arm(&new_waker, 3), Armed::Armed);
    pool.disarm();
    pool.disarm();
    drop(out.pop());
    assert_eq!((new.count(), pool.returned(), pool.reclaim(|_| {})), (1, 3, 3));
}

#[test]
fn a_reclaim_takes_the_request_back() {
    let mut pool = pool(3, 1_000);
    let mut out: Vec<Packet> = (0..3).map(|_| pool.take(8).unwrap()).collect();
    let (calls, waker) = Calls::new();
    assert_eq!(pool.arm(&waker, 2), Armed::Armed);
    assert_eq!(pool.reclaim(|_| {}), 0);
    drop(out.pop());
    assert_eq!(pool.reclaim(|_| {}), 1, "this ends the request");
    drop(out.pop());
    drop(out.pop());
    assert_eq!((calls.count(), pool.returned()), (0, 2));
    assert_eq!(pool.arm(&waker, 2), Armed::Ready);
}

#[test]
fn no_more_is_waited_for_than_is_out() {
    let mut pool = pool(3, 1_000);
    let (calls, waker) = Calls::new();
    assert_eq!(pool.arm(&waker, 1), Armed::Ready, "nothing is out");
    let pkt = pool.take(8).unwrap();
    assert_eq!(pool.arm(&waker, 0), Armed::Ready, "nothing is needed");
    assert_eq!(pool.arm(&waker, u32::MAX), Armed::Armed);
    drop(pkt);
    assert_eq!(calls.count(), 1);
}

#[test]
fn the_largest_pool_counts_right() {
    let packets = Credits::PACKETS_MAX;
    let mut pool = pool(packets, u32::MAX);
    if cfg!(miri) {
        return;
    }
    let mut list: PacketList = std::iter::from_fn(|| pool.take(1)).collect();
    let (calls, waker) = Calls::new();
    for need in [packets, packets - 1, 1] {
        assert_eq!(pool.arm(&waker, need), Armed::Armed);
    }
    assert_eq!(pool.arm(&waker, packets), Armed::Armed);
    let last = list.pop_front().unwrap();
    drop(list);
    assert_eq!((calls.count(), pool.returned()), (0, packets - 1));
    drop(last);
    assert_eq!((calls.count(), pool.returned()), (1, packets));
    assert_eq!((pool.reclaim(|_| {}), pool.out()), (packets, 0));
}

/// A packet that was taken back fulfils the request, and then as many packets come home as a pool
/// can have.
#[test]
fn the_largest_pool_counts_right_after_a_packet_was_taken_back() {
    let packets = Credits::PACKETS_MAX;
    let mut pool = pool(packets, u32::MAX);
    let mut list = PacketList::from_iter([pool.take(1).unwrap()]);
    let back = pool.take(1).unwrap();
    let (calls, waker) = Calls::new();
    assert_eq!(pool.arm(&waker, 1), Armed::Armed);
    pool.take_back(back);
    assert_eq!((calls.count(), pool.returned(), pool.out()), (1, 0, 1));
    if cfg!(miri) {
        return; // So many packets take too long.
    }
    list.extend(std::iter::from_fn(|| pool.take(1)));
    drop(list);
    assert_eq!((calls.count(), pool.returned()), (1, packets));
    assert_eq!((pool.reclaim(|_| {}), pool.out()), (packets, 0));
}

#[test]
fn a_pool_may_go_before_its_packets_or_after() {
    let (calls, waker) = Calls::new();
    for gone_first in [true, false] {
        let mut pool = pool(4, 1_000);
        let mut out: Vec<Packet> = (0..4).map(|_| pool.take(8).unwrap()).collect();
        drop(out.pop());
        assert_eq!(pool.reclaim(|_| {}), 1, "one is free");
        drop(out.pop());
        assert_eq!(pool.arm(&waker, 3), Armed::Armed);
        if gone_first {
            drop(pool);
            assert_eq!(Arc::strong_count(&calls), 2, "a pool that is gone keeps no waker");
            let left: PacketList = out.drain(..).collect();
            drop(left);
        } else {
            out.clear();
            assert_eq!(calls.count(), 1);
            drop(pool);
        }
    }
    assert_eq!(calls.count(), 1);
}

/// A waker may run any code. It may even drop the pool whose returned packet caused the call.
#[test]
fn a_waker_may_drop_its_pool() {
    struct Owns(std::sync::Mutex<Option<Pool>>);
    impl Wake for Owns {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock().unwrap().take());
        }
    }
    let mut pool = pool(2, 1_000);
    let (first, second) = (pool.take(8).unwrap(), pool.take(8).unwrap());
    let task = Arc::new(Owns(std::sync::Mutex::new(None)));
    assert_eq!(pool.arm(&Waker::from(task.clone()), 1), Armed::Armed);
    *task.0.lock().unwrap() = Some(pool);
    drop(first);
    assert!(task.0.lock().unwrap().is_none());
    drop(second);
}

#[test]
fn a_forgotten_waker_is_dropped_and_not_called() {
    let mut pool = pool(3, 1_000);
    assert!(pool.forget_waker(), "there is none");
    let mut out: Vec<Packet> = (0..3).map(|_| pool.take(8).unwrap()).collect();
    let (calls, waker) = Calls::new();
    assert_eq!(pool.arm(&waker, 2), Armed::Armed);
    drop(waker);
    drop(out.pop());
    assert!(pool.forget_waker());
    assert_eq!((Arc::strong_count(&calls), pool.returned()), (1, 1));
    assert!(pool.forget_waker(), "once more changes nothing");
    drop(out.pop());
    assert_eq!((calls.count(), pool.returned()), (0, 2), "no packet is lost count of");
    // The third packet to come home answers the request. The pool then calls the waker and does not
    // keep it, so `forget_waker` finds none.
    let (other, waker) = Calls::new();
    assert_eq!(pool.arm(&waker, 3), Armed::Armed);
    drop(waker);
    drop(out.pop());
    assert_eq!((other.count(), Arc::strong_count(&other)), (1, 1));
    assert!(pool.forget_waker());
    assert_eq!((pool.returned(), pool.reclaim(|_| {}), pool.out()), (3, 3, 0));
    assert_eq!(calls.count(), 0);
}

/// When a request is cancelled, the pool may keep its waker for the next request. `forget_waker`
/// drops that waker.
#[test]
fn a_disarmed_waker_can_be_forgotten() {
    let mut pool = pool(1, 1_000);
    let pkt = pool.take(8).unwrap();
    let (calls, waker) = Calls::new();
    assert_eq!(pool.arm(&waker, 1), Armed::Armed);
    drop(waker);
    pool.disarm();
    assert!(pool.forget_waker());
    assert_eq!(Arc::strong_count(&calls), 1);
    drop(pkt);
    assert_eq!((calls.count(), pool.reclaim(|_| {})), (0, 1));
}

/// A pool releases a waker before it is called. So during the call, `forget_waker` finds none.
#[test]
fn a_waker_may_forget_itself() {
    struct Owns(std::sync::Mutex<Option<Pool>>, AtomicU32);
    impl Wake for Owns {
        fn wake(self: Arc<Self>) {
            let mut pool = self.0.lock().unwrap();
            assert!(pool.as_mut().unwrap().forget_waker());
            self.1.fetch_add(1, SeqCst);
        }
    }
    let mut pool = pool(1, 1_000);
    let pkt = pool.take(8).unwrap();
    let task = Arc::new(Owns(std::sync::Mutex::new(None), AtomicU32::new(0)));
    assert_eq!(pool.arm(&Waker::from(task.clone()), 1), Armed::Armed);
    *task.0.lock().unwrap() = Some(pool);
    drop(pkt);
    assert_eq!((task.1.load(SeqCst), Arc::strong_count(&task)), (1, 1));
}

#[test]
fn packets_come_home_from_other_threads() {
    let mut pool = pool(3, 1_000);
    let out: Vec<Packet> = (0..3).map(|_| pool.take(8).unwrap()).collect();
    let (calls, waker) = Calls::new();
    assert_eq!(pool.arm(&waker, 3), Armed::Armed);
    thread::scope(|scope| {
        for pkt in out {
            scope.spawn(move || drop(pkt));
        }
    });
    assert_eq!((calls.count(), pool.returned(), pool.reclaim(|_| {})), (1, 3, 3));
}

/// One thread drops the pool while another drops its last packet. The thread that comes second
/// frees the home of the packets, even while the first has not returned from its call yet. Miri
/// switches threads where one yields, so the number of yields decides which thread comes second.
#[test]
fn the_pool_ends_together_with_its_last_packet() {
    for round in 0..if cfg!(miri) { 20 } else { 200 } {
        let mut pool = pool(1, 1_000);
        let pkt = pool.take(8).unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                (0..round % 5).for_each(|_| thread::yield_now());
                drop(pkt);
            });
            drop(pool);
        });
    }
}

#[test]
fn payload_and_destination_travel_with_the_packet() {
    let mut pkt = Packet::with_payload(b"abc");
    assert_eq!((pkt.payload(), pkt.len, pkt.capacity()), (b"abc".as_slice(), 3, 3));
    pkt.set_payload(b"d");
    assert_eq!((pkt.payload(), pkt.len), (b"d".as_slice(), 3));
    pkt.set_payload(b"");
    assert_eq!(pkt.payload(), b"");
    let dest = "[::1]:53".parse().unwrap();
    pkt.set_dest(Some(dest));
    assert_eq!(pkt.dest(), Some(dest));
    let bare = Packet::new(1_500);
    assert_eq!((bare.len, bare.payload(), bare.dest()), (1_500, b"".as_slice(), None));
}

#[test]
#[should_panic(expected = "fits the packet's buffer")]
fn a_payload_that_does_not_fit() {
    Packet::with_payload(b"abc").set_payload(b"four");
}
