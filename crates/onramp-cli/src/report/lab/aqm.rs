//! The charts of `onramp lab aqm`. The rows of this experiment do not contain medians over rounds:
//! each contains the figures of one run in virtual time, and how they developed over time.

use serde_json::Value;

use super::chart::Chart;
use super::data::{Document, Row};
use super::words;
use crate::report::chart::{
    Across, Bar, Bars, Labels, Legend, Line, Lines, Point, Scene, TimeLine, Times, Words,
};

/// The name of the experiment in its JSON schema.
pub(super) const KIND: &str = "aqm";
/// The delay in milliseconds at which a delay of zero is drawn, because a logarithmic axis cannot
/// show zero.
const NO_DELAY_MS: f64 = 0.1;
/// In the chart of the distribution of delays, the smallest share of packets for which a point is
/// drawn. With smaller shares, the vertical axis of that chart would become logarithmic.
const SHARE_LEAST: f64 = 0.05;
/// If the longest round trip of a scenario is less than this many times the shortest, the round
/// trips count as equal, and no chart compares them: the scenario only adds a small random time to
/// each.
const TRIPS_DIFFER: f64 = 1.2;

/// Returns all charts, scenario by scenario.
pub(super) fn charts(document: &Document) -> Vec<Chart> {
    let mut scenarios: Vec<&str> = Vec::new();
    for row in document.rows() {
        let scenario = scenario(row);
        if !scenarios.contains(&scenario) {
            scenarios.push(scenario);
        }
    }
    scenarios.into_iter().flat_map(|scenario| of_scenario(document, scenario)).collect()
}

/// The text that says what the charts of this experiment show.
pub(super) const HOW: &str = "\
Time is virtual, and each figure comes from one run. Delays are those of packets of flows that \
answer to congestion, from the arrival of a packet at the qdisc until its first bit left. The \
chart over time shows means of short intervals, warm-up included. The tables contain all figures.";

fn scenario(row: &Row) -> &str {
    row.values.get("scenario").and_then(Value::as_str).unwrap_or_default()
}

fn of_scenario(document: &Document, scenario: &str) -> Vec<Chart> {
    let ours = document.story().map_or("", |story| story.ours);
    let rows = document.rows().iter().filter(|row| self::scenario(row) == scenario);
    let mut view = View { rows: rows.collect(), ours };
    // The colour of a line follows from its number. Some kinds of charts leave out the highlighted
    // line when they number lines, and others do not. If the highlighted line is last, each other
    // line has the same number, and so the same colour, in all charts.
    view.rows.sort_by_key(|row| row.main == ours);
    let drawn = [
        ("delay", view.delay()),
        ("distribution", view.distribution()),
        ("goodput", view.bars("Goodput, Mbit/s", mbit, "goodput_bits_per_second", 1e6)),
        ("share", view.bars("Of the fair share", words::percent, "share_of_fair", 1.0)),
        ("short", view.bars("Short flows, median", words::nanoseconds, "completion_ns.p50", 1.0)),
        ("call", view.bars("A call's delay, p99", words::nanoseconds, "voice_sojourn_ns.p99", 1.0)),
        ("trips", view.trips()),
    ];
    let chart = |(name, scene): (&str, Option<Scene>)| {
        let (name, heading) = (format!("{scenario}-{name}"), scenario.to_owned());
        Some(Chart { name, heading, scene: scene? })
    };
    drawn.into_iter().filter_map(chart).collect()
}

fn mbit(figure: f64) -> String {
    format!("{figure:.2}")
}

/// The rows of one scenario, which the charts of that scenario show.
struct View<'d> {
    rows: Vec<&'d Row>,
    ours: &'d str,
}

