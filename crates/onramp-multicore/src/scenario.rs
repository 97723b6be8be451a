//! Scenarios: loads that are described in files.

use serde::{Deserialize, Serialize};

use crate::charged::{QDISCS, charged};
use crate::load::{Load, Pacing, Placement, Software, Spread};
use crate::machines::{Description, Unknown};
use crate::parameter::Draw;
use crate::software::Parameters;

/// The scenarios that this crate describes: name and text of the file.
pub const SCENARIOS: &[(&str, &str)] = &[
    ("change-240", include_str!("../data/scenarios/change-240.toml")),
    ("one-port", include_str!("../data/scenarios/one-port.toml")),
    ("paced-240", include_str!("../data/scenarios/paced-240.toml")),
    ("udp-240", include_str!("../data/scenarios/udp-240.toml")),
    ("udp-480", include_str!("../data/scenarios/udp-480.toml")),
];

/// A load, as a file describes it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Name of the scenario.
    pub name: String,
    /// What the scenario is, for people.
    pub title: String,
    /// Name of a machine of [`MACHINES`](crate::MACHINES), or of a file, with a slash or a dot.
    pub machine: String,
    /// Number of sending threads.
    pub threads: u16,
    /// Which processors the threads use.
    pub placement: Placement,
    /// Number of ports of the link.
    pub ports: u16,
    /// How flows are spread over the ports.
    #[serde(default)]
    pub spread: Spread,
    /// The qdisc of each port: a name of [`QDISCS`].
    pub qdisc: String,
    /// Bytes of a payload.
    pub payload: u16,
    /// The pacing rate of each sender's flow, bits per second on the wire, headers included; `None`
    /// if flows have no rate. Only the qdisc `fq` paces.
    pub pacing_bits_per_second: Option<u64>,
    /// How often one more thread changes the limit of all ports' qdiscs in a second, by
    /// `qdisc change`; `None` if no thread does.
    pub changes_per_second: Option<u32>,
    /// Simulated time before the measurement, microseconds.
    pub warm_up_us: u32,
    /// Simulated time of the measurement, microseconds.
    pub measure_us: u32,
}

impl Scenario {
    /// Returns a scenario of [`SCENARIOS`].
    ///
    /// # Errors
    ///
    /// [`Unknown`] names the scenarios that there are.
    pub fn named(name: &str) -> Result<Self, Unknown> {
        match SCENARIOS.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => Self::read(text),
            None => {
                let names: Vec<_> = SCENARIOS.iter().map(|(name, _)| *name).collect();
                Err(Unknown::new(format!(
                    "there is no scenario {name:?}: the scenarios are {}",
                    names.join(", ")
                )))
            }
        }
    }

    /// Reads a scenario from the text of a file.
    ///
    /// # Errors
    ///
    /// [`Unknown`] says what is wrong with the text, and where.
    pub fn read(text: &str) -> Result<Self, Unknown> {
        let this: Self = toml::from_str(text).map_err(|error| Unknown::in_file(text, &error))?;
        let Self { threads, ports, measure_us, .. } = this;
        if threads == 0 || ports == 0 || measure_us == 0 {
            let what = "threads, ports and measure_us are at least 1";
            return Err(Unknown::new(what.to_owned()));
        }
        this.draw(0)?.check().map_err(|why| Unknown::new(why.to_string()))?;
        Ok(this)
    }

    /// Returns the scenario as the text of a file, without comments.
    ///
    /// # Panics
    ///
    /// Never: every scenario can be written.
    #[must_use]
    pub fn text(&self) -> String {
        toml::to_string(self).expect("words and numbers")
    }

    /// Draws a load from the intervals of all parameters. `seed` 0 takes the middle of each.
    ///
    /// # Errors
    ///
    /// [`Unknown`] if there is no such machine.
    pub fn draw(&self, seed: u64) -> Result<Load, Unknown> {
        let mut draw = Draw::new(seed);
        let machine = Description::find(&self.machine)?.draw(&mut draw);
        Ok(Load {
            machine,
            software: self.software(&mut draw)?,
            threads: self.threads,
            placement: self.placement,
            ports: self.ports.into(),
            spread: self.spread,
            qdisc: self.qdisc.clone(),
            payload: self.payload.into(),
            pacing: self.pacing_bits_per_second.map(|bits_per_second| Pacing { bits_per_second }),
            changes_per_second: self.changes_per_second,
            warm_up_us: self.warm_up_us.into(),
            measure_us: self.measure_us.into(),
        })
    }

    fn software(&self, draw: &mut Draw) -> Result<Software, Unknown> {
        if charged(&self.qdisc).is_none() {
            let (qdisc, known) = (&self.qdisc, QDISCS.join(", "));
            return Err(Unknown::new(format!("there is no qdisc {qdisc:?} here: {known}")));
        }
        let parameters = Parameters::onramp()?;
        let ps = |draw: &mut Draw, name: &str| parameters.picoseconds(draw, name);
        // `fq` says itself which lines of a flow it touches.
        let flow_lines = parameters.count(draw, "flow_lines")?;
        let flow_lines = if self.qdisc == "fq" { 0 } else { flow_lines };
        // What it costs to give a packet to the device and to free it, besides the driver's work.
        let packet_ps = ps(draw, "transmit")? + ps(draw, "completion")?;
        Ok(Software {
            program_ps: ps(draw, "program")?,
            send_ps: ps(draw, "send")?,
            enqueue_ps: ps(draw, &format!("enqueue_{}", self.qdisc))?,
            dequeue_ps: ps(draw, &format!("dequeue_{}", self.qdisc))?,
            qdisc_lines: parameters.count(draw, "qdisc_lines")?,
            flow_lines,
            transmit_ps: ps(draw, "driver_xmit")? + packet_ps,
            doorbell_ps: ps(draw, "doorbell")?,
            run_ps: ps(draw, "owner_run")?,
            command_ps: ps(draw, "command")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenarios_are_read_and_written() {
        for (name, _) in SCENARIOS {
            let scenario = Scenario::named(name).unwrap();
            assert_eq!(scenario.name, *name);
            assert_eq!(Scenario::read(&scenario.text()).unwrap(), scenario);
        }
        let paced = Scenario::named("paced-240").unwrap();
        assert_eq!(paced.draw(0).unwrap().pacing, Some(Pacing { bits_per_second: 20_000_000 }));
        let changed = Scenario::named("change-240").unwrap();
        assert_eq!(changed.draw(0).unwrap().changes_per_second, Some(2_000));
    }

    #[test]
    fn fields_with_wrong_values_are_named() {
        let text = Scenario::named("paced-240").unwrap().text();
        for (from, to, words) in [
            ("= 20000000", "= 0", "pacing_bits_per_second: 0 is not between"),
            ("= 20000000", "= 1000", "raise one of them"),
            ("= 20000000", "= -1", "pacing_bits_per_second"),
            ("\"fq\"", "\"pfifo\"", "only the qdisc fq paces"),
            (
                "pacing_bits_per_second = 20000000",
                "changes_per_second = 0",
                "changes_per_second: 0",
            ),
        ] {
            assert!(text.contains(from), "{from}: {text}");
            let why = Scenario::read(&text.replace(from, to)).unwrap_err().to_string();
            assert!(why.contains(words), "{why}");
        }
    }
}
