//! What processors do: interrupts, softirqs, ksoftirqd and the scheduler.
//!
//! On each processor, an interrupt handler interrupts a softirq, and both interrupt the task. The
//! work of each that was interrupted goes on later.

use std::cmp::Reverse;

use super::software::Software;
use super::state::{
    Call, Cpu, Event, HANDLER, Ksoftirqd, NET_RX, NET_TX, Packet, SOFTIRQ, Server, TASK, Task,
};

impl Server {
    /// Lets the next event happen. Returns whether there was one.
    pub(super) fn step(&mut self) -> bool {
        let Some(Reverse((at, _, event))) = self.events.pop() else { return false };
        self.now = at;
        match event {
            Event::Arrives(packet) => self.arrives(packet),
            Event::Collected { card } => self.collected(card),
            Event::Interrupt { cpu, card } => self.on(cpu, |this| this.interrupt(cpu, card)),
            Event::Ends { cpu, turn } if turn == self.cpus[cpu].turn => {
                self.on(cpu, |this| this.ends(cpu));
            }
            Event::Ends { .. } => (),
            Event::Told { cpu } => self.on(cpu, |this| this.resume(cpu)),
            Event::Overdue { cpu, wakeup } => self.overdue(cpu, wakeup),
        }
        true
    }

    /// Stops the present work of a processor, does `change`, and lets the processor go on with what
    /// is its work then.
    fn on(&mut self, cpu: usize, change: impl FnOnce(&mut Self)) {
        let (now, window) = (self.now, self.window);
        let this = &mut self.cpus[cpu];
        if this.is_waiting() {
            self.counts.idle_ps += window.part(this.since, now);
        } else {
            let level = this.level();
            this.left[level] -= now - this.since;
        }
        change(self);
        let this = &mut self.cpus[cpu];
        this.since = now;
        let level = this.level();
        this.left[level] += std::mem::take(&mut this.debt_ps);
        this.turn += 1;
        if !this.is_waiting() {
            let (ends, turn) = (now + this.left[level], this.turn);
            self.at(ends, Event::Ends { cpu, turn });
        }
    }

    /// The present work of a processor has ended.
    fn ends(&mut self, cpu: usize) {
        match self.cpus[cpu].level() {
            HANDLER => self.handled(cpu),
            SOFTIRQ => self.received(cpu),
            _ => self.task_ended(cpu),
        }
    }

    /// A card interrupts a processor.
    fn interrupt(&mut self, cpu: usize, card: usize) {
        self.cpus[cpu].waiting.push_back(card);
        if self.cpus[cpu].handler.is_none() {
            self.handle(cpu);
        }
    }

    /// Begins the handler of the interrupt that waits longest.
    fn handle(&mut self, cpu: usize) {
        let takes = self.varied.time(self.software.interrupt_ps);
        let this = &mut self.cpus[cpu];
        this.handler = this.waiting.pop_front();
        if let Some(card) = this.handler {
            this.left[HANDLER] = takes;
            self.cards[card].begins_handler();
        }
    }

    /// A handler has taken what its card had, and ends.
    fn handled(&mut self, cpu: usize) {
        let Some(card) = self.cpus[cpu].handler.take() else { return };
        let (packets, sent) = self.cards[card].take();
        self.counts.raised_inside += packets.len() as u64 + u64::from(sent);
        let this = &mut self.cpus[cpu];
        this.pending |= if packets.is_empty() { 0 } else { NET_RX };
        this.pending |= if sent == 0 { 0 } else { NET_TX };
        this.backlog.extend(packets);
        if self.cards[card].ends_handler() {
            // The card has interrupted again meanwhile, and waits for the same handler.
            self.cpus[cpu].waiting.push_front(card);
        }
        self.handle(cpu);
        let this = &self.cpus[cpu];
        match (this.level(), this.pending) {
            (TASK, 0) => self.resume(cpu),
            (TASK, _) => self.do_softirq(cpu),
            _ => (),
        }
    }

    /// Handles what is pending.
    pub(super) fn do_softirq(&mut self, cpu: usize) {
        self.counts.calls += 1;
        self.cpus[cpu].softirq = Some(Call::default());
        self.pass(cpu);
    }

