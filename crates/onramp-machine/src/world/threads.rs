//! The threads: how they begin, sleep, wake each other and end.

use std::mem;

use super::{Event, Main, State, Thread, World};
use crate::locals::Locals;

impl World {
    /// Makes a thread, which runs on the processor `pinned` if one is given. Returns its number.
    pub(crate) fn spawn(&mut self, name: String, pinned: Option<u16>, main: Main) -> usize {
        let number = self.threads.len();
        let at = self.on.map_or(0, |_| self.clock());
        self.threads.push(Thread {
            name,
            state: State::Runs,
            pinned,
            cpu: pinned.unwrap_or_else(|| self.emptiest()),
            told: false,
            sleep: 0,
            joiners: Vec::new(),
            displaced_at: None,
            displaced: 0,
            locals: Locals::default(),
        });
        self.born.push(main);
        self.ready(number, at);
        number
    }

    /// Returns the processor on which a new thread begins: a core without threads in the socket
    /// with the fewest; else the processor with the fewest.
    fn emptiest(&self) -> u16 {
        let topology = self.machine.topology;
        let load = |cpu: u16| {
            let cpu = &self.cpus[usize::from(cpu)];
            usize::from(cpu.thread.is_some()) + cpu.queue.len()
        };
        let mut sockets = vec![0; usize::from(topology.sockets)];
        for cpu in 0..topology.processors() {
            sockets[usize::from(topology.socket(topology.core(cpu)))] += load(cpu);
        }
        let key = |cpu: &u16| {
            let core_load: usize = self.siblings(*cpu).map(load).sum();
            let socket = topology.socket(topology.core(*cpu));
            (load(*cpu), core_load, sockets[usize::from(socket)], *cpu)
        };
        (0..topology.processors()).min_by_key(key).unwrap_or(0)
    }

    /// Ends a thread, and wakes those that wait for its end.
    pub(super) fn end(&mut self, thread: usize) {
        let here = self.here();
        self.threads[thread].state = State::Ended;
        for joiner in mem::take(&mut self.threads[thread].joiners) {
            self.release(joiner);
        }
        self.cpu(here).thread = None;
        self.take_next(here);
        self.on = None;
    }

    /// Puts the calling thread to sleep, until it is [told](Self::tell) to go on or `until` comes
    /// (picoseconds). Returns false if it was told already, and must not suspend itself.
    pub(crate) fn park(&mut self, until: Option<u64>) -> bool {
        let me = self.me();
        if mem::take(&mut self.threads[me].told) {
            return false;
        }
        self.sleep(State::Parked, until);
        true
    }

    /// Puts the calling thread to sleep, until it is [released](Self::release) or `until` comes
    /// (picoseconds). The caller then suspends the thread.
    pub(crate) fn block(&mut self, until: Option<u64>) {
        self.sleep(State::Blocked, until);
    }

    fn sleep(&mut self, state: State, until: Option<u64>) {
        let (here, me) = (self.here(), self.me());
        let thread = &mut self.threads[me];
        thread.sleep += 1;
        thread.state = state;
        let sleep = thread.sleep;
        if let Some(at) = until {
            let at = at.max(self.clock());
            self.push(at, Event::Timer { thread: me, sleep });
        }
        self.cpu(here).thread = None;
        self.take_next(here);
    }

    /// Forgets that the calling thread was told to go on, because it goes on.
    pub(crate) fn goes_on(&mut self) {
        let me = self.me();
        self.threads[me].told = false;
    }

    /// Tells a thread to go on: wakes it if it is parked, or makes its next
    /// [`park`](Self::park) end at once.
    pub(crate) fn tell(&mut self, thread: usize) {
        self.threads[thread].told = true;
        if self.threads[thread].state == State::Parked {
            self.wake(thread);
        }
    }

    /// Ends the sleep of a thread that is blocked.
    pub(crate) fn release(&mut self, thread: usize) {
        if self.threads[thread].state == State::Blocked {
            self.wake(thread);
        }
    }

    fn wake(&mut self, thread: usize) {
        let (here, costs) = (self.here(), self.machine.costs);
        self.wakeups += 1;
        let this = self.cpu(here);
        let at = this.clock;
        this.clock += costs.wake_call;
        this.times.scheduling += costs.wake_call;
        self.ready(thread, at);
    }

    /// Returns the values that the calling thread has for itself.
    pub(crate) fn locals(&mut self) -> &mut Locals {
        let me = self.me();
        &mut self.threads[me].locals
    }

    pub(crate) fn has_ended(&self, thread: usize) -> bool {
        self.threads[thread].state == State::Ended
    }

    /// Puts the calling thread to sleep until `thread` ends. Returns false if that has ended
    /// already; otherwise the caller suspends the thread.
    pub(crate) fn join(&mut self, thread: usize) -> bool {
        let me = self.me();
        if self.has_ended(thread) {
            return false;
        }
        self.threads[thread].joiners.push(me);
        self.block(None);
        true
    }

    /// Lets other threads that wait for this processor run first. Returns whether the calling
    /// thread must suspend itself.
    pub(crate) fn yield_now(&mut self) -> bool {
        let here = self.here();
        let waits = !self.cpu(here).queue.is_empty();
        if waits {
            self.rotate(here);
        } else {
            // The scheduler looks and finds nothing: about a third of a switch.
            let cost = self.machine.costs.context_switch / 3;
            let this = self.cpu(here);
            this.clock += cost;
            this.times.scheduling += cost;
        }
        waits
    }

    pub(crate) fn pin(&mut self, cpu: u16) -> bool {
        let (here, me) = (self.here(), self.me());
        self.threads[me].pinned = Some(cpu);
        if here == cpu {
            return false;
        }
        self.cpu(here).thread = None;
        self.take_next(here);
        let at = self.cpus[usize::from(here)].clock;
        self.ready(me, at);
        true
    }
}
