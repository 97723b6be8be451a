//! The qdiscs that the AQM scenarios compare.

use onramp_core::Spec;
use onramp_core::{ConfigError, Rate, Setup};

use super::MTU;

/// How often `avpkt` of `red` may be doubled. More often is never needed: the average packet would
/// be larger than the queue.
const AVPKT_DOUBLINGS: u32 = 20;

/// A qdisc to measure, with its parameters, or a tree of qdiscs.
#[derive(Clone, Debug)]
pub struct Subject {
    name: String,
    tree: Option<Tree>,
}

/// A tree of qdiscs that a user has described.
#[derive(Clone, Debug)]
struct Tree {
    setup: Setup,
    lines: String,
}

impl Subject {
    /// The kinds of qdiscs that are compared. The first kind is the baseline.
    pub const KINDS: [&str; 6] = ["pfifo", "red", "codel", "fq_codel", "pie", "cake"];

    /// Returns the qdisc to measure for `name`: a kind, or a kind with its parameters in the syntax
    /// of `tc`. A kind alone that is not in [`KINDS`](Self::KINDS) gets its default parameters.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: there is no kind of this name, or its parameters are wrong or missing.
    pub fn new(name: &str) -> Result<Self, ConfigError> {
        let subject = Self { name: name.to_owned(), tree: None };
        subject.setup(false, Rate::bytes_per_second(1_250_000))?;
        Ok(subject)
    }

    /// Returns the tree to measure that `setup` describes; `lines` are its lines of `tc`, for
    /// reports. The tree is the same for all rates and scenarios. `None`: the tree has no root.
    #[must_use]
    pub fn tree(name: &str, setup: Setup, lines: String) -> Option<Self> {
        onramp_core::Tree::of(&setup, MTU, 1)?;
        Some(Self { name: name.to_owned(), tree: Some(Tree { setup, lines }) })
    }

    /// Returns the name of the qdisc's kind, with its parameters if it was made with parameters, or
    /// the name of the tree.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the qdisc with its parameters for a link of the rate `rate`, as a user writes it for
    /// `tc`. If `marks` is true, qdiscs that support ECN are set to mark packets.
    ///
    /// `pfifo` gets the queue length of a Linux Ethernet device. `red` gets the numbers of the
    /// example in `tc-red(8)`, which are for 10 Mbit/s, scaled in proportion to the rate; at high
    /// rates it averages over fewer packets, and above about 7.2 Gbit/s its probability is 3 %
    /// instead of 2 %, because the kernel keeps both in 32 bits. A tree is returned as its lines.
    #[must_use]
    pub fn line(&self, marks: bool, rate: Rate) -> String {
        if let Some(tree) = &self.tree {
            return tree.lines.clone();
        }
        let ecn = if marks { " ecn" } else { "" };
        match &*self.name {
            "pfifo" => "pfifo limit 1000".to_owned(),
            "red" => red(rate) + ecn,
            "codel" | "pie" => format!("{}{ecn}", self.name),
            "fq_codel" if !marks => "fq_codel noecn".to_owned(),
            // `cake` marks packets even if `marks` is false. This does no harm, because in
            // scenarios without marks no flow sends packets that can be marked.
            _ => self.name.clone(),
        }
    }

    pub(super) fn setup(&self, marks: bool, rate: Rate) -> Result<Setup, ConfigError> {
        if let Some(tree) = &self.tree {
            return Ok(tree.setup.clone());
        }
        Ok(Setup::of(self.line(marks, rate).parse::<Spec>()?))
    }
}

/// Returns `red` with the parameters for a link of the rate `rate`.
///
/// `red` stores averages times 2^weight in 32 bits, and the weight grows with `burst` in packets.
/// So at high rates, where the thresholds are large, `avpkt` is doubled until `red` accepts the
/// line: the same bytes are then fewer packets.
fn red(rate: Rate) -> String {
    let mut lines = (0..=AVPKT_DOUBLINGS).map(|doublings| red_line(rate, 1_000 << doublings));
    let accepted = lines.find(|line| line.parse::<Spec>().is_ok());
    accepted.unwrap_or_else(|| red_line(rate, 1_000))
}

fn red_line(rate: Rate, avpkt: u64) -> String {
    let scaled = |number: u64| {
        u64::try_from(u128::from(number) * u128::from(rate.as_bytes_per_second()) / 1_250_000)
            .unwrap_or(u64::MAX)
    };
    let (min, max) = (scaled(30_000).max(3_000), scaled(90_000).max(9_000));
    // `red` refuses a probability that, divided by the bytes from `min` to `max`, is below 2^-31.
    let percent = (max - min).saturating_mul(100) / (1 << 31) + 1;
    let probability = if percent > 2 {
        format!(" probability {}", percent as f64 / 100.0)
    } else {
        String::new()
    };
    format!(
        "red limit {} min {min} max {max} avpkt {avpkt} burst {}{probability} adaptive bandwidth \
         {rate}",
        scaled(400_000).max(40_000),
        (scaled(55_000) / avpkt).max(6),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each kind that is compared accepts its parameters at every rate from 100 kbit/s to
    /// 10 Gbit/s.
    #[test]
    fn the_parameters_are_valid_at_every_rate() {
        let most = 1_250_000_000;
        let rates = std::iter::successors(Some(12_500), |rate| Some(rate + rate / 16));
        for rate in rates.take_while(|rate| *rate < most).chain([most]) {
            for kind in Subject::KINDS {
                let subject = Subject::new(kind).expect("a kind");
                let setup = subject.setup(true, Rate::bytes_per_second(rate));
                assert!(setup.is_ok(), "{kind} at {rate} bytes per second: {setup:?}");
            }
        }
    }

    /// At 10 Mbit/s, `red` has the numbers of `tc-red(8)`; at high rates, the same delays. Above
    /// about 7.2 Gbit/s its probability is raised.
    #[test]
    fn red_is_scaled() {
        let line = |rate| red(Rate::bytes_per_second(rate));
        let same = "red limit 400000 min 30000 max 90000 avpkt 1000 burst 55 adaptive bandwidth \
                    10Mbit";
        assert_eq!(line(1_250_000), same);
        let fast = "red limit 400000000 min 30000000 max 90000000 avpkt 2048000 burst 26 \
                    probability 0.03 adaptive bandwidth 10Gbit";
        assert_eq!(line(1_250_000_000), fast);
        for (rate, is_raised) in [(894_000_000, false), (895_000_000, true)] {
            assert_eq!(line(rate).contains(" probability 0.03 "), is_raised, "{}", line(rate));
        }
    }
}
