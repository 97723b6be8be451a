//! A chart with a line for each design, drawn over a horizontal axis such as the number of threads.

use super::font;
use super::scale::Scale;
use super::scene::{Anchor, Mark, Scene, Shape, fitting};
use super::style::Style;
use super::{LETTERS, LINE, TOP, WIDTH, Words};

/// A chart of lines.
#[derive(Debug)]
pub(crate) struct Lines {
    pub(crate) title: String,
    pub(crate) across: Across,
    pub(crate) lines: Vec<Line>,
    /// The function that formats a value as text, for example beside the vertical axis.
    pub(crate) words: Words,
    pub(crate) labels: Labels,
}

/// The horizontal axis, which is logarithmic.
#[derive(Debug)]
pub(crate) struct Across {
    pub(crate) name: String,
    pub(crate) words: Words,
    /// The values at which the axis has ticks; `None` if the ticks stand at round numbers.
    pub(crate) ticks: Option<Vec<f64>>,
}

/// Where the names of the lines stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Labels {
    /// Each name stands at the right end of its line.
    Ends,
    /// The names stand in a list to the right of the chart.
    List,
}

/// A line of the chart.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    /// The points from left to right. The line is broken where a point is `None`.
    pub(crate) points: Vec<Option<Point>>,
    pub(crate) highlighted: bool,
}

/// A point of a line. Its place on the horizontal axis is above zero, because that axis is
/// logarithmic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) at: f64,
    pub(crate) figure: f64,
    /// The least and the greatest value over the rounds of the measurement, which the whisker
    /// shows.
    pub(crate) range: Option<(f64, f64)>,
}

impl Line {
    fn points(&self) -> impl Iterator<Item = Point> + Clone + '_ {
        self.points.iter().flatten().copied()
    }
}

impl Lines {
    /// Draws the chart; `None` if there are no points, if all points are at the same place on the
    /// horizontal axis, or if a value is not finite.
    pub(crate) fn draw(&self) -> Option<Scene> {
        let points = || self.lines.iter().flat_map(Line::points);
        let least = points().map(|point| point.at).fold(f64::INFINITY, f64::min);
        let most = points().map(|point| point.at).fold(0.0, f64::max);
        let finite = points().all(|point| {
            let (least, most) = point.range.unwrap_or_default();
            [point.at, point.figure, least, most].into_iter().all(f64::is_finite)
        });
        if !(least > 0.0 && most > least && finite) {
            return None;
        }
        let names = self.lines.iter().map(|line| font::bold_width(&line.name, LETTERS));
        let names = names.fold(0.0, f64::max).min(NAMES * WIDTH);
        let right = WIDTH - names - SAMPLE - 3.0 * GAP;
        let height = HEIGHT.max(TOP + BELOW + self.lines.len() as f64 * LINE);
        let (top, bottom) = (TOP + GAP, height - BELOW);
        let figures = points().flat_map(|point| {
            let (least, most) = point.range.unwrap_or((point.figure, point.figure));
            [point.figure, least, most]
        });
        let up = Scale::fitting(figures, (bottom, top));
        let title = if up.is_log() { "(log scale)" } else { "" };
        let mut scene = Scene::new(format!("{} {title}", self.title).trim().to_owned(), height);
        let ticks: Vec<_> = up.ticks().into_iter().map(|tick| (tick, (self.words)(tick))).collect();
        let left = ticks.iter().map(|(_, text)| font::width(text, LETTERS)).fold(0.0, f64::max);
        let left = left + GAP;
        for (tick, text) in &ticks {
            let y = up.place(*tick);
            scene.path(vec![(left, y), (right, y)], Style::Grid);
            scene.text(left - GAP / 2.0, y + LINE / 4.0, Anchor::End, Style::SoftText, text);
        }
        let across = Scale::log(least, most, (left + GAP, right - GAP));
        self.axis(&mut scene, &across, (left, right, bottom));
        self.series(&mut scene, &across, &up);
        self.names(&mut scene, &up, right, (top, bottom));
        scene.words = self.in_words();
        Some(scene)
    }

    /// Draws the horizontal axis, with labels at as many of its ticks as there is room for.
    fn axis(&self, scene: &mut Scene, across: &Scale, (left, right, y): (f64, f64, f64)) {
        scene.path(vec![(left, y), (right, y)], Style::Axis);
        let mut free = f64::NEG_INFINITY;
        for tick in self.across.ticks.clone().unwrap_or_else(|| across.ticks()) {
            let (x, text) = (across.place(tick), (self.across.words)(tick));
            scene.path(vec![(x, y), (x, y + 4.0)], Style::Axis);
            let half = font::width(&text, LETTERS) / 2.0;
            if x - half > free {
                scene.text(x, y + LINE + 2.0, Anchor::Middle, Style::SoftText, &text);
                free = x + half + GAP / 2.0;
            }
        }
        let name = fitting(&self.across.name, right - left);
        let middle = f64::midpoint(left, right);
        scene.text(middle, y + 2.0 * LINE + 4.0, Anchor::Middle, Style::SoftText, &name);
    }

