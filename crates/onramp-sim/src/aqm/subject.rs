//! The qdiscs that the AQM scenarios compare.

use onramp_core::Spec;
use onramp_core::{ConfigError, Rate, Setup};

use super::MTU;

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
    /// example in `tc-red(8)`, which are for 10 Mbit/s, scaled in proportion to the rate. A tree is
    /// returned as its lines.
    #[must_use]
    pub fn line(&self, marks: bool, rate: Rate) -> String {
        if let Some(tree) = &self.tree {
            return tree.lines.clone();
        }
        let ecn = if marks { " ecn" } else { "" };
        match &*self.name {
            "pfifo" => "pfifo limit 1000".to_owned(),
            "red" => {
                let scaled = |bytes: u64| bytes * rate.as_bytes_per_second() / 1_250_000;
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
