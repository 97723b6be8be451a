//! A chart with a bar for each design, divided into parts that together are the whole bar.

use super::font;
use super::scale::Scale;
use super::scene::{Anchor, Mark, Scene, fitting_in};
use super::style::Style;
use super::{LETTERS, LINE, TOP, WIDTH};

/// A chart of divided bars, listed from top to bottom. All bars have the same parts.
#[derive(Debug)]
pub(crate) struct Stacks {
    pub(crate) title: String,
    /// The names of the parts, from left to right. The last part is drawn in grey: it is what is
    /// left over.
    pub(crate) parts: Vec<String>,
    pub(crate) stacks: Vec<Stack>,
}

/// A divided bar.
#[derive(Debug)]
pub(crate) struct Stack {
    pub(crate) name: String,
    /// The share of each part, from 0 to 1; together about 1.
    pub(crate) shares: Vec<f64>,
    pub(crate) highlighted: bool,
}

impl Stacks {
    /// Draws the chart; `None` if there is no bar, or if a share is negative or not finite.
    pub(crate) fn draw(&self) -> Option<Scene> {
        let mut shares = self.stacks.iter().flat_map(|stack| &stack.shares);
        if self.stacks.is_empty() || !shares.all(|share| share.is_finite() && *share >= 0.0) {
            return None;
        }
        let width = |stack: &Stack| {
            let width = if stack.highlighted { font::bold_width } else { font::width };
            width(&stack.name, LETTERS)
        };
        let names = self.stacks.iter().map(width).fold(0.0, f64::max).min(WIDTH / 3.0);
        let (left, right) = (names + GAP, WIDTH - font::width("100 %", LETTERS) / 2.0);
        let scale = Scale::linear(1.0, (left, left + (right - left) * 1.03));
        let bottom = TOP + self.stacks.len() as f64 * STEP;
        let legend = self.legend();
        let lines = legend.last().map_or(0.0, |(_, line, _)| line + 1.0);
        let mut scene = Scene::new(self.title.clone(), bottom + LINE + GAP + lines * (LINE + 2.0));
        for (tick, words) in
            [(0.0, "0"), (0.25, "25 %"), (0.5, "50 %"), (0.75, "75 %"), (1.0, "100 %")]
        {
            let x = scale.place(tick);
            scene.path(vec![(x, TOP), (x, bottom)], Style::Grid);
            scene.text(x, bottom + LINE, Anchor::Middle, Style::SoftText, words);
        }
        for (row, stack) in self.stacks.iter().enumerate() {
            self.stack(&mut scene, stack, &scale, TOP + row as f64 * STEP, names);
        }
        let top = bottom + LINE + GAP;
        for (part, (x, line, _)) in legend.iter().enumerate() {
            let top = top + line * (LINE + 2.0);
            scene.rect([*x, top + 2.0, SQUARE, SQUARE], self.style(part), None);
            let name = &self.parts[part];
            scene.text(x + SQUARE + GAP / 2.0, top + SQUARE, Anchor::Start, Style::Text, name);
        }
        let words = self.stacks.iter().map(|stack| self.words(stack));
        scene.words = words.collect::<Vec<_>>().join("; ");
        Some(scene)
    }

    fn stack(&self, scene: &mut Scene, stack: &Stack, scale: &Scale, top: f64, names: f64) {
        let text = if stack.highlighted { Style::BoldText } else { Style::Text };
        let base = top + STEP / 2.0 + LINE / 3.0;
        let name = fitting_in(stack.highlighted, &stack.name, names + 1.0);
        scene.text(names, base, Anchor::End, text, &name);
        let mut from = 0.0;
        for (part, share) in stack.shares.iter().enumerate() {
            let (left, right) = (scale.place(from), scale.place(from + share));
            from += share;
            let name = &self.parts[part];
            let series = format!("{}, {name}", stack.name);
            let words = format!("{series}: {}", percent(*share));
            let mark = Mark { series, figure: *share, words };
            // A thin gap tells neighbours apart without their colours.
            let width = (right - left - 0.6).max(0.0);
            scene.rect([left, top + 3.0, width, STEP - 6.0], self.style(part), Some(mark));
        }
    }