    /// Draws the lines and their markers. The highlighted lines come last, so that they are on top
    /// of the others.
    fn series(&self, scene: &mut Scene, across: &Scale, up: &Scale) {
        let mut order: Vec<_> = self.numbered().collect();
        order.sort_by_key(|(.., line)| line.highlighted);
        for ([stroke, range, marker], shape, line) in order {
            let place = |point: &Point| (across.place(point.at), up.place(point.figure));
            for piece in line.points.split(Option::is_none).filter(|piece| piece.len() > 1) {
                scene.path(piece.iter().flatten().map(place).collect(), stroke);
            }
            for point in line.points() {
                let (x, y) = place(&point);
                if let Some((least, most)) = point.range.filter(|(least, most)| most > least) {
                    scene.path(vec![(x, up.place(least)), (x, up.place(most))], range);
                }
                let (at, figure) = ((self.across.words)(point.at), (self.words)(point.figure));
                let words = format!("{}, {at}: {figure}", line.name);
                let mark = Mark { series: line.name.clone(), figure: point.figure, words };
                scene.shape(shape(x, y), marker, Some(mark));
            }
        }
    }

    /// Draws the list of names to the right of the lines. Before each name stands a sample of its
    /// line.
    fn names(&self, scene: &mut Scene, up: &Scale, right: f64, (top, bottom): (f64, f64)) {
        let last = |line: &Line| line.points().last();
        let mut shown: Vec<_> = self.numbered().filter(|(.., line)| last(line).is_some()).collect();
        let end = |line: &Line| last(line).map_or(top, |point| up.place(point.figure));
        let ends = self.labels == Labels::Ends;
        if ends {
            shown.sort_by(|a, b| end(a.2).total_cmp(&end(b.2)));
        }
        let wanted = shown.iter().map(|(.., line)| if ends { end(line) } else { top });
        let places = apart(&wanted.collect::<Vec<_>>(), LINE, (top, bottom));
        for (([stroke, _, marker], shape, line), y) in shown.into_iter().zip(places) {
            let x = right + 2.0 * GAP;
            if ends {
                scene.path(vec![(right - GAP, end(line)), (x, y)], Style::Leader);
            }
            scene.path(vec![(x, y), (x + SAMPLE, y)], stroke);
            scene.shape(shape(x + SAMPLE / 2.0, y), marker, None);
            let style = if line.highlighted { Style::BoldText } else { Style::Text };
            let room = WIDTH - x - SAMPLE - GAP / 2.0;
            let name = fitting(&line.name, room);
            scene.text(x + SAMPLE + GAP / 2.0, y + LINE / 4.0, Anchor::Start, style, &name);
        }
    }

    /// Returns each line with its styles and its marker, which follow from the line's number.
    /// Highlighted lines are numbered from 0, and so are the other lines.
    fn numbered(&self) -> impl Iterator<Item = (Styles, Marker, &Line)> {
        let (mut ours, mut others) = (0, 0);
        self.lines.iter().map(move |line| {
            if line.highlighted {
                ours += 1;
                let number = ours - 1;
                let styles = [Style::OursLine(number), Style::OursRange, Style::OursMarker];
                return (styles, MARKERS[number % MARKERS.len()], line);
            }
            others += 1;
            let number = others - 1;
            let marker = MARKERS[1 + number % (MARKERS.len() - 1)];
            let styles = [Style::Line(number), Style::Range(number), Style::Marker(number)];
            (styles, marker, line)
        })
    }

    fn in_words(&self) -> String {
        let line = |line: &Line| {
            let point = |point: Point| {
                format!("{} at {}", (self.words)(point.figure), (self.across.words)(point.at))
            };
            format!("{}: {}", line.name, line.points().map(point).collect::<Vec<_>>().join(", "))
        };
        self.lines.iter().map(line).collect::<Vec<_>>().join("; ")
    }
}

/// Returns a place for each label: as near as possible to the label's place in `wanted`, but at
/// least `step` from the next label. The places in `wanted` must be in ascending order. If `room`
/// is large enough for all labels, no label is outside `room`.
pub(super) fn apart(wanted: &[f64], step: f64, room: (f64, f64)) -> Vec<f64> {
    let mut places = wanted.to_vec();
    let mut free = room.0;
    for place in &mut places {
        *place = place.max(free);
        free = *place + step;
    }
    let mut free = room.1.max(room.0 + step * wanted.len().saturating_sub(1) as f64);
    for place in places.iter_mut().rev() {
        *place = place.min(free);
        free = *place - step;
    }
    places
}

