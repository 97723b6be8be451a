//! A chart in the report of an experiment.

use crate::report::chart::Scene;

/// A drawn chart, with a name for its file and the heading that stands above it on the page.
#[derive(Debug)]
pub(super) struct Chart {
    pub(super) name: String,
    pub(super) heading: String,
    pub(super) scene: Scene,
}
