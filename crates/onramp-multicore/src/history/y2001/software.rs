//! What each step of the kernel of 2001 costs, and the load.

use super::answer::Answer;
use crate::machines::{Description, Unknown};
use crate::parameter::Draw;
use crate::software::Parameters;

/// The least work of a server for a request, besides its packets, picoseconds: the parameter
/// `request_cpu` counts 20 us and more.
const LEAST_WORK_PS: u64 = 20_000_000;
/// A processor sleeps at these many moments of a request if all others are idle: its process waits
/// for the connection and for the request. Each takes two switches.
const SWITCHES: u64 = 4;
/// Machines with more processors than this have two buses, and slower transfers.
const ONE_BUS: usize = 4;

/// What the software costs, and the load. Times are picoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Software {
    pub(super) cpus: usize,
    /// The receiving side of the protocol for one packet, and the sending side.
    pub(super) receive_ps: u64,
    pub(super) send_ps: u64,
    /// The server's work on a request: before it reads, between that and the answer, and after it.
    pub(super) part_ps: u64,
    pub(super) answer: Answer,
    /// Interrupts for each packet that a card has received or sent.
    pub(super) interrupts: f64,
    pub(super) interrupt_ps: u64,
    /// The longest time for which a card keeps packets back.
    pub(super) collect_ps: u64,
    /// Most packets of one pass.
    pub(super) budget: u32,
    /// How often each step of a process raises a softirq.
    pub(super) raises: f64,
    /// How long ksoftirqd waits until it goes before processes that wait too.
    pub(super) delay_ps: u64,
    pub(super) switch_ps: u64,
    /// The part of a switch for each process that can run.
    pub(super) runnable_ps: u64,
    /// The lines that the lock around the run queue moves, for each switch and wake-up.
    pub(super) lock_ps: u64,
    /// From a wake-up to another processor that learns of it.
    pub(super) ipi_ps: u64,
    /// What ksoftirqd displaces from the caches.
    pub(super) cold_ps: u64,
    /// From a packet of the server to the client's answer.
    pub(super) client_ps: u64,
    /// Between two packets of a client that come one after the other.
    pub(super) gap_ps: u64,
    pub(super) clients: usize,
}

/// What distinguishes the two kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kernel {
    /// Passes over one kind of softirq in a call.
    pub(super) passes: u32,
    /// Whether a ksoftirqd that was woken and has nothing to do any more is taken off the run
    /// queue.
    pub(super) unwakes: bool,
    /// Whether a softirq that a process raises runs at once, and not in ksoftirqd.
    pub(super) runs_raised: bool,
}

impl Kernel {
    /// Returns the kernel without the patch, and the one with it.
    pub(super) fn both() -> Result<[Self; 2], Unknown> {
        let all = Parameters::linux_2001()?;
        // These parameters have no interval.
        let count = |name: &str| all.count(&mut Draw::Middle, name);
        let passes = count("softirq_passes_before")?;
        let before = Self { passes, unwakes: false, runs_raised: false };
        let (passes, unwakes) = (count("softirq_passes_after")?, count("unwakeup_after")? > 0);
        Ok([before, Self { passes, unwakes, runs_raised: true }])
    }
}

impl Software {
    pub(super) fn draw(draw: &mut Draw) -> Result<Self, Unknown> {
        let all = Parameters::linux_2001()?;
        // The function returns thousandths of the parameter's unit.
        let us = |draw: &mut Draw, name: &str| all.picoseconds(draw, name).map(|ns| ns * 1_000);
        let cpus = all.count(draw, "cpus")? as usize;
        let (receive_ps, send_ps) = (us(draw, "softirq_rx_packet")?, us(draw, "send_packet")?);
        let answer = Answer::new(all.count(draw, "request_packets")?);
        let interrupts = all.draw(draw, "interrupts_per_packet")?;
        let share = all.draw(draw, "raise_outside_share")?;
        let inside = share / (1.0 - share) * f64::from(answer.packets());
        let packets_ps = answer.received() * receive_ps + answer.sent() * send_ps;
        let work_ps = us(draw, "request_cpu")?.saturating_sub(packets_ps).max(LEAST_WORK_PS);
        let mut this = Self {
            cpus,
            receive_ps,
            send_ps,
            part_ps: work_ps / 3,
            answer,
            interrupts,
            interrupt_ps: us(draw, "interrupt_rx")?,
            collect_ps: us(draw, "collect_delay")?,
            budget: all.count(draw, "rx_budget")?,
            raises: inside / f64::from(answer.steps()),
            delay_ps: us(draw, "ksoftirqd_delay_busy")? * 1_000,
            switch_ps: us(draw, "schedule_fixed")?,
            runnable_ps: us(draw, "schedule_per_runnable")?,
            lock_ps: lock_ps(&all, draw, cpus)?,
            ipi_ps: us(draw, "wake_ipi")?,
            cold_ps: us(draw, "cold_cache_after_switch")?,
            client_ps: us(draw, "client_answer")?,
            gap_ps: us(draw, "client_gap")?,
            clients: 0,
        };
        this.clients = this.clients(all.draw(draw, "load_share")?);
        Ok(this)
    }

