//! Peers over a device that takes as many packets as a test allows, in a link without threads.

use std::mem;
use std::pin::pin;
use std::sync::atomic::AtomicU32;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use onramp_core::{Device, DeviceInfo, Instant, Transmitted};
use onramp_queue::PacketList;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::*;
use crate::Message;

const X: Message<'_> = Message { payload: b"x", segment: 0, ecn: None, txtime: None, cookie: 0 };

/// Relaxed: one thread does everything here.
const ORDER: Ordering = Ordering::Relaxed;

/// A device that takes this many packets more.
#[derive(Debug)]
struct Counted {
    info: DeviceInfo,
    left: Arc<AtomicU32>,
}

impl Device for Counted {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        while !burst.is_empty() && self.left.load(ORDER) > 0 {
            self.left.fetch_sub(1, ORDER);
            done.push_back(burst.pop_front().expect("it is not empty"));
        }
        let retry_at = (!burst.is_empty()).then(|| now.after(1_000));
        Transmitted { calls: 1, messages: 1, retry_at }
    }
}

/// Counts how often a task was woken.
#[derive(Debug, Default)]
struct Task(AtomicU32);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, ORDER);
    }
}

impl Task {
    fn poll(self: &Arc<Self>, peer: &Peer) -> Poll<()> {
        peer.poll_ready(&Context::from_waker(&Waker::from(Arc::clone(self))), 1)
    }

    fn woken(&self) -> bool {
        self.0.swap(0, ORDER) > 0
    }
}

/// A peer without credit, whose packets are at a device that takes none yet.
struct World {
    link: Link,
    left: Arc<AtomicU32>,
    peers: Peers,
    peer: Arc<Peer>,
}

impl World {
    fn new(credits: u32) -> Self {
        let left = Arc::new(AtomicU32::new(0));
        let info = DeviceInfo::new("counted".to_owned(), 1_514).never_blocks();
        let device = Counted { info, left: Arc::clone(&left) };
        let link = Link::devices([Box::new(device) as _]).qdisc("pfifo").manual().build();
        let link = link.expect("a link");
        let peers = Peers::new(&link, Credits { packets: credits, bytes: 1 << 20 }, 9);
        let peer = peers.get(None, None).expect("a peer");
        (0..credits).for_each(|_| peer.try_send(&X).expect("a credit"));
        assert_eq!(peer.try_send(&X), Err(TrySendError::Full));
        Self { link, left, peers, peer }
    }

    /// Lets this many packets leave.
    fn send(&self, packets: u32) {
        let sent = self.link.stats().sent + u64::from(packets);
        self.left.store(packets, ORDER);
        while self.link.stats().sent < sent {
            self.link.run();
        }
    }
}

#[test]
fn all_tasks_that_wait_are_woken() {
    let world = World::new(4);
    let tasks = [(); 3].map(|()| Arc::new(Task::default()));
    for task in &tasks {
        assert_eq!(task.poll(&world.peer), Poll::Pending);
    }
    world.send(4);
    for task in &tasks {
        assert!(task.woken());
        assert_eq!(task.poll(&world.peer), Poll::Ready(()));
    }
}

