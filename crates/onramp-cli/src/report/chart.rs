//! Charts: drawn once as a list of shapes, then written as SVG or PNG.
//!
//! Why not a library: `docs/decisions/0008-charts.md`.

mod bars;
mod font;
mod lines;
mod png;
mod scale;
mod scene;
mod style;
mod times;

pub(crate) use bars::{Bar, Bars};
pub(crate) use lines::{Across, Labels, Line, Lines, Point};
pub(crate) use png::png;
pub(crate) use scene::Scene;
pub(crate) use style::css;
pub(crate) use times::{TimeLine, Times};

/// How figures are written at axes and bars.
pub(crate) type Words = fn(f64) -> String;

/// Width of every chart, units of its own: pixels where nothing scales it.
const WIDTH: f64 = 560.0;
/// Height of a line of text, and size of its letters.
const LINE: f64 = 16.0;
const LETTERS: f64 = 13.0;
/// Where what is below the title begins.
const TOP: f64 = 30.0;
