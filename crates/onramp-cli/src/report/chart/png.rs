//! Writes a chart as a PNG picture, in the light theme.

use anyhow::{Context, Result};
use tiny_skia::{
    Color, FillRule, LineCap, Paint, Path, PathBuilder, Pixmap, Rect, Stroke, StrokeDash, Transform,
};

use super::scene::{Anchor, Item, Scene, Shape};
use super::style::{Ink, Style};
use super::{LETTERS, WIDTH, font};

/// Number of pixels for each unit of a chart. It suits screens with a high resolution.
const SCALE: f32 = 2.0;
/// Width of the empty border in units.
const BORDER: f32 = 12.0;

/// Returns the content of the PNG file.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sizes of a picture")]
pub(crate) fn png(scene: &Scene) -> Result<Vec<u8>> {
    let side = |length: f64| ((length as f32 + 2.0 * BORDER) * SCALE).ceil() as u32;
    let picture = Pixmap::new(side(WIDTH), side(scene.height));
    let mut picture = picture.with_context(|| format!("the chart {} is too large", scene.title))?;
    if let Some(paper) = Style::Paper.look().fill {
        picture.fill(colour(paper));
    }
    for item in &scene.items {
        draw(&mut picture, item);
    }
    picture.encode_png().with_context(|| format!("the chart {} makes no PNG", scene.title))
}

fn draw(picture: &mut Pixmap, item: &Item) {
    let look = item.style.look();
    let Some(path) = path(&item.shape) else { return };
    let at = Transform::from_scale(SCALE, SCALE).post_translate(BORDER * SCALE, BORDER * SCALE);
    if let Some(ink) = look.fill {
        picture.fill_path(&path, &paint(ink), FillRule::Winding, at, None);
        if item.style == Style::BoldText {
            // The built-in font has only one weight, so bold text is drawn with an extra outline.
            let stroke = Stroke { width: 0.45, ..Stroke::default() };
            picture.stroke_path(&path, &paint(ink), &stroke, at, None);
        }
    }
    if let Some(ink) = look.stroke {
        let dash = StrokeDash::new(item.style.dashes().to_vec(), 0.0);
        let stroke =
            Stroke { width: look.width, dash, line_cap: LineCap::Butt, ..Stroke::default() };
        picture.stroke_path(&path, &paint(ink), &stroke, at, None);
    }
}

/// Returns the path of a shape; `None` if the shape has nothing visible.
#[expect(clippy::cast_possible_truncation, reason = "places on a picture")]
fn path(shape: &Shape) -> Option<Path> {
    match shape {
        Shape::Rect(rect) => {
            let [x, y, width, height] = rect.map(|length| length as f32);
            Rect::from_xywh(x, y, width, height).map(PathBuilder::from_rect)
        }
        Shape::Path { points, closed } => {
            let mut path = PathBuilder::new();
            for (n, (x, y)) in points.iter().map(|(x, y)| (*x as f32, *y as f32)).enumerate() {
                if n == 0 { path.move_to(x, y) } else { path.line_to(x, y) }
            }
            if *closed {
                path.close();
            }
            path.finish()
        }
        Shape::Dot(dot) => {
            let [x, y, radius] = dot.map(|length| length as f32);
            PathBuilder::from_circle(x, y, radius)
        }
        Shape::Text { x, y, anchor, text } => {
            let before = match anchor {
                Anchor::Start => 0.0,
                Anchor::Middle => font::width(text, LETTERS) / 2.0,
                Anchor::End => font::width(text, LETTERS),
            };
            font::outline(text, LETTERS, x - before, *y)
        }
    }
}

fn paint(ink: Ink) -> Paint<'static> {
    let mut paint = Paint::default();
    paint.set_color(colour(ink));
    paint
}

fn colour(ink: Ink) -> Color {
    let [_, red, green, blue] = ink.light.to_be_bytes();
    Color::from_rgba8(red, green, blue, u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::chart::{Bar, Bars};

    fn picture(name: &str) -> Pixmap {
        let bar = |name: &str, highlighted| Bar {
            name: name.to_owned(),
            figure: Some(5.0),
            range: Some((4.0, 6.0)),
            note: String::new(),
            highlighted,
        };
        let bars = Bars {
            title: "Title".to_owned(),
            bars: vec![bar(name, false), bar("onramp", true)],
            words: |figure| figure.to_string(),
        };
        let file = png(&bars.draw().expect("bars")).expect("a picture");
        Pixmap::decode_png(&file).expect("a PNG")
    }

    /// Returns the number of pixels that have exactly the colour `ink` in the light theme.
    fn count(picture: &Pixmap, ink: Ink) -> usize {
        let wanted = colour(ink).to_color_u8();
        picture.pixels().iter().filter(|pixel| pixel.demultiply() == wanted).count()
    }

    #[test]
    fn bars_and_text_are_drawn_in_the_light_theme() {
        let picture = picture("other");
        assert_eq!(picture.width(), 2 * (560 + 24));
        let ink = |style: Style| style.look().fill.expect("it is filled");
        let bars = [Style::Bar, Style::OursBar].map(|style| count(&picture, ink(style)));
        // Each bar is 20 units high (26 less a gap of 6) and more than 300 units long, and a square
        // unit has 4 pixels. So more than 20 * 4 * 300 pixels must have the colour of the bar.
        assert!(bars.iter().all(|pixels| *pixels > 20 * 4 * 300), "{bars:?}");
        assert!(count(&picture, ink(Style::Paper)) > bars[0], "the paper is white");
        assert!(count(&picture, ink(Style::Text)) > 200, "there is text");
    }

    #[test]
    fn different_names_are_different_pictures() {
        assert_ne!(picture("one").data(), picture("two").data());
    }
}