impl View<'_> {
    fn is_ours(&self, row: &Row) -> bool {
        row.main == self.ours
    }

    /// Draws the chart of the delay over time.
    fn delay(&self) -> Option<Scene> {
        let width =
            self.rows.first()?.values.get("sojourn_parts")?.get("width_seconds")?.as_f64()?;
        let line = |row: &&Row| {
            let parts = row.values.get("sojourn_parts")?.get("mean_ns")?.as_array()?;
            let ms = |part: &Value| part.as_f64().map(|ns| (ns / 1e6).max(NO_DELAY_MS));
            let points = parts.iter().map(ms).collect();
            Some(TimeLine { name: row.main.clone(), points, highlighted: self.is_ours(row) })
        };
        let lines = self.rows.iter().filter_map(line).collect();
        let title = "Delay over time, ms".to_owned();
        let legend = Legend::Right;
        Times { title, lines, width, legend, words: words::plain, fitting: true }.draw()
    }

    /// Draws the chart of the share of packets that waited no longer than a given delay.
    fn distribution(&self) -> Option<Scene> {
        let line = |row: &&Row| {
            let quantiles = row.values.get("sojourn_quantiles")?.as_array()?;
            let point = |quantile: &Value| {
                let number = |key: &str| quantile.get(key)?.as_f64();
                let (figure, ns) = (number("share")?, number("ns")?);
                let at = (ns / 1e6).max(NO_DELAY_MS);
                (figure >= SHARE_LEAST).then_some(Some(Point { at, figure, range: None }))
            };
            let points = quantiles.iter().filter_map(point).collect();
            Some(Line { name: row.main.clone(), points, highlighted: self.is_ours(row) })
        };
        let lines = Lines {
            title: "Share of packets that waited no longer".to_owned(),
            across: Across { name: "delay, ms".to_owned(), words: words::plain, ticks: None },
            lines: self.rows.iter().filter_map(line).collect(),
            words: words::percent,
            labels: Labels::List,
        };
        lines.draw()
    }

    /// Draws the chart of the figure `key`, divided by `unit`, with a bar for each qdisc; `None` if
    /// no row has this figure.
    fn bars(&self, title: &str, words: Words, key: &str, unit: f64) -> Option<Scene> {
        let bar = |row: &&Row| Bar {
            name: row.main.clone(),
            figure: row.figure(key).map(|figure| figure.median / unit),
            range: None,
            note: String::new(),
            highlighted: self.is_ours(row),
        };
        let bars: Vec<Bar> = self.rows.iter().map(bar).collect();
        Bars { title: title.to_owned(), bars, words }.draw()
    }

    /// Draws the chart of the rates of bulk flows over their round trips; `None` if all round trips
    /// count as equal.
    fn trips(&self) -> Option<Scene> {
        let trips = |row: &Row| -> Option<Vec<Point>> {
            let flows = row.values.get("bulk_flows")?.as_array()?;
            let point = |flow: &Value| {
                let number = |key: &str| flow.get(key)?.as_f64();
                let (at, figure) = (number("trip_ns")? / 1e6, number("bits_per_second")? / 1e6);
                Some(Point { at, figure, range: None })
            };
            flows.iter().map(point).collect()
        };
        let first = trips(self.rows.first()?)?;
        let ticks: Vec<f64> = first.iter().map(|point| point.at.floor()).collect();
        let least = ticks.iter().copied().fold(f64::INFINITY, f64::min);
        if ticks.iter().all(|trip| *trip < TRIPS_DIFFER * least) {
            return None;
        }
        let line = |row: &&Row| {
            let points = trips(row)?.into_iter().map(Some).collect();
            Some(Line { name: row.main.clone(), points, highlighted: self.is_ours(row) })
        };
        let lines = Lines {
            title: "What a flow got by its round trip, Mbit/s".to_owned(),
            across: Across {
                name: "round trip, ms".to_owned(),
                words: words::plain,
                ticks: Some(ticks),
            },
            lines: self.rows.iter().filter_map(line).collect(),
            words: words::plain,
            labels: Labels::List,
        };
        lines.draw()
    }
}