    /// Runs all kinds that are pending, as often as this call may.
    fn pass(&mut self, cpu: usize) {
        loop {
            let this = &mut self.cpus[cpu];
            let Some(call) = &mut this.softirq else { return };
            call.kinds = std::mem::take(&mut this.pending);
            call.passes += 1;
            call.budget = self.software.budget;
            for (kind, runs) in call.runs.iter_mut().enumerate() {
                *runs += call.kinds >> kind & 1;
            }
            // To free sent packets takes no time here: it is in the time of sending them.
            if call.kinds & NET_RX != 0 && self.next_packet(cpu) {
                return;
            }
            if !self.passes_again(cpu) {
                return self.softirq_ended(cpu);
            }
        }
    }

    /// Begins to receive the next packet. Returns whether there is one for this pass.
    fn next_packet(&mut self, cpu: usize) -> bool {
        let Software { receive_ps, send_ps, .. } = self.software;
        let this = &mut self.cpus[cpu];
        let (Some(call), false) = (&mut this.softirq, this.backlog.is_empty()) else {
            return false;
        };
        if call.budget == 0 {
            this.pending |= NET_RX;
            return false;
        }
        call.budget -= 1;
        call.packet = this.backlog.pop_front();
        let answers = call.packet.is_some_and(Packet::is_answered);
        this.left[SOFTIRQ] = self.varied.time(receive_ps);
        this.left[SOFTIRQ] += if answers { self.varied.time(send_ps) } else { 0 };
        true
    }

    /// A packet has gone through the protocol.
    fn received(&mut self, cpu: usize) {
        let packet = self.cpus[cpu].softirq.as_mut().and_then(|call| call.packet.take());
        if let Some(packet) = packet {
            self.receive(cpu, packet);
        }
        if self.next_packet(cpu) {
            return;
        }
        if self.passes_again(cpu) { self.pass(cpu) } else { self.softirq_ended(cpu) }
    }

    /// Whether the call makes a further pass: something is pending that may still run.
    fn passes_again(&mut self, cpu: usize) -> bool {
        let Cpu { pending, softirq, .. } = &self.cpus[cpu];
        let Some(call) = softirq else { return false };
        self.counts.calls_again += u64::from(call.passes == 1 && pending & call.kinds != 0);
        let most = self.kernel.passes;
        call.runs.iter().enumerate().any(|(kind, runs)| pending >> kind & 1 == 1 && *runs < most)
    }

    /// A call that handled softirqs ends.
    fn softirq_ended(&mut self, cpu: usize) {
        let this = &mut self.cpus[cpu];
        this.softirq = None;
        if this.pending != 0 {
            self.wake_ksoftirqd(cpu);
        } else if self.kernel.unwakes && this.ksoftirqd == Ksoftirqd::Woken {
            this.ksoftirqd = Ksoftirqd::Asleep;
            this.debt_ps += self.software.lock_ps;
            self.counts.unwakeups += 1;
        }
        self.resume(cpu);
    }

    pub(super) fn wake_ksoftirqd(&mut self, cpu: usize) {
        let this = &mut self.cpus[cpu];
        if this.ksoftirqd != Ksoftirqd::Asleep {
            return;
        }
        this.ksoftirqd = Ksoftirqd::Woken;
        this.is_overdue = false;
        this.wakeups += 1;
        this.debt_ps += self.software.lock_ps;
        this.needs_schedule |= this.task == Task::Idle;
        let wakeup = this.wakeups;
        self.counts.ksoftirqd_wakeups += 1;
        self.at(self.now + self.software.delay_ps, Event::Overdue { cpu, wakeup });
    }

    /// A ksoftirqd that still waits goes before other processes, as soon as the one that has its
    /// processor sleeps.
    fn overdue(&mut self, cpu: usize, wakeup: u64) {
        let this = &mut self.cpus[cpu];
        this.is_overdue |= this.ksoftirqd == Ksoftirqd::Woken && this.wakeups == wakeup;
    }

