//! A chart of lines over time. The lines have many points, so the points have no markers.

use super::font;
use super::lines::{GAP, NAMES, SAMPLE, apart};
use super::scale::Scale;
use super::scene::{Anchor, Mark, Scene, Shape, fitting};
use super::style::Style;
use super::{LETTERS, LINE, TOP, WIDTH, Words};

/// A chart of lines over time. The time axis begins at zero.
#[derive(Debug)]
pub(crate) struct Times {
    pub(crate) title: String,
    pub(crate) lines: Vec<TimeLine>,
    /// The time in seconds between two neighbouring points.
    pub(crate) width: f64,
    /// The function that formats a value as text, for example beside the vertical axis.
    pub(crate) words: Words,
    pub(crate) legend: Legend,
    /// Whether the vertical axis may be logarithmic if the greatest figure is many times the least.
    pub(crate) fitting: bool,
}

/// Where the names of the lines stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Legend {
    Right,
    Beneath,
}

/// A line of the chart.
#[derive(Debug)]
pub(crate) struct TimeLine {
    pub(crate) name: String,
    /// The points. The line is broken where a point is `None`.
    pub(crate) points: Vec<Option<f64>>,
    pub(crate) highlighted: bool,
}

impl TimeLine {
    fn most(&self) -> f64 {
        self.points.iter().flatten().copied().fold(0.0, f64::max)
    }
}

impl Times {
    /// Draws the chart; `None` if there are no points or if a figure is not finite.
    pub(crate) fn draw(&self) -> Option<Scene> {
        let mut points = self.lines.iter().flat_map(|line| line.points.iter().flatten());
        let count = self.lines.iter().map(|line| line.points.len()).max().unwrap_or(0);
        if points.clone().next().is_none() || points.any(|point| !point.is_finite()) {
            return None;
        }
        let names = self.lines.iter().map(|line| font::bold_width(&line.name, LETTERS));
        // Names of flows may be long and many. For many names the chart becomes higher, but the
        // names never get more than the share [`NAMES`] of its width.
        let names = names.fold(0.0, f64::max).min(NAMES * WIDTH);
        let list = self.lines.len() as f64 * LINE;
        let (right, height, bottom) = match self.legend {
            Legend::Right => {
                let height = HEIGHT.max(TOP + BELOW + list);
                (WIDTH - names - SAMPLE - 3.0 * GAP, height, height - BELOW)
            }
            Legend::Beneath => (WIDTH - 2.0 * GAP, HEIGHT + list, HEIGHT - BELOW),
        };
        let top = TOP + GAP;
        let most = self.lines.iter().map(TimeLine::most).fold(0.0, f64::max);
        let figures = || self.lines.iter().flat_map(|line| line.points.iter().flatten().copied());
        let up = match self.fitting {
            true => Scale::fitting(figures(), (bottom, top)),
            false => Scale::linear(most, (bottom, top)),
        };
        let title = if up.is_log() { " (log scale)" } else { "" };
        let mut scene = Scene::new(format!("{}{title}", self.title), height);
        let ticks: Vec<_> = up.ticks().into_iter().map(|tick| (tick, (self.words)(tick))).collect();
        let left = ticks.iter().map(|(_, text)| font::width(text, LETTERS)).fold(0.0, f64::max);
        let left = left + GAP;
        for (tick, text) in &ticks {
            let y = up.place(*tick);
            scene.path(vec![(left, y), (right, y)], Style::Grid);
            scene.text(left - GAP / 2.0, y + LINE / 4.0, Anchor::End, Style::SoftText, text);
        }
        let across = Scale::linear(count as f64 * self.width, (left, right));
        self.axis(&mut scene, &across, (left, right, bottom));
        self.series(&mut scene, &across, &up);
        match self.legend {
            Legend::Right => self.names(&mut scene, right + 2.0 * GAP, (top, bottom)),
            Legend::Beneath => {
                let first = bottom + BELOW + LINE / 2.0;
                self.names(&mut scene, left, (first, first + list));
            }
        }
        scene.words = self.in_words();
        Some(scene)
    }

