//! Charts: each is drawn once as a list of shapes, and then written as SVG or PNG.
//!
//! `docs/decisions/0008-charts.md` says why this module does not use a library.

mod bars;
mod font;
mod lines;
mod png;
mod scale;
mod scene;
mod stacks;
mod style;
mod times;

pub(crate) use bars::{Bar, Bars};
pub(crate) use font::{bold_width, width};
pub(crate) use lines::{Across, Labels, Line, Lines, Point};
pub(crate) use png::png;
pub(crate) use scene::Scene;
pub(crate) use stacks::{Stack, Stacks, percent};
pub(crate) use style::css;
pub(crate) use times::{Legend, TimeLine, Times};

/// A function that formats a value as text, which the chart shows on its axes and beside bars.
pub(crate) type Words = fn(f64) -> String;

/// Width of every chart in units of the chart. A unit is a pixel if the chart is not scaled.
const WIDTH: f64 = 560.0;
/// Height of a line of text, and size of its letters, in units.
const LINE: f64 = 16.0;
const LETTERS: f64 = 13.0;
/// Distance from the top of the chart to the place below the title where the content begins, in
/// units.
const TOP: f64 = 30.0;
