//! A chart of an experiment.

use crate::report::chart::Scene;

/// A chart, with a name for its file and the heading above it.
#[derive(Debug)]
pub(super) struct Chart {
    pub(super) name: String,
    pub(super) heading: String,
    pub(super) scene: Scene,
}