    fn axis(&self, scene: &mut Scene, across: &Scale, (left, right, y): (f64, f64, f64)) {
        scene.path(vec![(left, y), (right, y)], Style::Axis);
        for tick in across.ticks() {
            let x = across.place(tick);
            scene.path(vec![(x, y), (x, y + 4.0)], Style::Axis);
            scene.text(x, y + LINE + 2.0, Anchor::Middle, Style::SoftText, &(self.words)(tick));
        }
        let middle = f64::midpoint(left, right);
        scene.text(middle, y + 2.0 * LINE + 4.0, Anchor::Middle, Style::SoftText, "seconds");
    }

    /// Draws the lines. The highlighted line is drawn last, so that it is on top of the others. A
    /// point without neighbours is drawn as a dot.
    fn series(&self, scene: &mut Scene, across: &Scale, up: &Scale) {
        let mut order: Vec<_> = self.styled().collect();
        order.sort_by_key(|(.., line)| line.highlighted);
        for ([stroke, dot], line) in order {
            let words = format!("{}: {} at most", line.name, (self.words)(line.most()));
            let mark = Mark { series: line.name.clone(), figure: line.most(), words };
            let place = |(number, figure): (usize, &Option<f64>)| {
                let at = (number as f64 + 0.5) * self.width;
                Some((across.place(at), up.place((*figure)?)))
            };
            let places: Vec<_> = line.points.iter().enumerate().map(place).collect();
            for piece in places.split(Option::is_none).filter(|piece| !piece.is_empty()) {
                let points: Vec<_> = piece.iter().flatten().copied().collect();
                match points[..] {
                    [(x, y)] => scene.shape(Shape::Dot([x, y, 1.5]), dot, Some(mark.clone())),
                    _ => {
                        let shape = Shape::Path { points, closed: false };
                        scene.shape(shape, stroke, Some(mark.clone()));
                    }
                }
            }
        }
    }

    /// Draws the list of names, which begins at `x`. Before each name stands a sample of its line.
    fn names(&self, scene: &mut Scene, x: f64, (top, bottom): (f64, f64)) {
        let places = apart(&vec![top; self.lines.len()], LINE, (top, bottom));
        for (([stroke, _], line), y) in self.styled().zip(places) {
            scene.path(vec![(x, y), (x + SAMPLE, y)], stroke);
            let style = if line.highlighted { Style::BoldText } else { Style::Text };
            let name = fitting(&line.name, WIDTH - x - SAMPLE - GAP / 2.0);
            scene.text(x + SAMPLE + GAP / 2.0, y + LINE / 4.0, Anchor::Start, style, &name);
        }
    }

    fn styled(&self) -> impl Iterator<Item = ([Style; 2], &TimeLine)> {
        self.lines.iter().enumerate().map(|(number, line)| match line.highlighted {
            true => ([Style::OursLine(0), Style::OursMarker], line),
            false => ([Style::Line(number), Style::Marker(number)], line),
        })
    }

    fn in_words(&self) -> String {
        let line = |line: &TimeLine| {
            let figures = line.points.iter().flatten();
            let mean = figures.clone().sum::<f64>() / figures.count().max(1) as f64;
            let (mean, most) = ((self.words)(mean), (self.words)(line.most()));
            format!("{}: {mean} in the mean, {most} at most", line.name)
        };
        self.lines.iter().map(line).collect::<Vec<_>>().join("; ")
    }
}

