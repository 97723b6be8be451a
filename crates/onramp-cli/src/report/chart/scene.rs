//! A chart as a list of shapes, and its output as SVG.

use maud::{Markup, PreEscaped, html};

use super::font;
use super::style::{Style, css};
use super::{LETTERS, TOP, WIDTH};

/// A chart that has been drawn.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    /// The title, which says what the chart shows.
    pub(crate) title: String,
    /// A text with the figures of the chart, for people who cannot see the chart.
    pub(crate) words: String,
    pub(super) height: f64,
    pub(super) items: Vec<Item>,
}

/// A shape and its style. If the shape shows a value, as a bar does, `mark` is that value.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) shape: Shape,
    pub(super) style: Style,
    mark: Option<Mark>,
}

/// The value that a shape in the chart shows, and the name of the series to which it belongs.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub(super) series: String,
    pub(super) figure: f64,
    /// The text that a browser shows while the pointer rests on the shape.
    pub(super) words: String,
}

#[derive(Clone, Debug)]
pub(super) enum Shape {
    /// The left edge, the top edge, the width and the height of the rectangle.
    Rect([f64; 4]),
    Path {
        points: Vec<(f64, f64)>,
        closed: bool,
    },
    /// The centre (x and y) and the radius of the dot.
    Dot([f64; 3]),
    Text {
        x: f64,
        y: f64,
        anchor: Anchor,
        text: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Scene {
    /// Returns an empty chart with a title.
    pub(super) fn new(title: String, height: f64) -> Self {
        let mut scene = Self { title, words: String::new(), height, items: Vec::new() };
        scene.rect([0.0, 0.0, WIDTH, height], Style::Paper, None);
        // Titles fit into the chart, unless they contain a long name. In that case the title is
        // cut.
        let title = fitting(&scene.title, WIDTH);
        scene.text(0.0, TOP / 2.0, Anchor::Start, Style::BoldText, &title);
        scene
    }

    pub(super) fn rect(&mut self, rect: [f64; 4], style: Style, mark: Option<Mark>) {
        self.items.push(Item { shape: Shape::Rect(rect), style, mark });
    }

    pub(super) fn path(&mut self, points: Vec<(f64, f64)>, style: Style) {
        self.items.push(Item { shape: Shape::Path { points, closed: false }, style, mark: None });
    }

    pub(super) fn shape(&mut self, shape: Shape, style: Style, mark: Option<Mark>) {
        self.items.push(Item { shape, style, mark });
    }

    pub(super) fn text(&mut self, x: f64, y: f64, anchor: Anchor, style: Style, text: &str) {
        let shape = Shape::Text { x, y, anchor, text: text.to_owned() };
        self.items.push(Item { shape, style, mark: None });
    }

    /// Returns the chart as part of an HTML page that has the rules of [`css`].
    pub(crate) fn inline(&self) -> Markup {
        self.element(None, None)
    }

    /// Returns the chart as the content of an SVG file of its own.
    pub(crate) fn svg(&self) -> String {
        self.element(Some("http://www.w3.org/2000/svg"), Some(css())).into_string() + "\n"
    }

    fn element(&self, namespace: Option<&str>, style: Option<String>) -> Markup {
        let (width, height) = (number(WIDTH), number(self.height));
        html! {
            svg xmlns=[namespace] class="chart" viewBox={ "0 0 " (width) " " (height) }
                width=[namespace.map(|_| &width)] height=[namespace.map(|_| &height)]
                role="img" aria-label=(self.title) {
                desc { (self.words) }
                @if let Some(style) = style { style { (PreEscaped(style)) } }
                @for item in &self.items { (item.element()) "\n" }
            }
        }
    }
}

impl Item {
    fn element(&self) -> Markup {
        let class = self.style.class();
        let series = self.mark.as_ref().map(|mark| &mark.series);
        let figure = self.mark.as_ref().map(|mark| mark.figure);
        let words = html! {
            @if let Some(mark) = &self.mark { title { (mark.words) } }
        };
        match &self.shape {
            Shape::Rect(rect) => {
                let [x, y, width, height] = rect.map(number);
                html! {
                    rect class=(class) x=(x) y=(y) width=(width) height=(height)
                        data-series=[series] data-figure=[figure] { (words) }
                }
            }
            Shape::Path { points, closed } => html! {
                path class=(class) d=(path(points, *closed)) stroke-dasharray=[self.dashes()]
                    data-series=[series] data-figure=[figure] { (words) }
            },
            Shape::Dot(dot) => {
                let [x, y, radius] = dot.map(number);
                html! {
                    circle class=(class) cx=(x) cy=(y) r=(radius)
                        data-series=[series] data-figure=[figure] { (words) }
                }
            }
            Shape::Text { x, y, anchor, text } => html! {
                text class=(class) x=(number(*x)) y=(number(*y)) text-anchor=[anchor.name()] {
                    (text)
                }
            },
        }
    }

    fn dashes(&self) -> Option<String> {
        let dashes = self.style.dashes();
        (!dashes.is_empty())
            .then(|| dashes.iter().map(f32::to_string).collect::<Vec<_>>().join(" "))
    }
}

impl Anchor {
    fn name(self) -> Option<&'static str> {
        match self {
            Self::Start => None,
            Self::Middle => Some("middle"),
            Self::End => Some("end"),
        }
    }
}

/// Returns `text` if it fits into `width`; otherwise as much of its beginning as fits, followed by
/// three dots.
pub(super) fn fitting(text: &str, width: f64) -> String {
    fitting_in(false, text, width)
}

/// Returns what [`fitting`] does, for a text in bold or usual letters.
pub(super) fn fitting_in(is_bold: bool, text: &str, width: f64) -> String {
    let of = |text: &str| if is_bold { font::bold_width } else { font::width }(text, LETTERS);
    if of(text) <= width {
        return text.to_owned();
    }
    let mut text: String = text.to_owned();
    while !text.is_empty() && of(&text) + of("…") > width {
        text.pop();
    }
    text + "…"
}

fn path(points: &[(f64, f64)], closed: bool) -> String {
    let points: Vec<_> =
        points.iter().map(|(x, y)| format!("{} {}", number(*x), number(*y))).collect();
    format!("M{}{}", points.join("L"), if closed { "Z" } else { "" })
}

/// Writes a coordinate with one decimal.
fn number(place: f64) -> String {
    let text = format!("{place:.1}");
    text.strip_suffix(".0").map_or_else(|| text.clone(), str::to_owned)
}
