//! The laboratory's designs of the transmit path under the load of a scenario, all under the same
//! conditions: the same packets, credits, qdisc, device and work of the program, and the same
//! manners ([`Manners::Equal`]).

use onramp_core::Kinds;
use onramp_lab::contention::simulated::{Cell, run};
use onramp_lab::contention::{Design, Manners};
use onramp_machine::{Setup, simulate};

use crate::charged::charged;
use crate::load::{Load, Placement, Software, Spread};
use crate::machines::Unknown;
use crate::scenario::Scenario;

pub use onramp_lab::contention::simulated::Outcome as DesignOutcome;
pub use onramp_lab::lockstat::LockRow;

/// The designs that can be simulated: complete transmit paths whose locks the simulated machine
/// knows. Left out are those that wait in the kernel for a mutex, because the simulated one hands
/// over in strict order.
const DESIGNS: &[Design] = &[
    Design::Spinlock,
    Design::Ticket,
    Design::Busylock,
    Design::Handicap,
    Design::PercpuQueue,
    Design::Llist,
    Design::Queued,
    Design::BusylockQueued,
    Design::LlistQueued,
    Design::RingPerSender,
    Design::Onramp,
    Design::OnrampInline,
    Design::OnrampDedicated,
];

/// Packets of all senders in flight for each port, and of one sender: Onramp's defaults.
const CREDITS_PER_PORT: u32 = 8_192;
const CREDITS: u32 = 96;
/// The fewest packets that a sender may have in flight.
const CREDITS_MIN: u32 = 4;

impl Scenario {
    /// Checks that [`simulate_design`](Self::simulate_design) can simulate this design under the
    /// load of this scenario.
    ///
    /// # Errors
    ///
    /// [`Unknown`] says what is wrong with the name or the scenario.
    pub fn check_design(&self, design: &str) -> Result<(), Unknown> {
        self.design(design).map(drop)
    }

    fn design(&self, name: &str) -> Result<Design, Unknown> {
        let design = DESIGNS.iter().find(|known| known.name() == name).ok_or_else(|| {
            let names: Vec<_> = DESIGNS.iter().map(|design| design.name()).collect();
            let names = names.join(", ");
            Unknown::new(format!("no design {name:?} can be simulated: there are {names}"))
        })?;
        let what = if self.spread != Spread::Turn {
            "only with spread = \"turn\": change it in the scenario"
        } else if self.pacing_bits_per_second.is_some() {
            "only without pacing_bits_per_second: take it out of the scenario"
        } else if self.changes_per_second.is_some() {
            "only without changes_per_second: take it out of the scenario"
        } else {
            return Ok(*design);
        };
        Err(Unknown::new(format!("designs can be compared {what}")))
    }

    /// Simulates a design of the laboratory, by its name there, under the load of this scenario,
    /// with one draw of all parameters. Sender after sender uses the next port. `seed` 0 takes the
    /// middle of each interval.
    ///
    /// # Errors
    ///
    /// [`Unknown`] says what is wrong with the name or the scenario, or what went wrong.
    pub fn simulate_design(&self, design: &str, seed: u64) -> Result<DesignOutcome, Unknown> {
        let Load { machine, software, .. } = self.draw(seed)?;
        let cell = self.cell(self.design(design)?, &software, seed)?;
        let setup = Setup { machine, limit_ns: 100_000_000_000, measure_ns: 0..0 };
        let (outcome, _) = simulate(&setup, move || run(&cell))
            .map_err(|why| Unknown::new(format!("{design}: the simulation failed: {why}")))?;
        outcome.map_err(|why| Unknown::new(format!("{design}: {why}")))
    }

    fn cell(&self, design: Design, software: &Software, seed: u64) -> Result<Cell, Unknown> {
        let wrong = |why: onramp_core::ConfigError| Unknown::new(why.to_string());
        let kinds = Kinds::new(charged(&self.qdisc)).map_err(wrong)?;
        let pinned = |sender| (self.placement == Placement::Pinned).then_some(sender);
        let run_ps = if design == Design::Onramp { software.run_ps } else { 0 };
        let fair = CREDITS_PER_PORT * u32::from(self.ports) / u32::from(self.threads);
        Ok(Cell {
            design,
            manners: Manners::Equal,
            senders: (0..self.threads).map(pinned).collect(),
            load: onramp_lab::Load::Stream,
            queues: self.ports.into(),
            qdisc: kinds.spec(&software.qdisc(&self.qdisc)).map_err(wrong)?,
            credits: Some(fair.clamp(CREDITS_MIN, CREDITS)),
            payload: self.payload.into(),
            local_ns: (software.program_ps + software.send_ps) / 1_000,
            packet_ns: software.transmit_ps / 1_000,
            burst_ns: (software.doorbell_ps + run_ps) / 1_000,
            warm_up_ns: u64::from(self.warm_up_us) * 1_000,
            window_ns: u64::from(self.measure_us) * 1_000,
            seed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario() -> Scenario {
        let text = "name = 'small'\ntitle = 'small'\nmachine = 'desktop-amd'\nthreads = 6\n\
                    placement = 'pinned'\nports = 2\nqdisc = 'fq'\npayload = 120\n\
                    warm_up_us = 100\nmeasure_us = 200\n";
        Scenario::read(text).unwrap()
    }

    #[test]
    fn each_design_sends_and_keeps_packets() {
        for design in DESIGNS.iter().map(|design| design.name()) {
            let outcome = scenario().simulate_design(design, 0).unwrap();
            assert!(outcome.sent > 100 && outcome.submitted.len() == 6, "{design}: {outcome:?}");
            assert!(outcome.report.times.all() > 0, "{design}");
        }
    }

    #[test]
    fn the_load_decides() {
        let sent = |scenario: &Scenario| scenario.simulate_design("llist-queued", 3).unwrap().sent;
        // So many that one port is not enough for them.
        let many = |ports| Scenario { threads: 12, ports, ..scenario() };
        let base = sent(&many(2));
        let half = sent(&many(1));
        assert!(half < base, "half the ports: {half} of {base}");
        let alone = sent(&Scenario { threads: 1, ..scenario() });
        assert!(alone < base, "one thread: {alone} of {base}");
    }

    /// Senders that wait for the others to be ready leave these a processor.
    #[test]
    fn more_senders_than_processors() {
        let machine = "pentium3-2001".to_owned();
        let placement = Placement::Free;
        let many = Scenario { machine, placement, threads: 60, ports: 1, ..scenario() };
        assert!(many.simulate_design("llist", 0).unwrap().sent > 0);
    }

    #[test]
    fn wrong_names_are_refused() {
        let why = scenario().simulate_design("mutex", 0).unwrap_err().to_string();
        assert!(why.contains("\"mutex\"") && why.contains("llist-queued"), "{why}");
        let near = Scenario { spread: Spread::Near, ..scenario() };
        assert!(near.simulate_design("onramp", 0).unwrap_err().to_string().contains("spread"));
        let paced = Scenario { pacing_bits_per_second: Some(10_000_000), ..scenario() };
        assert!(paced.check_design("onramp").unwrap_err().to_string().contains("pacing_bits"));
        let changed = Scenario { changes_per_second: Some(1), ..scenario() };
        assert!(changed.check_design("onramp").unwrap_err().to_string().contains("changes_per"));
    }
}
