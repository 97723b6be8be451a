//! The font of charts: DejaVu Sans. The program contains it, so that text looks the same
//! everywhere, even on machines without fonts. DejaVu Sans is a wide font, so text that fits in it
//! also fits in other fonts.

use std::sync::LazyLock;

use tiny_skia::{Path, PathBuilder};
use ttf_parser::{Face, GlyphId, OutlineBuilder};

static FACE: LazyLock<Face<'static>> =
    LazyLock::new(|| Face::parse(dejavu::sans::regular(), 0).expect("the font that is built in"));

/// Returns the width of `text` in letters of size `size`.
pub(crate) fn width(text: &str, size: f64) -> f64 {
    let units: f64 = text.chars().map(|letter| f64::from(advance(glyph(letter)))).sum();
    units * size / f64::from(FACE.units_per_em())
}

/// Returns an estimate of the width of `text` in bold letters. The built-in font has no bold
/// letters, but browsers show SVG with fonts that have them.
pub(crate) fn bold_width(text: &str, size: f64) -> f64 {
    BOLD * width(text, size)
}

/// Returns the outlines of `text` in letters of size `size`. The text begins at `x` and stands on
/// the base line `y`. `None` if the text has no outlines, such as a space.
#[expect(clippy::cast_possible_truncation, reason = "places on a picture")]
pub(super) fn outline(text: &str, size: f64, x: f64, y: f64) -> Option<Path> {
    let scale = (size / f64::from(FACE.units_per_em())) as f32;
    let mut pen = Pen { path: PathBuilder::new(), scale, x: x as f32, y: y as f32 };
    for letter in text.chars() {
        let glyph = glyph(letter);
        FACE.outline_glyph(glyph, &mut pen);
        pen.x += f32::from(advance(glyph)) * scale;
    }
    pen.path.finish()
}

/// Returns the number of a letter's shape in the font. A letter that the font lacks is shown as a
/// box.
fn glyph(letter: char) -> GlyphId {
    FACE.glyph_index(letter).unwrap_or_default()
}

fn advance(glyph: GlyphId) -> u16 {
    FACE.glyph_hor_advance(glyph).unwrap_or_default()
}

/// Draws the outlines of letters into a path. In the font y grows upwards, but in pictures y grows
/// downwards.
struct Pen {
    path: PathBuilder,
    scale: f32,
    x: f32,
    y: f32,
}

impl Pen {
    fn at(&self, x: f32, y: f32) -> (f32, f32) {
        (self.x + x * self.scale, self.y - y * self.scale)
    }
}

impl OutlineBuilder for Pen {
    fn move_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        let ((x1, y1), (x, y)) = (self.at(x1, y1), self.at(x, y));
        self.path.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        let ((x1, y1), (x2, y2), (x, y)) = (self.at(x1, y1), self.at(x2, y2), self.at(x, y));
        self.path.cubic_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.path.close();
    }
}

/// How much wider bold letters are than others, at most.
const BOLD: f64 = 1.17;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_a_width_and_outlines() {
        assert!(width("mmm", 13.0) > width("iii", 13.0));
        assert!((width("onramp", 26.0) - 2.0 * width("onramp", 13.0)).abs() < 1e-9);
        let bounds = outline("onramp", 13.0, 100.0, 50.0).expect("letters").bounds();
        assert!(bounds.left() >= 100.0 && bounds.right() <= 100.0 + 60.0, "{bounds:?}");
        assert!(bounds.top() > 30.0 && bounds.bottom() < 56.0, "{bounds:?}");
        assert_eq!(outline(" ", 13.0, 0.0, 0.0), None);
    }

    #[test]
    fn all_letters_that_reports_use_are_there() {
        assert!("µ×–…%".chars().all(|letter| FACE.glyph_index(letter).is_some()));
    }
}
