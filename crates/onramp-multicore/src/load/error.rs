//! Why a load could not be simulated.

use onramp_machine::Failed;

/// Why a load could not be simulated.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// A value of the load is out of range.
    Range(String),
    /// The simulation did not come to its end.
    Failed(Failed),
    /// A command failed, or did not reach all qdiscs.
    Command(String),
    /// Packets were lost or made: the numbers that were accepted, sent and dropped.
    Conservation {
        /// Accepted by the link.
        submitted: u64,
        /// Sent by the card.
        sent: u64,
        /// Dropped by the link.
        dropped: u64,
    },
}

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Range(what) | Self::Command(what) => f.write_str(what),
            Self::Failed(why) => write!(f, "the simulation failed: {why}"),
            Self::Conservation { submitted, sent, dropped } => write!(
                f,
                "packets are not conserved: {submitted} accepted, {sent} sent, {dropped} dropped"
            ),
        }
    }
}

impl std::error::Error for LoadError {}
