//! What the calling thread does, and what that costs.

use super::{AHEAD, Doing, Plain, SPIN_LOOK, World};
use crate::memory::{Access, Served};
use crate::report::Site;

impl World {
    /// Charges `ps` picoseconds of local work.
    pub(crate) fn work(&mut self, ps: u64) {
        let here = self.here();
        let costs = self.machine.costs;
        let slower = |other: u16| match self.cpus[usize::from(other)].doing {
            Doing::Work => costs.smt,
            Doing::Spin(_) => costs.smt_spin,
            Doing::Nothing => 1_000,
        };
        let permille = self.siblings(here).map(slower).max().unwrap_or(1_000);
        let passed = ps * permille / 1_000;
        let this = self.cpu(here);
        this.clock += passed;
        this.times.useful += passed;
    }

    /// Returns how far ahead of other processors the caller may be for an access to these bytes.
    pub(crate) fn ahead(&mut self, address: usize, bytes: usize) -> u64 {
        let core = self.machine.topology.core(self.here());
        let mut lines = self.memory.lines_of(address, bytes);
        let is_private = lines.all(|at| {
            let line = self.memory.line_at(at, core);
            self.memory.is_private(line, core)
        });
        if is_private { AHEAD } else { 0 }
    }

    /// Charges an atomic access to the line at an address.
    pub(crate) fn access(&mut self, address: usize, access: Access, site: Site) {
        let here = self.here();
        let core = self.machine.topology.core(here);
        let line = self.memory.line_at(address, core);
        let costs = self.machine.costs;
        let this = &mut self.cpus[usize::from(here)];
        if access == Access::Update {
            // An atomic read-modify-write waits until all stores are done.
            this.times.stalled += this.stored.saturating_sub(this.clock);
            this.clock = this.clock.max(this.stored);
        }
        let Served { at, .. } = self.memory.serve(line, core, access, this.clock, site);
        let takes = match access {
            // The store waits in the store buffer, and the processor goes on.
            Access::Store => {
                this.stored = this.stored.max(at);
                costs.l1
            }
            Access::Load | Access::Update => at - this.clock,
        };
        let hit = costs.l1 + if access == Access::Update { costs.atomic } else { 0 };
        let stall = takes.saturating_sub(hit);
        this.clock += takes;
        this.times.stalled += stall;
        this.times.useful += takes - stall;
        self.memory.note_stall(site, stall);
        if access == Access::Load {
            this.loaded = Some((line, self.memory.version(line)));
        } else {
            self.wake_spinners(line, at);
        }
    }

    /// Charges an access of ordinary code to some bytes. Hits in the first-level cache are part of
    /// the local work. The lines of one access are fetched at the same time.
    pub(crate) fn plain(&mut self, address: usize, bytes: usize, kind: Plain, site: Site) {
        let here = self.here();
        let core = self.machine.topology.core(here);
        let (begins, l1) = (self.clock(), self.machine.costs.l1);
        let access = if kind == Plain::Read { Access::Load } else { Access::Store };
        let mut ends = begins + l1;
        for at in self.memory.lines_of(address, bytes) {
            let line = self.memory.line_at(at, core);
            let served = self.memory.serve(line, core, access, begins, site);
            ends = ends.max(served.at);
            if access != Access::Load {
                self.wake_spinners(line, served.at);
            }
        }
        let this = self.cpu(here);
        if kind == Plain::Write {
            this.stored = this.stored.max(ends);
        } else if ends > begins + l1 {
            this.times.stalled += ends - begins;
            this.clock = ends;
            self.memory.note_stall(site, ends - begins);
        }
    }

    /// Fetches the line at an address, without waiting for it.
    pub(crate) fn prefetch(&mut self, address: usize, access: Access, site: Site) {
        let here = self.here();
        let core = self.machine.topology.core(here);
        let line = self.memory.line_at(address, core);
        let now = self.clock();
        let served = self.memory.serve(line, core, access, now, site);
        if access != Access::Load {
            self.wake_spinners(line, served.at);
        }
    }

    /// Waits until all stores of the processor are done.
    pub(crate) fn fence(&mut self) {
        let here = self.here();
        let fence = self.machine.costs.fence;
        let this = self.cpu(here);
        this.times.stalled += this.stored.saturating_sub(this.clock);
        this.times.useful += fence;
        this.clock = this.clock.max(this.stored) + fence;
    }

    /// Spins once. Returns whether the thread must suspend itself: nobody has written the line that
    /// it loaded last, so it would only spin on.
    pub(crate) fn spin(&mut self) -> bool {
        let here = self.here();
        let pause = self.machine.costs.pause;
        let this = self.cpu(here);
        this.clock += pause;
        this.times.spinning += pause;
        let clock = this.clock;
        let Some((line, version)) = this.loaded else { return false };
        if self.memory.version(line) != version {
            return false;
        }
        self.memory.spin(line, here);
        self.cpu(here).doing = Doing::Spin(line);
        self.continue_at(here, clock + SPIN_LOOK);
        true
    }

    /// Lets the processors that spin on a line look at it again, after it was written at `at`. Each
    /// looks at the end of the hint that it executes at that time.
    fn wake_spinners(&mut self, line: u32, at: u64) {
        let pause = self.machine.costs.pause.max(1);
        for cpu in self.memory.take_spinners(line) {
            let this = self.cpu(cpu);
            if this.doing == Doing::Spin(line) {
                let spun = at.saturating_sub(this.clock).next_multiple_of(pause);
                let looks = this.clock + spun;
                self.continue_at(cpu, looks);
            }
        }
    }
}
