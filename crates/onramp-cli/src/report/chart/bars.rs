//! A chart with a bar for each design. A whisker (a thin line with ends) on the bar reaches from
//! the least to the greatest value over the rounds.

use super::font;
use super::scale::Scale;
use super::scene::{Anchor, Mark, Scene, fitting_in};
use super::style::Style;
use super::{LETTERS, LINE, TOP, WIDTH, Words};

/// A chart of bars, listed from top to bottom.
#[derive(Debug)]
pub(crate) struct Bars {
    pub(crate) title: String,
    pub(crate) bars: Vec<Bar>,
    /// The function that formats a bar's value as the text beside the bar.
    pub(crate) words: Words,
}

/// A bar. If its value (`figure`) is missing, the text "not measured" stands in place of the bar.
#[derive(Debug)]
pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) figure: Option<f64>,
    /// The least and the greatest value over the rounds of the measurement, which the whisker
    /// shows.
    pub(crate) range: Option<(f64, f64)>,
    /// Text that follows the bar's value, such as a ratio.
    pub(crate) note: String,
    pub(crate) highlighted: bool,
}

impl Bar {
    /// Returns the greatest value that the bar and its whisker reach.
    fn end(&self) -> f64 {
        let figure = self.figure.unwrap_or(0.0);
        self.range.map_or(figure, |(_, most)| most.max(figure))
    }

    /// Returns the width of a text in the letters of this bar.
    fn width(&self, text: &str) -> f64 {
        let width = if self.highlighted { font::bold_width } else { font::width };
        width(text, LETTERS)
    }

    fn is_finite(&self) -> bool {
        let (least, most) = self.range.unwrap_or_default();
        [self.figure.unwrap_or_default(), least, most].into_iter().all(f64::is_finite)
    }
}

impl Bars {
    /// Draws the chart; `None` if no value is above zero or if a value is not finite.
    pub(crate) fn draw(&self) -> Option<Scene> {
        let most = self.most();
        let finite = self.bars.iter().all(Bar::is_finite);
        if !(most > 0.0 && finite) {
            return None;
        }
        let names = self.bars.iter().map(|bar| bar.width(&bar.name)).fold(0.0, f64::max);
        let notes = self.bars.iter().map(|bar| bar.width(&self.beside(bar, most)));
        let notes = notes.fold(0.0, f64::max);
        let room = WIDTH - notes - 3.0 * GAP - WIDTH / 6.0;
        let names = names.min(room.clamp(WIDTH / 4.0, NAMES_MAX));
        let left = names + GAP;
        // The note of a bar stands to the right of the bar's whisker. The longest bar is made so
        // short that the longest note would fit beside it.
        let right = (WIDTH - notes - 2.0 * GAP).max(left + WIDTH / 6.0);
        let scale = Scale::linear(most, (left, right));
        let mut scene = Scene::new(self.title.clone(), TOP + self.bars.len() as f64 * STEP);
        for (row, bar) in self.bars.iter().enumerate() {
            self.bar(&mut scene, bar, (&scale, most), TOP + row as f64 * STEP, names);
        }
        let words = self.bars.iter().map(|bar| format!("{}: {}", bar.name, self.note(bar)));
        scene.words = words.collect::<Vec<_>>().join("; ");
        Some(scene)
    }