/// The styles of a line, of its whiskers and of its markers.
type Styles = [Style; 3];

/// A function that returns the shape of a marker whose centre is at a point.
type Marker = fn(f64, f64) -> Shape;

/// The shapes of the markers, by which lines are told apart. The first shape is that of the first
/// highlighted line.
const MARKERS: [Marker; 6] = [
    |x, y| Shape::Dot([x, y, 4.2]),
    |x, y| Shape::Rect([x - 3.2, y - 3.2, 6.4, 6.4]),
    |x, y| polygon(&[(x, y - 4.4), (x + 4.2, y + 3.4), (x - 4.2, y + 3.4)]),
    |x, y| polygon(&[(x, y - 4.6), (x + 4.6, y), (x, y + 4.6), (x - 4.6, y)]),
    |x, y| polygon(&[(x, y + 4.4), (x + 4.2, y - 3.4), (x - 4.2, y - 3.4)]),
    |x, y| Shape::Dot([x, y, 2.6]),
];

fn polygon(points: &[(f64, f64)]) -> Shape {
    Shape::Path { points: points.to_vec(), closed: true }
}

const HEIGHT: f64 = 300.0;
/// Height of the space below the chart for the horizontal axis, in units.
const BELOW: f64 = 42.0;
pub(super) const GAP: f64 = 8.0;
/// The largest share of the width that names may take.
pub(super) const NAMES: f64 = 0.42;
/// Length of the sample of a line before its name, in units.
pub(super) const SAMPLE: f64 = 26.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(points: &[(f64, f64)]) -> Lines {
        let point =
            |(at, figure): &(f64, f64)| Some(Point { at: *at, figure: *figure, range: None });
        let line = |name: &str, highlighted| Line {
            name: name.to_owned(),
            points: points.iter().map(point).collect(),
            highlighted,
        };
        Lines {
            title: "Title".to_owned(),
            across: Across {
                name: "threads".to_owned(),
                words: |figure| figure.to_string(),
                ticks: None,
            },
            lines: vec![line("other", false), line("onramp", true), line("third", false)],
            words: |figure| figure.to_string(),
            labels: Labels::Ends,
        }
    }

    #[test]
    fn nothing_to_draw_is_no_chart() {
        for points in
            [&[][..], &[(1.0, 2.0)], &[(0.0, 1.0), (2.0, 1.0)], &[(1.0, f64::NAN), (2.0, 1.0)]]
        {
            assert!(lines(points).draw().is_none(), "{points:?}");
        }
        assert!(lines(&[(1.0, 0.0), (2.0, 0.0)]).draw().is_some(), "zeros are a line");
    }

    #[test]
    fn lines_differ_in_more_than_colour() {
        let svg = lines(&[(1.0, 1.0), (2.0, 2.0)]).draw().expect("lines").svg();
        let xml = roxmltree::Document::parse(&svg).expect("XML");
        let dashes: Vec<_> = xml
            .descendants()
            .filter(|node| node.attribute("class").is_some_and(|class| class.contains("line")))
            .map(|node| node.attribute("stroke-dasharray"))
            .collect();
        // `dashes` begins with the dashes of the chart's three lines; the highlighted line is the
        // last of them.
        assert_eq!(dashes[..3], [Some("7 3"), None, None]);
        let marked: std::collections::BTreeSet<_> = xml
            .descendants()
            .filter_map(|node| {
                node.attribute("data-series").map(|series| (series, node.tag_name().name()))
            })
            .collect();
        assert_eq!(
            marked.into_iter().collect::<Vec<_>>(),
            [("onramp", "circle"), ("other", "rect"), ("third", "path")]
        );
    }

    #[test]
    fn highlighted_lines_differ_too_and_are_all_in_the_list() {
        let mut lines = lines(&[(1.0, 1.0), (2.0, 2.0)]);
        lines.labels = Labels::List;
        let names = ["onramp", "onramp-inline", "onramp-dedicated", "onramp, 4", "onramp, 5"];
        let points = lines.lines[0].points.clone();
        let line =
            |name: &str| Line { name: name.to_owned(), points: points.clone(), highlighted: true };
        lines.lines = names.map(line).into();
        let svg = lines.draw().expect("lines").svg();
        let xml = roxmltree::Document::parse(&svg).expect("XML");
        let class = |class: &'static str| {
            xml.descendants().filter(move |node| node.attribute("class") == Some(class))
        };
        let dashes: Vec<_> = class("ours-line").map(|n| n.attribute("stroke-dasharray")).collect();
        let (drawn, samples) = dashes.split_at(names.len());
        assert_eq!(drawn, samples, "the list shows what is drawn");
        let different: std::collections::BTreeSet<_> = drawn.iter().collect();
        assert_eq!(different.len(), names.len(), "{drawn:?}");
        // The markers are a dot, a square, and three different polygons.
        let shapes: Vec<_> = class("ours-marker").map(|node| node.tag_name().name()).collect();
        assert_eq!(shapes[..4], ["circle", "circle", "rect", "rect"]);
        assert_eq!(shapes[4..10], ["path"; 6]);
        let listed: Vec<_> = class("bold-text").skip(1).filter_map(|node| node.text()).collect();
        assert_eq!(listed, names);
    }

    /// Returns the centres of the markers of one series, from left to right, and the paths of the
    /// whiskers of that series.
    fn places(svg: &str) -> (Vec<(f64, f64)>, Vec<String>) {
        let xml = roxmltree::Document::parse(svg).expect("XML");
        let number = |node: roxmltree::Node<'_, '_>, key| {
            node.attribute(key).and_then(|text| text.parse().ok()).expect("a place")
        };
        let dots = xml.descendants().filter(|node| node.attribute("data-series").is_some());
        let dots = dots.map(|node| (number(node, "cx"), number(node, "cy"))).collect();
        let ranges = xml.descendants().filter(|n| n.attribute("class") == Some("ours-range"));
        (dots, ranges.filter_map(|node| node.attribute("d").map(str::to_owned)).collect())
    }

    #[test]
    fn equal_factors_across_are_equal_distances() {
        let mut lines = lines(&[(1.0, 10.0), (4.0, 20.0), (16.0, 30.0)]);
        lines.lines = lines.lines.drain(1..2).collect();
        lines.lines[0].points[1].as_mut().expect("a point").range = Some((10.0, 30.0));
        let scene = lines.draw().expect("lines");
        assert_eq!(scene.title, "Title");
        let (dots, ranges) = places(&scene.svg());
        let [first, middle, last] = dots[..] else { panic!("{dots:?}") };
        assert!((middle.0 - first.0 - (last.0 - middle.0)).abs() < 0.3, "{dots:?}");
        // The vertical axis is linear in this chart. The whisker of the middle point reaches from
        // the height of the lowest to that of the highest point.
        assert!((first.1 - middle.1 - (middle.1 - last.1)).abs() < 0.3, "{dots:?}");
        assert_eq!(ranges, [format!("M{0} {1}L{0} {2}", middle.0, first.1, last.1)]);
    }

    #[test]
    fn figures_far_apart_are_on_a_log_scale_and_that_is_told() {
        let mut lines = lines(&[(1.0, 1.0), (2.0, 100.0), (3.0, 10_000.0)]);
        lines.lines = lines.lines.drain(1..2).collect();
        let scene = lines.draw().expect("lines");
        assert_eq!(scene.title, "Title (log scale)");
        let (dots, _) = places(&scene.svg());
        let [first, middle, last] = dots[..] else { panic!("{dots:?}") };
        assert!((first.1 - middle.1 - (middle.1 - last.1)).abs() < 0.3, "{dots:?}");
        assert!(first.1 > last.1, "more is higher");
    }

    #[test]
    fn long_names_have_room() {
        let mut lines = lines(&[(1.0, 1.0), (2.0, 2.0)]);
        let long = "onramp-intake, 16 credits, malloc";
        lines.lines[0].name = long.to_owned();
        assert!(lines.draw().expect("lines").svg().contains(&format!(">{long}</text>")));
        lines.lines[0].name = long.repeat(9);
        assert!(lines.draw().expect("lines").svg().contains("…</text>"), "not more than there is");
    }

    #[test]
    fn a_line_is_broken_where_a_point_is_missing() {
        let mut lines = lines(&[(1.0, 1.0), (2.0, 2.0), (4.0, 4.0), (8.0, 3.0), (16.0, 3.0)]);
        lines.lines.truncate(1);
        let pieces = |lines: &Lines| {
            let svg = lines.draw().expect("lines").svg();
            svg.matches("class=\"line-0\"").count()
        };
        assert_eq!(pieces(&lines), 2, "the line and its sample");
        lines.lines[0].points[2] = None;
        assert_eq!(pieces(&lines), 3);
    }

    #[test]
    fn names_keep_apart_and_inside() {
        assert_eq!(apart(&[10.0, 11.0, 50.0], 16.0, (0.0, 100.0)), [10.0, 26.0, 50.0]);
        assert_eq!(apart(&[98.0, 99.0, 100.0], 16.0, (0.0, 100.0)), [68.0, 84.0, 100.0]);
        assert_eq!(apart(&[0.0; 3], 16.0, (0.0, 20.0)), [0.0, 16.0, 32.0], "no room: below");
        assert!(apart(&[], 16.0, (0.0, 20.0)).is_empty());
    }
}
