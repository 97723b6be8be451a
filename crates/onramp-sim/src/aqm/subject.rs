//! The qdiscs that are compared.

use onramp_core::Spec;
use onramp_core::{ConfigError, Rate, Setup};

/// A qdisc with its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    name: String,
}

impl Subject {
    /// Kinds that are compared, the baseline first.
    pub const KINDS: [&str; 6] = ["pfifo", "red", "codel", "fq_codel", "pie", "cake"];

    /// The kind `name`; one that is not of [`KINDS`](Self::KINDS) has its defaults.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: there is no such kind, or it needs parameters.
    pub fn new(name: &str) -> Result<Self, ConfigError> {
        let subject = Self { name: name.to_owned() };
        subject.setup(false, Rate(1_250_000))?;
        Ok(subject)
    }

    /// The name of its kind.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// It, as one writes it for `tc`; with marks for those that understand them, or without.
    ///
    /// `pfifo` has the queue of an Ethernet device of Linux. What `red` has are the numbers of the
    /// example in `tc-red(8)`, which are for 10 Mbit/s, in proportion to the rate.
    #[must_use]
    pub fn line(&self, marks: bool, rate: Rate) -> String {
        let ecn = if marks { " ecn" } else { "" };
        match &*self.name {
            "pfifo" => "pfifo limit 1000".to_owned(),
            "red" => {
                let scaled = |bytes: u64| bytes * rate.0 / 1_250_000;
                format!(
                    "red limit {} min {} max {} avpkt 1000 burst {} adaptive bandwidth {}{ecn}",
                    scaled(400_000).max(40_000),
                    scaled(30_000).max(3_000),
                    scaled(90_000).max(9_000),
                    scaled(55).max(6),
                    rate,
                )
            }
            "codel" | "pie" => format!("{}{ecn}", self.name),
            "fq_codel" if !marks => "fq_codel noecn".to_owned(),
            // `cake` always marks; without marks nobody sends what it could mark.
            _ => self.name.clone(),
        }
    }

    pub(super) fn setup(&self, marks: bool, rate: Rate) -> Result<Setup, ConfigError> {
        Ok(Setup::of(self.line(marks, rate).parse::<Spec>()?))
    }
}
