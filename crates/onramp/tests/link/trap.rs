//! A device that blocks its caller, and a device that dies (panics) when it is told to.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

use onramp::{Device, DeviceInfo, Instant, Link, Mapping, PacketList, Transmitted};

use super::common::{credits, until};

/// A device that blocks its callers while it is shut. When it opens, it takes their packets, and
/// the callers return.
#[derive(Debug, Default)]
pub(crate) struct Trap {
    state: Mutex<State>,
    opens: Condvar,
}

#[derive(Debug, Default)]
struct State {
    shut: bool,
    /// Whether the device blocks only runners, and not senders.
    runners_only: bool,
    /// Greatest number of packets that the device takes of each burst; then it is full. `None`: the
    /// device takes all packets.
    takes: Option<usize>,
    inside: u32,
    taken: Vec<u64>,
}

struct Trapdoor(DeviceInfo, Arc<Trap>);

impl Trap {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Makes a trap whose device blocks only threads of the link (runners), and no senders.
    pub(crate) fn for_runners() -> Arc<Self> {
        let trap = Self::new();
        trap.state().runners_only = true;
        trap
    }

    pub(crate) fn device(self: &Arc<Self>) -> Box<dyn Device> {
        Box::new(Trapdoor(DeviceInfo::new("trap".to_owned(), 1_514), self.clone()))
    }

    /// Returns a device that promises never to block. So if it does block a runner, no other thread
    /// takes over the runner's role.
    pub(crate) fn unwatched(self: &Arc<Self>) -> Box<dyn Device> {
        let info = DeviceInfo::new("trap".to_owned(), 1_514).never_blocks();
        Box::new(Trapdoor(info, self.clone()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn shut(&self) {
        self.state().shut = true;
    }

    pub(crate) fn open(&self) {
        self.state().shut = false;
        self.opens.notify_all();
    }

    /// Sets the greatest number of packets that the device takes of each burst from now on.
    pub(crate) fn takes(&self, packets: usize) {
        self.state().takes = Some(packets);
    }

    /// Returns the number of threads that the device blocks at present.
    pub(crate) fn inside(&self) -> u32 {
        self.state().inside
    }

    /// Returns the cookies of the packets that the device has taken.
    pub(crate) fn taken(&self) -> Vec<u64> {
        self.state().taken.clone()
    }

    /// Makes the device block a new sender, which pushes one packet into this port. Returns the
    /// sender's thread.
    pub(crate) fn catch(self: &Arc<Self>, link: &Link, port: usize) -> JoinHandle<()> {
        self.shut();
        let mut bait = link.sender();
        let caught = thread::Builder::new().spawn(move || {
            let flow = bait.flow_with(None, Mapping::Port(port));
            bait.try_send(&flow, b"bait").expect("there is room for it");
        });
        until("somebody is inside", || self.inside() > 0);
        caught.expect("a thread can be had")
    }
}

/// A link on which only senders send packets, because the device of its second port blocks its only
/// runner.
pub(crate) struct Deserted {
    pub(crate) link: Link,
    trap: Arc<Trap>,
}

impl Deserted {
    /// Makes a link on which only senders send packets. The device of the first port is `device`.
    /// Each sender may have `packets` packets in flight.
    pub(crate) fn over(device: Box<dyn Device>, packets: u32) -> Self {
        let trap = Trap::for_runners();
        trap.shut();
        trap.takes(0);
        let link = Link::devices([device, trap.unwatched()]).qdisc("pfifo");
        let link = link.credits(credits(packets)).build().unwrap();
        // The device does not block the sender, but takes no packet. So the runner offers the
        // packet again, and the device blocks the runner.
        let mut bait = link.sender();
        let flow = bait.flow_with(None, Mapping::Port(1));
        bait.try_send(&flow, b"bait").expect("there is room for it");
        until("the runner is kept", || trap.inside() > 0);
        Self { link, trap }
    }
}

impl Drop for Deserted {
    /// Lets the blocked runner return, so that the link can end.
    fn drop(&mut self) {
        self.trap.takes(usize::MAX);
        self.trap.open();
    }
}

impl Device for Trapdoor {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        let Self(_, trap) = self;
        let is_runner = thread::current().name().is_some_and(|name| name.starts_with("onramp-run"));
        let mut state = trap.state();
        if is_runner || !state.runners_only {
            state.inside += 1;
            state = trap.opens.wait_while(state, |state| state.shut).unwrap();
            state.inside -= 1;
        }
        let taken = state.takes.unwrap_or(usize::MAX).min(burst.len() as usize);
        state.taken.extend(burst.metas().take(taken).map(|meta| meta.cookie));
        done.extend(burst.by_ref().take(taken));
        let retry_at = (!burst.is_empty()).then(|| now.after(1_000_000));
        Transmitted { calls: 1, messages: 1, retry_at }
    }
}

/// A device that passes its packets to another device. When it is told to die, it panics at the
/// next call.
pub(crate) struct Mortal {
    device: Box<dyn Device>,
    dies: Arc<AtomicBool>,
}

impl Mortal {
    pub(crate) fn over(device: Box<dyn Device>) -> (Box<dyn Device>, Arc<AtomicBool>) {
        let dies = Arc::new(AtomicBool::new(false));
        (Box::new(Self { device, dies: dies.clone() }), dies)
    }
}

impl Device for Mortal {
    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        assert!(!self.dies.load(Ordering::SeqCst), "told to die");
        self.device.transmit(burst, done, now)
    }
}

/// Makes a port die: tells its device to die, and sends it a packet by a new sender.
pub(crate) fn kill(link: &Link, port: usize, dies: &AtomicBool) {
    dies.store(true, Ordering::SeqCst);
    let mut other = link.sender();
    let flow = other.flow_with(None, Mapping::Port(port));
    let _ = other.try_send(&flow, b"the last");
    until("the port is dead", || link.deaths().iter().any(|(dead, _)| *dead == port));
}