/// Waits until a child of this process has ended. Returns its exit status; `None` if it hangs.
fn exit_status(pid: i32) -> Option<i32> {
    let pid = Pid::from_raw(pid).expect("a child has a number");
    for _ in 0..60_000 {
        if let Some((_, status)) = waitpid(Some(pid), WaitOptions::NOHANG).expect("a child") {
            return status.exit_status();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    kill_process(pid, Signal::KILL).expect("it still runs");
    waitpid(Some(pid), WaitOptions::empty()).expect("a child");
    None
}

/// The process forks while other threads hold all locks. In the child, every call returns, and says
/// that the link is closed.
#[test]
fn a_child_takes_no_lock() {
    let world = World::new(4);
    let room = world.peer.room(1);
    mem::forget(lock(&world.peers.table));
    world.peer.lock_for_ever();
    let mut all = Some((world, room));
    let child = onramp_dev::run_in_child(|| {
        let Some((World { link, left, peers, peer }, mut room)) = all.take() else { return -1 };
        let task = Arc::new(Task::default());
        let mut cx = Context::from_waker(Waker::noop());
        let right = [
            peer.try_send(&X) == Err(TrySendError::Closed),
            task.poll(&peer) == Poll::Ready(()),
            pin!(&mut room).poll(&mut cx) == Poll::Ready(()),
            pin!(peer.room(1)).poll(&mut cx) == Poll::Ready(()),
            peers.get(None, None).is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe),
            peers.count() == 0,
        ];
        drop((room, peer, peers, link, left));
        right.iter().position(|right| !right).map_or(0, |at| i32::try_from(at).unwrap_or(99) + 1)
    });
    let status = exit_status(child.expect("a child"));
    // The locks stay locked, so nothing of this can be dropped.
    mem::forget(all);
    assert_eq!(status, Some(0), "the number of the call that is wrong, or it hangs");
}

/// A future that waits and is dropped leaves nothing behind. Another one of the same task still
/// waits.
#[test]
fn a_dropped_future_takes_its_registration_back() {
    let world = World::new(4);
    let task = Arc::new(Task::default());
    let waker = Waker::from(Arc::clone(&task));
    let mut cx = Context::from_waker(&waker);
    let mut stays = pin!(world.peer.room(1));
    assert_eq!(stays.as_mut().poll(&mut cx), Poll::Pending);
    let with_one = Arc::strong_count(&task);
    for _ in 0..100 {
        let mut room = Box::pin(world.peer.room(1));
        assert_eq!(room.as_mut().poll(&mut cx), Poll::Pending);
    }
    assert_eq!(Arc::strong_count(&task), with_one, "one waker is kept");
    world.send(4);
    assert!(task.woken());
    assert_eq!(stays.as_mut().poll(&mut cx), Poll::Ready(()));
    drop(waker);
    assert_eq!(Arc::strong_count(&task), 1, "no waker is kept");
}

/// A future that waits for room at a peer that the table forgets is ready, although no packet comes
/// home: the task looks its destination up again.
#[test]
fn a_future_of_a_forgotten_peer_is_ready() {
    let world = World::new(4);
    let task = Arc::new(Task::default());
    let waker = Waker::from(Arc::clone(&task));
    let mut cx = Context::from_waker(&waker);
    let mut room = pin!(world.peer.room(1));
    assert_eq!(room.as_mut().poll(&mut cx), Poll::Pending);
    for port in 1..=20 {
        world.peers.get(Some(([127, 0, 0, 1], port).into()), None).expect("a peer");
    }
    assert!(task.woken());
    assert_eq!(room.as_mut().poll(&mut cx), Poll::Ready(()));
}

/// A task waits until half of the packets have come home. Another one takes the credit of the first
/// that comes, which cancels the request for that wake-up.
#[test]
fn who_takes_a_credit_asks_for_those_that_wait() {
    let world = World::new(4);
    let task = Arc::new(Task::default());
    assert_eq!(task.poll(&world.peer), Poll::Pending);
    world.send(1);
    assert!(!task.woken(), "half is two");
    world.peer.try_send(&X).expect("the credit that came home");
    assert!(!task.woken(), "there is no room");
    world.send(4);
    assert!(task.woken());
}

#[test]
fn who_is_refused_wakes_nobody() {
    let world = World::new(4);
    let task = Arc::new(Task::default());
    assert_eq!(task.poll(&world.peer), Poll::Pending);
    for _ in 0..10 {
        assert_eq!(world.peer.try_send(&X), Err(TrySendError::Full));
    }
    assert!(!task.woken());
    world.send(4);
    assert!(task.woken());
}

#[test]
fn a_poll_that_finds_room_wakes_those_that_wait() {
    let world = World::new(4);
    let [waiting, other] = [(); 2].map(|()| Arc::new(Task::default()));
    assert_eq!(waiting.poll(&world.peer), Poll::Pending);
    world.send(1);
    assert_eq!(other.poll(&world.peer), Poll::Ready(()));
    assert!(waiting.woken() && !other.woken());
}

#[test]
fn tasks_are_woken_when_the_link_closes() {
    let world = World::new(2);
    let task = Arc::new(Task::default());
    assert_eq!(task.poll(&world.peer), Poll::Pending);
    world.link.close(Duration::ZERO);
    assert!(task.woken());
    assert_eq!(task.poll(&world.peer), Poll::Ready(()));
    assert_eq!(world.peer.try_send(&X), Err(TrySendError::Closed));
}

/// A future of a task waits, and another one of the same task finds room: the task is woken all the
/// same, so that the first looks again.
#[test]
fn a_future_that_finds_room_does_not_remove_another_of_its_task() {
    let world = World::new(4);
    let task = Arc::new(Task::default());
    assert_eq!(task.poll(&world.peer), Poll::Pending);
    world.send(1);
    assert_eq!(task.poll(&world.peer), Poll::Ready(()));
    assert!(task.woken());
}

/// The table forgets a peer for whose room a task waits. The task looks its destination up again.
#[test]
fn tasks_are_woken_when_their_peer_is_forgotten() {
    let world = World::new(4);
    let task = Arc::new(Task::default());
    assert_eq!(task.poll(&world.peer), Poll::Pending);
    let World { link, peers, peer, .. } = world;
    drop(peer);
    assert!(!task.woken(), "the table has it");
    for port in 1..100 {
        let _ = peers.get(Some(([127, 0, 0, 1], port).into()), None).expect("a peer");
    }
    assert!(peers.forgotten() > 0 && task.woken());
    drop(link);
}

/// Sends to the peer when it is woken, as an executor does that polls tasks in their wakers.
#[derive(Debug)]
struct Sends {
    peer: Arc<Peer>,
    sent: AtomicU32,
}

impl Wake for Sends {
    fn wake(self: Arc<Self>) {
        let sent = self.peer.try_send(&X).is_ok();
        self.sent.fetch_add(u32::from(sent), ORDER);
    }
}

/// A call that sends the packets of a peer wakes a task, whose waker sends to the same peer.
#[test]
fn a_waker_may_send_to_the_peer() {
    let world = World::new(4);
    let task = Arc::new(Sends { peer: Arc::clone(&world.peer), sent: AtomicU32::new(0) });
    let waker = Waker::from(Arc::clone(&task));
    assert!(world.peer.poll_ready(&Context::from_waker(&waker), 1).is_pending());
    world.left.store(4, ORDER);
    // The call does the work of the port, and the packets come home meanwhile.
    while world.link.stats().sent < 4 {
        let _ = world.peer.try_send(&X);
        let _ = world.peer.poll_ready(&Context::from_waker(Waker::noop()), 1);
    }
    assert!(task.sent.load(ORDER) > 0);
}

#[test]
fn a_table_keeps_the_peers_that_are_in_use() {
    let link = Link::devices([Box::new(onramp_dev::Null::default()) as _]).build().expect("a link");
    let peers = Peers::new(&link, Credits { packets: 1, bytes: 1 }, 3);
    let get = |n: u16| peers.get(Some(([127, 0, 0, 1], n).into()), None).expect("a peer");
    let first = get(1);
    for n in 2..100 {
        assert!(Arc::ptr_eq(&first, &get(1)), "{n}: it is used again and again");
        drop(get(n));
        assert_eq!(peers.count(), usize::from(n).min(3));
    }
    assert_eq!((peers.forgotten(), link.stats().senders), (99 - 3, 3));
    let source = |n| peers.get(Some(([127, 0, 0, 1], 1).into()), Some([127, 0, 0, n].into()));
    assert!(!Arc::ptr_eq(&source(1).expect("a peer"), &source(2).expect("a peer")));
}