    /// The task of a processor goes on, unless it is interrupted. A ksoftirqd that has more to do
    /// lets a process that was woken go before it. Nothing takes the processor from a process: each
    /// sleeps long before its slice ends.
    fn resume(&mut self, cpu: usize) {
        let this = &mut self.cpus[cpu];
        if this.level() != TASK || this.left[TASK] > 0 {
            return;
        }
        if this.task == Task::Ksoftirqd && this.needs_schedule && this.pending != 0 {
            this.ksoftirqd = Ksoftirqd::Woken;
            self.schedule(cpu);
        } else {
            self.task_ended(cpu);
        }
    }

    /// A task has done what it had to do at once.
    fn task_ended(&mut self, cpu: usize) {
        let this = &mut self.cpus[cpu];
        match this.task {
            Task::Idle if this.needs_schedule => self.schedule(cpu),
            Task::Idle => (),
            Task::Ksoftirqd if this.pending != 0 => self.do_softirq(cpu),
            Task::Ksoftirqd => {
                this.ksoftirqd = Ksoftirqd::Asleep;
                self.schedule(cpu);
            }
            Task::Process(process) => self.step_ended(cpu, process),
        }
    }

    /// Gives a processor to the task that shall run next.
    pub(super) fn schedule(&mut self, cpu: usize) {
        let runnable = self.runnable.len() as u64;
        let next = self.pick(cpu);
        let is_measured = self.window.has(self.now);
        let Software { switch_ps, runnable_ps, lock_ps, cold_ps, .. } = self.software;
        let this = &mut self.cpus[cpu];
        this.needs_schedule = false;
        if next == Task::Ksoftirqd {
            this.ksoftirqd = Ksoftirqd::Running;
        }
        if next == this.task {
            return;
        }
        this.task = next;
        this.scheduled_at = self.now;
        this.left[TASK] = switch_ps + runnable * runnable_ps + lock_ps;
        self.counts.switches += u64::from(is_measured);
        match next {
            Task::Idle => (),
            Task::Ksoftirqd => {
                this.left[TASK] += cold_ps;
                self.counts.ksoftirqd_runs += u64::from(is_measured);
            }
            Task::Process(process) => {
                let process = &mut self.processes[process];
                this.left[TASK] += process.left_ps;
                process.cpu = cpu;
            }
        }
    }

    /// Chooses who runs next: the process that ran here last or the one that waits longest, then
    /// ksoftirqd, whose priority is weakest, then nobody.
    fn pick(&mut self, cpu: usize) -> Task {
        let this = &self.cpus[cpu];
        let is_woken = this.ksoftirqd == Ksoftirqd::Woken;
        if is_woken && this.is_overdue {
            return Task::Ksoftirqd;
        }
        let here = self.runnable.iter().position(|process| self.processes[*process].cpu == cpu);
        match self.runnable.remove(here.unwrap_or(0)) {
            Some(process) => Task::Process(process),
            None if is_woken => Task::Ksoftirqd,
            None => Task::Idle,
        }
    }

    /// Wakes a process from a softirq of the processor `by`.
    pub(super) fn wake(&mut self, process: usize, by: usize) {
        self.runnable.push_back(process);
        let Some(cpu) = self.processor_for(self.processes[process].cpu) else { return };
        let was_told = std::mem::replace(&mut self.cpus[cpu].needs_schedule, true);
        if cpu != by && !was_told {
            self.at(self.now + self.software.ipi_ps, Event::Told { cpu });
        }
    }

    /// Chooses a processor for a process that was woken: the one on which it ran last if that is
    /// idle, otherwise the one that is idle longest, otherwise one that ksoftirqd has.
    fn processor_for(&self, last: usize) -> Option<usize> {
        let has = |cpu: usize, task: Task| self.cpus[cpu].task == task;
        let all = 0..self.cpus.len();
        if has(last, Task::Idle) {
            return Some(last);
        }
        let idle = all.clone().filter(|cpu| has(*cpu, Task::Idle));
        let longest = idle.min_by_key(|cpu| self.cpus[*cpu].scheduled_at);
        longest.or_else(|| all.clone().find(|cpu| has(*cpu, Task::Ksoftirqd)))
    }
}