    /// Returns the time of processors that a request takes, picoseconds.
    fn request_ps(&self) -> f64 {
        let (answer, switch_ps) = (self.answer, self.switch_ps + self.lock_ps);
        let packets_ps = answer.received() * self.receive_ps + answer.sent() * self.send_ps;
        let interrupts = f64::from(answer.packets()) * self.interrupts;
        let other_ps = packets_ps + 3 * self.part_ps + SWITCHES * switch_ps;
        interrupts * self.interrupt_ps as f64 + other_ps as f64
    }

    /// Returns the number of clients whose requests, if none waited for another, would take a share
    /// `load` of the time of all processors. A client sends its next request when the last one has
    /// been answered.
    fn clients(&self, load: f64) -> usize {
        let request_ps = self.request_ps();
        let alone_ps = request_ps + 2.0 * (self.client_ps + self.gap_ps) as f64;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a cast of a float stays in range, and no count is negative"
        )]
        let clients = (load * self.cpus as f64 * alone_ps / request_ps).round() as usize;
        clients.max(1)
    }
}

/// Draws how long the lines take to move that the lock around the run queue protects, picoseconds.
/// A lone processor has them in its cache.
fn lock_ps(all: &Parameters, draw: &mut Draw, cpus: usize) -> Result<u64, Unknown> {
    let lines = all.draw(draw, "runqueue_lock_lines")?;
    let remote = Description::named("pentium3-2001")?.remote;
    let mut ns = draw.draw(&remote);
    if cpus > ONE_BUS {
        // The upper half of the interval, on a scale of ratios.
        ns = (ns * remote.high).sqrt();
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast of a float stays in range, and no time is negative"
    )]
    let ps = (lines.round() * ns * 1_000.0).round() as u64;
    Ok(if cpus > 1 { ps } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_leaves_idle_time_by_its_rule() {
        for seed in 0..50 {
            let software = Software::draw(&mut Draw::new(seed)).unwrap();
            assert!((1..=8).contains(&software.cpus));
            let waits_ps = 2.0 * (software.client_ps + software.gap_ps) as f64;
            let request_ps = software.request_ps();
            let share = software.clients as f64 * request_ps
                / (request_ps + waits_ps)
                / software.cpus as f64;
            // Half a client more or less than the share says.
            let half = 0.5 / software.cpus as f64 + 1e-9;
            assert!(share <= 0.95 + half && (share >= 0.5 - half || software.clients == 1));
            assert!(software.part_ps >= LEAST_WORK_PS / 3);
        }
    }

    #[test]
    fn only_several_processors_move_lines() {
        let all = Parameters::linux_2001().unwrap();
        let lock = |cpus| lock_ps(&all, &mut Draw::new(0), cpus).unwrap();
        assert_eq!(lock(1), 0);
        assert!(lock(8) > lock(2) && lock(2) > 100_000);
    }

    #[test]
    fn the_kernels_differ_as_the_patch_says() {
        let [before, after] = Kernel::both().unwrap();
        assert_eq!(before, Kernel { passes: 1, unwakes: false, runs_raised: false });
        assert_eq!(after, Kernel { passes: 10, unwakes: true, runs_raised: true });
    }
}