    fn style(&self, part: usize) -> Style {
        if part + 1 == self.parts.len() { Style::Bar } else { Style::Marker(part) }
    }

    /// Returns for each part where its name stands below the chart: the left end, the number of the
    /// line, and the right end.
    fn legend(&self) -> Vec<(f64, f64, f64)> {
        let (mut x, mut line, mut places) = (0.0, 0.0, Vec::new());
        for name in &self.parts {
            let width = SQUARE + GAP / 2.0 + font::width(name, LETTERS) + 2.0 * GAP;
            if x + width > WIDTH && x > 0.0 {
                (x, line) = (0.0, line + 1.0);
            }
            places.push((x, line, x + width));
            x += width;
        }
        places
    }

    fn words(&self, stack: &Stack) -> String {
        let part = |(part, share): (&String, &f64)| format!("{part} {}", percent(*share));
        let parts: Vec<_> = self.parts.iter().zip(&stack.shares).map(part).collect();
        format!("{}: {}", stack.name, parts.join(", "))
    }
}

/// Returns a share of a whole in percent.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Height of a bar and the gap below it, in units.
const STEP: f64 = 26.0;
const GAP: f64 = 8.0;
/// Side of a square that shows a part's colour.
const SQUARE: f64 = 12.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn stacks(shares: &[&[f64]]) -> Stacks {
        let stack = |shares: &&[f64]| Stack {
            name: "design".to_owned(),
            shares: shares.to_vec(),
            highlighted: false,
        };
        Stacks {
            title: "Title".to_owned(),
            parts: ["useful", "spinning", "idle"].map(str::to_owned).to_vec(),
            stacks: shares.iter().map(stack).collect(),
        }
    }

    #[test]
    fn parts_stand_one_after_another_and_fill_the_bar() {
        let scene = stacks(&[&[0.5, 0.125, 0.375], &[0.0, 1.0, 0.0]]).draw().expect("bars");
        let want = "design: useful 50.0 %, spinning 12.5 %, idle 37.5 %; \
                    design: useful 0.0 %, spinning 100.0 %, idle 0.0 %";
        assert_eq!(scene.words, want);
        let svg = scene.svg();
        let xml = roxmltree::Document::parse(&svg).expect("XML");
        let marks = xml.descendants().filter(|node| node.attribute("data-figure").is_some());
        let place = |node: roxmltree::Node<'_, '_>| {
            let number = |key| -> f64 {
                node.attribute(key).and_then(|text| text.parse().ok()).expect("a number")
            };
            (number("x"), number("width"), number("data-figure"))
        };
        let places: Vec<_> = marks.map(place).collect();
        let [one, two, three, nothing, all, _] = places[..] else { panic!("{places:?}") };
        for (before, next) in [(one, two), (two, three)] {
            let gap = next.0 - before.0 - before.1;
            assert!((0.3..1.0).contains(&gap), "{places:?}");
        }
        assert!((one.1 / two.1 - 4.0).abs() < 0.2, "as long as their shares: {places:?}");
        assert!(nothing.1.abs() < 1e-9 && (three.0 + three.1 - all.0 - all.1).abs() < 0.3);
        assert!(all.0 + all.1 <= WIDTH && one.2 > two.2);
        for name in ["useful", "spinning", "idle"] {
            assert_eq!(svg.matches(&format!(">{name}</text>")).count(), 1, "{svg}");
        }
    }

    #[test]
    fn nothing_to_draw_is_no_chart() {
        assert!(stacks(&[]).draw().is_none());
        assert!(stacks(&[&[f64::NAN, 0.0, 0.0]]).draw().is_none());
        assert!(stacks(&[&[-0.5, 1.0, 0.5]]).draw().is_none());
    }
}