const HEIGHT: f64 = 300.0;
/// Height of the space below the chart for the horizontal axis, in units.
const BELOW: f64 = 42.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn times(points: &[Option<f64>]) -> Times {
        let line = |name: &str, highlighted| TimeLine {
            name: name.to_owned(),
            points: points.to_vec(),
            highlighted,
        };
        Times {
            title: "Title".to_owned(),
            lines: vec![line("mean", true), line("most", false)],
            width: 0.5,
            legend: Legend::Right,
            words: |figure| figure.to_string(),
            fitting: false,
        }
    }

    #[test]
    fn nothing_to_draw_is_no_chart() {
        for points in [&[][..], &[None], &[Some(1.0), Some(f64::NAN)]] {
            assert!(times(points).draw().is_none(), "{points:?}");
        }
        assert!(times(&[Some(0.0)]).draw().is_some(), "zero is a figure");
    }

    #[test]
    fn figures_far_apart_are_on_a_logarithmic_axis_if_they_may() {
        let mut times = times(&[Some(1.0), Some(10.0), Some(100.0)]);
        assert_eq!(times.draw().expect("lines").title, "Title");
        times.fitting = true;
        let scene = times.draw().expect("lines");
        assert_eq!(scene.title, "Title (log scale)");
        let svg = scene.svg();
        let xml = roxmltree::Document::parse(&svg).expect("XML");
        let line = xml.descendants().find(|n| n.attribute("data-series") == Some("mean"));
        let path = line.and_then(|node| node.attribute("d")).expect("a path");
        let places: Vec<f64> =
            path[1..].split(['L', ' ']).map(|number| number.parse().expect("a place")).collect();
        assert!((places[1] - 2.0 * places[3] + places[5]).abs() < 0.3, "{places:?}");
        times.lines.iter_mut().for_each(|line| line.points = vec![Some(1.0), Some(2.0)]);
        assert_eq!(times.draw().expect("lines").title, "Title");
    }

    #[test]
    fn names_stand_beneath_the_chart_if_they_are_to() {
        let mut times = times(&[Some(1.0), Some(2.0)]);
        times.legend = Legend::Beneath;
        let svg = times.draw().expect("lines").svg();
        let xml = roxmltree::Document::parse(&svg).expect("XML");
        let place = |text: &str, key| -> f64 {
            let node = xml.descendants().find(|node| node.text() == Some(text)).expect("a text");
            node.attribute(key).and_then(|place| place.parse().ok()).expect("a place")
        };
        let height = xml.root_element().attribute("viewBox").expect("a size");
        let height: f64 = height.rsplit(' ').next().and_then(|h| h.parse().ok()).expect("a height");
        for name in ["mean", "most"] {
            assert!(place(name, "y") > place("seconds", "y") && place(name, "y") < height, "{svg}");
        }
        times.lines[0].name = "1 udp 192.0.2.1:50000 > 192.0.2.2:50000, a long name".to_owned();
        assert!(times.draw().expect("lines").svg().contains("a long name</text>"), "it has room");
    }

    #[test]
    fn gaps_are_gaps_and_figures_are_where_they_belong() {
        let svg = times(&[Some(1.0), Some(4.0), None, Some(2.0)]).draw().expect("lines").svg();
        let xml = roxmltree::Document::parse(&svg).expect("XML");
        let of = |name: &'static str| {
            xml.descendants().filter(move |node| node.attribute("data-series") == Some(name))
        };
        for name in ["mean", "most"] {
            let shapes: Vec<_> = of(name).map(|node| node.tag_name().name()).collect();
            assert_eq!(shapes, ["path", "circle"], "{name}");
            assert!(of(name).all(|node| node.attribute("data-figure") == Some("4")), "{name}");
        }
        let path = of("mean").next().and_then(|node| node.attribute("d")).expect("a path");
        let places: Vec<f64> =
            path[1..].split(['L', ' ']).map(|number| number.parse().expect("a place")).collect();
        let dot = of("mean").nth(1).expect("a dot");
        let at = |key| dot.attribute(key).and_then(|text| text.parse::<f64>().ok()).expect("place");
        // The points are half a second apart, and the third is missing. So a line must join the
        // first two points, and the fourth must be a dot. The dot is two steps (each as long as the
        // line) to the right of the end of the line.
        assert!((at("cx") - places[2] - 2.0 * (places[2] - places[0])).abs() < 0.3, "{places:?}");
        // The figures of the three points are 1, 4 and 2; a higher figure stands nearer to the top.
        assert!(places[3] < at("cy") && at("cy") < places[1], "{places:?}");
        assert!(svg.contains("mean: 2.3333333333333335 in the mean, 4 at most"), "{svg}");
    }
}