    fn bar(
        &self,
        scene: &mut Scene,
        bar: &Bar,
        (scale, most): (&Scale, f64),
        top: f64,
        names: f64,
    ) {
        let (middle, base) = (top + STEP / 2.0, top + STEP / 2.0 + LINE / 3.0);
        let text = if bar.highlighted { Style::BoldText } else { Style::Text };
        let name = fitting_in(bar.highlighted, &bar.name, names + 1.0);
        scene.text(names, base, Anchor::End, text, &name);
        if let Some(figure) = bar.figure {
            let (left, style) = (scale.place(0.0), [Style::Bar, Style::OursBar]);
            let words = format!("{}: {}", bar.name, self.range(bar));
            let mark = Mark { series: bar.name.clone(), figure, words };
            let width = (scale.place(figure) - left).max(0.5);
            let rect = [left, top + 3.0, width, STEP - 6.0];
            scene.rect(rect, style[usize::from(bar.highlighted)], Some(mark));
        }
        if let Some((least, most)) = bar.range.filter(|(least, most)| most > least) {
            let (from, to) = (scale.place(least), scale.place(most));
            scene.path(vec![(from, middle), (to, middle)], Style::Whisker);
            for x in [from, to] {
                scene.path(vec![(x, middle - CAP), (x, middle + CAP)], Style::Whisker);
            }
        }
        let x = scale.place(bar.end()) + GAP;
        scene.text(x, base, Anchor::Start, text, &self.beside(bar, most));
    }

    /// Returns the value at which the scale ends. If a few of many bars are several times as long
    /// as most others, the scale does not reach their ends, because the others would be too short
    /// to be compared.
    fn most(&self) -> f64 {
        let mut ends: Vec<f64> = self.bars.iter().map(Bar::end).collect();
        ends.sort_by(f64::total_cmp);
        let longest = ends.last().copied().unwrap_or(0.0);
        let usual = ends.get(ends.len() / 2).map_or(0.0, |end| end * CUT);
        let shown = ends.partition_point(|end| *end <= usual);
        match ends.len() {
            many if many >= MANY && many - shown <= many / 4 && shown > 0 => {
                let end = ends[shown - 1];
                // To cut a bar that is not much longer than the next one would gain nothing.
                if longest > 2.0 * end { end } else { longest }
            }
            _ => longest,
        }
    }

    /// Returns the text that stands to the right of the bar.
    fn beside(&self, bar: &Bar, most: f64) -> String {
        let cut = if bar.end() > most { " (cut)" } else { "" };
        self.note(bar) + cut
    }

    /// Returns the bar's value as text, followed by the bar's note.
    fn note(&self, bar: &Bar) -> String {
        let figure = bar.figure.map_or_else(|| "not measured".to_owned(), self.words);
        if bar.note.is_empty() { figure } else { format!("{figure}, {}", bar.note) }
    }

    fn range(&self, bar: &Bar) -> String {
        let (words, note) = (self.words, self.note(bar));
        bar.range.map_or_else(
            || note.clone(),
            |(least, most)| format!("{note} ({} – {})", words(least), words(most)),
        )
    }
}

