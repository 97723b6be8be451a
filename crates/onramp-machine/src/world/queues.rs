//! The scheduler: which thread has which processor, and which wait.

use std::cmp::Reverse;

use super::{Doing, State, Thread, World};

/// A thread keeps a processor for at least a slice divided by this number, unless it sleeps.
const LEAST: u64 = 32;

impl World {
    /// Gives the processor to the first thread in its queue. The present thread goes to the end of
    /// the queue.
    pub(super) fn rotate(&mut self, cpu: u16) {
        let this = self.cpu(cpu);
        if let Some(thread) = this.thread.take() {
            this.queue.push_back(thread);
            let clock = this.clock;
            self.threads[thread].displaced_at = Some(clock);
        }
        self.take_next(cpu);
    }

    /// Gives the processor, whose thread has left it, to the next thread, if there is one.
    pub(super) fn take_next(&mut self, cpu: u16) {
        let next = self.cpu(cpu).queue.pop_front().or_else(|| self.steal(cpu));
        match next {
            Some(thread) => {
                let at = self.cpu(cpu).clock;
                self.give(cpu, thread, at);
            }
            None => {
                let this = self.cpu(cpu);
                (this.thread, this.doing) = (None, Doing::Nothing);
                this.generation += 1;
            }
        }
    }

    /// Gives the processor, which has no thread, to a thread that may run from `at` on.
    pub(super) fn give(&mut self, cpu: u16, thread: usize, at: u64) {
        let costs = self.machine.costs;
        self.switches += 1;
        self.migrations += u64::from(self.threads[thread].cpu != cpu);
        self.threads[thread].cpu = cpu;
        let this = self.cpu(cpu);
        this.times.idle += at.saturating_sub(this.clock);
        this.clock = this.clock.max(at) + costs.context_switch;
        this.times.scheduling += costs.context_switch;
        (this.thread, this.doing, this.loaded) = (Some(thread), Doing::Work, None);
        this.slice_end = this.clock + costs.slice;
        let clock = this.clock;
        let runs = &mut self.threads[thread];
        runs.displaced += runs.displaced_at.take().map_or(0, |at| clock.saturating_sub(at));
        self.continue_at(cpu, clock);
    }

    /// Takes a thread that may move away from the longest queue of all processors.
    pub(super) fn steal(&mut self, cpu: u16) -> Option<usize> {
        let longest = (0..self.cpus.len()).max_by_key(|other| {
            let queue = &self.cpus[*other].queue;
            let may_move = queue.iter().filter(|thread| self.threads[**thread].pinned.is_none());
            (may_move.count(), Reverse(*other))
        })?;
        let queue = &self.cpus[longest].queue;
        let place = queue.iter().position(|thread| self.threads[*thread].pinned.is_none())?;
        debug_assert_ne!(longest, usize::from(cpu), "its queue is empty");
        self.cpus[longest].queue.remove(place)
    }

    pub(super) fn is_idle(&self, cpu: u16) -> bool {
        self.cpus[usize::from(cpu)].thread.is_none()
    }

    /// Returns the other hardware threads of a processor's core.
    pub(super) fn siblings(&self, cpu: u16) -> impl Iterator<Item = u16> + use<> {
        let topology = self.machine.topology;
        let (cores, core) = (topology.all_cores(), topology.core(cpu));
        (0..topology.threads).map(move |n| n * cores + core).filter(move |other| *other != cpu)
    }

    /// Chooses a processor for a thread that becomes ready: its own if it is pinned; else the one
    /// that it used last, if that is idle; else an idle core of the same socket, or of another;
    /// else an idle hardware thread; else the one that it used last.
    pub(super) fn choose(&self, thread: usize) -> u16 {
        let Thread { pinned, cpu: last, .. } = self.threads[thread];
        if let Some(pinned) = pinned {
            return pinned;
        }
        if self.is_idle(last) {
            return last;
        }
        let topology = self.machine.topology;
        let socket = |cpu| topology.socket(topology.core(cpu));
        let idle = (0..topology.processors()).filter(|cpu| self.is_idle(*cpu));
        let best = idle.min_by_key(|cpu| {
            let shares_core = self.siblings(*cpu).any(|other| !self.is_idle(other));
            (shares_core, socket(*cpu) != socket(last), *cpu)
        });
        best.unwrap_or(last)
    }

    /// Makes a thread ready to run at `at`.
    pub(super) fn ready(&mut self, thread: usize, at: u64) {
        self.threads[thread].state = State::Runs;
        let cpu = self.choose(thread);
        if self.is_idle(cpu) {
            let at = at + self.machine.costs.wake;
            self.give(cpu, thread, at);
        } else {
            // A thread that slept has used less time than the running one, so it takes the
            // processor soon: when the running thread has had it for a while.
            let least = self.machine.costs.slice / LEAST;
            let slice = self.machine.costs.slice;
            let this = self.cpu(cpu);
            let began = this.slice_end.saturating_sub(slice);
            this.slice_end = this.slice_end.min(at.max(began + least));
            this.queue.push_front(thread);
        }
    }
}