/// Height of a bar and the gap below it, in units.
const STEP: f64 = 26.0;
const GAP: f64 = 8.0;
/// The most room that the names of the bars may have, in units.
const NAMES_MAX: f64 = 0.62 * WIDTH;
/// If a chart has at least `MANY` bars, a bar that is more than `CUT` times as long as half of the
/// others is cut.
const MANY: usize = 8;
const CUT: f64 = 5.0;
/// Half the height of the short line at each end of a whisker, in units.
const CAP: f64 = 4.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn bars(figures: &[Option<f64>]) -> Bars {
        let bar = |figure: &Option<f64>| Bar {
            name: "design".to_owned(),
            figure: *figure,
            range: figure.map(|figure| (figure * 0.5, figure * 2.0)),
            note: "1×".to_owned(),
            highlighted: false,
        };
        Bars {
            title: "Title".to_owned(),
            bars: figures.iter().map(bar).collect(),
            words: |figure| figure.to_string(),
        }
    }

    #[test]
    fn bars_without_a_figure_say_so() {
        let scene = bars(&[Some(4.0), None]).draw().expect("one bar");
        assert_eq!(scene.words, "design: 4, 1×; design: not measured, 1×");
        assert_eq!(scene.svg().matches("data-figure").count(), 1);
    }

    #[test]
    fn whiskers_end_at_the_least_and_the_greatest_round() {
        // The first bar has the value 4 and a whisker from 2 to 8. The ends of the whisker must be
        // where the other two bars, which have the values 2 and 8, end.
        let svg = bars(&[Some(4.0), Some(2.0), Some(8.0)]).draw().expect("bars").svg();
        let xml = roxmltree::Document::parse(&svg).expect("XML");
        let place = |node: roxmltree::Node<'_, '_>, key| -> f64 {
            node.attribute(key).and_then(|text| text.parse().ok()).expect("a place")
        };
        let marks = xml.descendants().filter(|node| node.attribute("data-figure").is_some());
        let ends: Vec<_> = marks.map(|node| place(node, "x") + place(node, "width")).collect();
        let [of_4, of_2, of_8] = ends[..] else { panic!("{ends:?}") };
        let whiskers = xml.descendants().filter(|n| n.attribute("class") == Some("whisker"));
        let whiskers: Vec<_> = whiskers.filter_map(|node| node.attribute("d")).take(3).collect();
        let numbers = |path: &str| -> Vec<f64> {
            path[1..].split(['L', ' ']).map(|text| text.parse().expect("a place")).collect()
        };
        let near = |one: f64, other: f64| (one - other).abs() < 0.3;
        let line = numbers(whiskers[0]);
        assert!(near(line[0], of_2) && near(line[2], of_8), "{whiskers:?}, {ends:?}");
        assert!(near(line[1], line[3]) && of_2 < of_4 && of_4 < of_8, "{whiskers:?}, {ends:?}");
        for (cap, x) in whiskers[1..].iter().zip([of_2, of_8]) {
            let cap = numbers(cap);
            assert!(near(cap[0], x) && near(cap[2], x), "{whiskers:?}, {ends:?}");
            assert!(near(cap[3] - cap[1], 2.0 * CAP), "{whiskers:?}");
        }
    }

    #[test]
    fn a_bar_far_longer_than_most_is_cut_and_that_is_told() {
        let chart = |figures: &[f64]| {
            let bars = bars(&figures.iter().map(|figure| Some(*figure)).collect::<Vec<_>>());
            bars.draw().expect("bars").svg()
        };
        let widths = |svg: &str| -> Vec<f64> {
            let xml = roxmltree::Document::parse(svg).expect("XML");
            let marks = xml.descendants().filter(|node| node.attribute("data-figure").is_some());
            let width = |node: roxmltree::Node<'_, '_>| node.attribute("width")?.parse().ok();
            marks.filter_map(width).collect()
        };
        let mut figures = [2.0; 9];
        figures[3] = 40.0;
        let svg = chart(&figures);
        assert_eq!(svg.matches("40, 1× (cut)</text>").count(), 1, "{svg}");
        assert_eq!(svg.matches("(cut)").count(), 1, "{svg}");
        assert!(widths(&svg)[0] > widths(&svg)[3] / 3.0, "the others can be compared: {svg}");
        figures[3] = 9.0;
        assert!(!chart(&figures).contains("(cut)"), "not so far");
        (figures[3], figures[4]) = (12.0, 9.0);
        assert!(!chart(&figures).contains("(cut)"), "not much longer than the next");
        assert!(!chart(&[2.0, 2.0, 40.0]).contains("(cut)"), "not so many");
        let svg = chart(&[2.0, 2.0, 2.0, 2.0, 2.0, 40.0, 40.0, 40.0]);
        assert!(!svg.contains("(cut)"), "not so few");
    }

    #[test]
    fn long_names_have_room() {
        let mut bars = bars(&[Some(4.0), Some(2.0)]);
        let long = "onramp-intake, 16 credits, malloc";
        bars.bars[0].name = long.to_owned();
        assert!(bars.draw().expect("bars").svg().contains(&format!(">{long}</text>")));
        bars.bars[0].name = long.repeat(9);
        assert!(bars.draw().expect("bars").svg().contains("…</text>"), "not more than there is");
    }

    #[test]
    fn nothing_to_draw_is_no_chart() {
        for figures in [vec![], vec![None], vec![Some(0.0)], vec![Some(f64::NAN), Some(1.0)]] {
            assert!(bars(&figures).draw().is_none(), "{figures:?}");
        }
    }
}
