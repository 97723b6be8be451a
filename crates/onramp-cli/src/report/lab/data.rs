//! Reads the JSON of an experiment for a report.

use std::collections::HashMap;

use onramp_lab::contention::Design;
use serde_json::{Map, Value};

use super::{Story, at, story, words};

/// The results that an experiment wrote.
#[derive(Debug)]
pub(crate) struct Document {
    /// The schema without the prefix `onramp.lab.`.
    kind: String,
    whole: Map<String, Value>,
    rows: Vec<Row>,
    /// The key of the number of threads, or of another number in which rows of the same design
    /// differ.
    axis: Option<&'static str>,
    /// Keys whose values name a series: first the design or the path, then others.
    names: Vec<String>,
    base: Option<Base>,
}

/// The results of one design with one number of threads.
#[derive(Debug)]
pub(super) struct Row {
    /// The name of the series: the design, followed by other names that are not the same in all
    /// rows.
    pub(super) series: String,
    /// The first part of the name: the design, or the path.
    pub(super) main: String,
    /// The other parts of the name.
    rest: Vec<String>,
    /// The number of threads, or another number that the axis shows.
    pub(super) at: Option<u64>,
    pub(super) values: Map<String, Value>,
}

/// The base of comparisons: each row is compared with the row of the base that agrees with it in
/// everything but the design.
#[derive(Clone, Debug)]
pub(super) struct Base {
    /// The design, or the path.
    pub(super) main: String,
    /// The name of the base in captions, with what is the same in both rows.
    pub(super) called: String,
    /// Whether the experiment itself made the comparison in each round.
    pub(super) measured: bool,
}

/// A median, with its extremes if there were rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figure {
    pub(super) median: f64,
    pub(super) range: Option<(f64, f64)>,
}

impl Document {
    /// Reads what `--json` wrote.
    ///
    /// # Errors
    ///
    /// A text that says what is wrong with the input.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let value =
            serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))?;
        Self::of(value)
    }

    /// Takes the parsed JSON.
    ///
    /// # Errors
    ///
    /// A text that says what is wrong with the input.
    pub(crate) fn of(value: Value) -> Result<Self, String> {
        let Value::Object(whole) = value else { return Err("it is not a JSON object".to_owned()) };
        let want = "give a file that onramp lab wrote with --json";
        let Some(schema) = whole.get("schema").and_then(Value::as_str) else {
            return Err(format!("it has no schema; {want}"));
        };
        let Some(kind) = schema.strip_prefix(PREFIX).filter(|kind| is_name(kind)) else {
            return Err(format!("its schema is {schema}, not {PREFIX}...; {want}"));
        };
        match whole.get("version") {
            Some(version) if *version == VERSION => {}
            version => {
                let version = version.map_or_else(|| "none".to_owned(), Value::to_string);
                return Err(format!(
                    "its version is {version}, and this program reads {VERSION}; use the onramp \
                     that wrote it"
                ));
            }
        }
        let Some(rows) = whole.get("rows").and_then(Value::as_array) else {
            return Err(format!("it has no rows; {want}"));
        };
        let objects: Option<Vec<_>> = rows.iter().map(Value::as_object).collect();
        let Some(objects) = objects else {
            return Err(format!("one of its rows is not an object; {want}"));
        };
        let axis = axis(&objects);
        let asked = whole.get("parameters").and_then(Value::as_object);
        let names = names(&objects, axis, asked);
        let mut rows: Vec<Row> =
            objects.into_iter().map(|row| Row::of(row, &names, axis)).collect();
        number_the_same(&mut rows);
        sort(&mut rows);
        let kind = kind.to_owned();
        let names = names.into_iter().map(str::to_owned).collect();
        let mut document = Self { kind, whole, rows, axis, names, base: None };
        document.base = document.find_base();
        Ok(document)
    }

    pub(super) fn kind(&self) -> &str {
        &self.kind
    }

    pub(super) fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub(super) fn axis(&self) -> Option<&'static str> {
        self.axis
    }

    pub(super) fn base(&self) -> Option<&Base> {
        self.base.as_ref()
    }

    pub(super) fn story(&self) -> Option<&'static Story> {
        story(&self.kind)
    }

    pub(super) fn title(&self) -> String {
        self.story().map_or_else(|| self.kind.clone(), |story| story.title.to_owned())
    }

    /// Returns the parameters that distinguish one run of an experiment from another.
    pub(super) fn summary(&self) -> String {
        let parameters = self.part("parameters");
        let given = ["qdisc", "load", "device_ns"].into_iter().filter_map(|key| {
            let value = words::value(key, parameters.get(key)?);
            Some(format!("{} {value}", words::label(key)))
        });
        given.collect::<Vec<_>>().join(", ")
    }

    /// Returns an object of the document; an empty object if the document does not have it.
    pub(super) fn part(&self, key: &str) -> &Map<String, Value> {
        static NOTHING: std::sync::LazyLock<Map<String, Value>> =
            std::sync::LazyLock::new(Map::new);
        self.whole.get(key).and_then(Value::as_object).unwrap_or(&NOTHING)
    }

    /// Returns the command line, quoted for a shell.
    pub(super) fn command(&self) -> String {
        let words = self.whole.get("command").and_then(Value::as_array);
        let words = words.map(|words| words.iter().filter_map(Value::as_str));
        let line = words.and_then(|words| shlex::try_join(words).ok());
        line.unwrap_or_else(|| "The command line was not recorded.".to_owned())
    }

    /// Returns a line about the machine.
    pub(super) fn machine_summary(&self) -> String {
        let machine = self.part("machine");
        let cpus = machine.get("cpus").and_then(Value::as_u64);
        let cpus = cpus.map(|cpus| format!("{cpus} {}", if cpus == 1 { "CPU" } else { "CPUs" }));
        let memory = machine.get("memory_bytes").map(|value| words::value("memory_bytes", value));
        let text = |key: &str| machine.get(key).and_then(Value::as_str).map(str::to_owned);
        let parts = [text("cpu"), cpus, memory, text("kernel")].into_iter().flatten();
        parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
    }

    /// Returns a warning if other programs kept the machine busy before the run.
    pub(super) fn was_busy(&self) -> Option<String> {
        let machine = self.part("machine");
        let number = |key| machine.get(key).and_then(Value::as_f64);
        let (load, cpus) = (number("load_1m")?, number("cpus")?);
        (load > cpus / 2.0).then(|| {
            format!(
                "The machine was busy before the run (load {load:.1} on {cpus} CPUs): trust \
                 ratios more than rates."
            )
        })
    }

    /// Returns the names of the series, the oldest design first.
    pub(super) fn series(&self) -> Vec<&str> {
        let mut series: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !series.contains(&row.series.as_str()) {
                series.push(&row.series);
            }
        }
        series
    }

    /// Returns the places along the axis in ascending order. If there is no axis, the only place is
    /// `None`.
    pub(super) fn places(&self) -> Vec<Option<u64>> {
        let mut places: Vec<_> = self.rows.iter().map(|row| row.at).collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    pub(super) fn row(&self, series: &str, at: Option<u64>) -> Option<&Row> {
        self.rows.iter().find(|row| row.series == series && row.at == at)
    }

    /// Whether this is the design that the others are shown beside.
    pub(super) fn is_ours(&self, series: &str) -> bool {
        series.starts_with(self.story().map_or("onramp", |story| story.ours))
    }

    /// Returns the figures that matter most, among those that were measured.
    pub(super) fn figures(&self) -> Vec<&str> {
        let measured = |key: &&str| self.rows.iter().any(|row| row.figure(key).is_some());
        match self.story() {
            Some(story) => story.figures.iter().copied().filter(measured).collect(),
            None => self.spreads().into_iter().filter(measured).take(4).collect(),
        }
    }

    /// Returns the keys of figures that have extremes.
    pub(super) fn spreads(&self) -> Vec<&str> {
        let mut keys: Vec<&str> = Vec::new();
        for row in &self.rows {
            let spread = |key: &&String| row.values.contains_key(&format!("{key}_min"));
            for key in row.values.keys().filter(spread) {
                if !keys.contains(&key.as_str()) {
                    keys.push(key);
                }
            }
        }
        keys
    }

    /// Returns the row that `row` is compared with: the row of the base's design that is the same
    /// in everything else.
    pub(super) fn base_of(&self, row: &Row) -> Option<&Row> {
        let base = self.base()?;
        let same =
            |other: &&Row| other.main == base.main && other.rest == row.rest && other.at == row.at;
        self.rows.iter().find(same)
    }

    /// Whether `row` is one that others are compared with.
    pub(super) fn is_base(&self, row: &Row) -> bool {
        self.base().is_some_and(|base| base.main == row.main)
    }

    /// Whether a design has several rows at one place of the axis, so that there are several rows
    /// to compare with.
    pub(super) fn has_pairs(&self) -> bool {
        self.names.len() > 1
    }

    /// Returns the ratio of the figure at `key` to that of the base.
    pub(super) fn ratio(&self, row: &Row, key: &str) -> Option<Figure> {
        let base = self.base_of(row)?;
        if self.has_pairs() && self.is_base(row) {
            return None;
        }
        // If the experiment gives ratios but not this one, the experiment decides: there is no
        // ratio.
        let own = self.ratios(row).filter(|ratios| ratios.contains_key(key));
        let ratio = match own {
            Some(ratios) => Figure::of(ratios, key)?,
            None if is_quotient(key) => return None,
            None => {
                let median = row.figure(key)?.median / base.figure(key)?.median;
                Figure { median, range: None }
            }
        };
        // A negative ratio has no meaning: a cost below zero is not a multiple of anything.
        (ratio.median.is_finite() && ratio.median >= 0.0).then_some(ratio)
    }

    /// Whether the ratios at `key` come from the rounds, and not from the medians.
    pub(super) fn compares_rounds(&self, key: &str) -> bool {
        let least = format!("{key}_min");
        let mut ratios = self.rows.iter().filter_map(|row| self.ratios(row));
        ratios.any(|ratios| ratios.get(&least).is_some_and(Value::is_number))
    }

    /// Returns the ratios of a row: the row's own, or the entry about this row in a list beside the
    /// rows.
    pub(super) fn ratios<'a>(&'a self, row: &'a Row) -> Option<&'a Map<String, Value>> {
        let (_, value) = ratios_key(&row.values).or_else(|| ratios_key(&self.whole))?;
        let Value::Array(all) = value else { return value.as_object() };
        // Some entries do not name the design. Then only one design is compared with the base.
        if self.is_base(row) {
            return None;
        }
        let naming = || self.names.iter().map(String::as_str).chain(self.axis);
        let about = |one: &&Map<String, Value>| {
            let mut told = naming().filter_map(|key| Some((key, one.get(key)?)));
            told.all(|(key, value)| row.values.get(key) == Some(value))
        };
        all.iter().filter_map(Value::as_object).find(about)
    }

    /// Returns the design that the experiment compared with; otherwise the oldest of the designs
    /// that are usually compared with.
    fn find_base(&self) -> Option<Base> {
        let mut tables = self.rows.iter().map(|row| &row.values).chain([&self.whole]);
        let named = tables.find_map(ratios_key);
        let named = named.map(|(key, _)| key[RATIOS.len()..].replace('_', "-"));
        let mains = || self.rows.iter().map(|row| row.main.as_str());
        let base = |main: &str, measured| {
            let called = match self.has_pairs() {
                true => format!("{main} with the same {}", self.rest_labels()),
                false => main.to_owned(),
            };
            Some(Base { main: main.to_owned(), called, measured })
        };
        if let Some(name) = named.filter(|name| mains().any(|main| main == name)) {
            return base(&name, true);
        }
        let known = ["busylock", "llist"].into_iter().find(|name| mains().any(|m| m == *name));
        base(known.or_else(|| mains().find(|name| !self.is_ours(name)))?, false)
    }

    /// Returns the labels of the names in which rows of the same design differ, apart from the
    /// axis.
    fn rest_labels(&self) -> String {
        let labels: Vec<_> = self.names.iter().skip(1).map(|key| words::label(key)).collect();
        labels.join(" and ")
    }

    /// Returns the place on the axis that the figure `scaling` refers to.
    pub(super) fn first_place(&self) -> Option<u64> {
        let asked = self.part("parameters").get(self.axis?).and_then(Value::as_array);
        asked.and_then(|all| all.first()?.as_u64()).or_else(|| self.places().first().copied()?)
    }
}

impl Row {
    fn of(row: &Map<String, Value>, names: &[&str], axis: Option<&str>) -> Self {
        let part = |key: &&str| match row.get(*key)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.as_u64().map_or_else(
                || format!("{number} {}", words::label(key)),
                |number| words::count(number, key),
            )),
            _ => None,
        };
        let mut parts = names.iter().filter_map(part);
        let main = parts.next().unwrap_or_default();
        let mut made = Self {
            series: String::new(),
            main,
            rest: parts.collect(),
            at: axis.and_then(|axis| row.get(axis)?.as_u64()),
            values: row.clone(),
        };
        made.name();
        made
    }

    /// Joins the parts into the name of the series.
    fn name(&mut self) {
        let parts: Vec<_> = std::iter::once(&self.main).chain(&self.rest).cloned().collect();
        self.series = parts.join(", ");
    }

    /// Returns the figure at the path `key`; `None` if it was not measured.
    pub(super) fn figure(&self, key: &str) -> Option<Figure> {
        match key.contains('.') {
            true => {
                let median = at(self, key)?.as_f64().filter(|figure| figure.is_finite())?;
                Some(Figure { median, range: None })
            }
            false => Figure::of(&self.values, key),
        }
    }
}

impl Figure {
    /// Returns the figure at `key` of `map`, with the extremes that stand beside it.
    pub(super) fn of(map: &Map<String, Value>, key: &str) -> Option<Self> {
        let number = |key: &str| map.get(key)?.as_f64().filter(|figure| figure.is_finite());
        let range = number(&format!("{key}_min")).zip(number(&format!("{key}_max")));
        Some(Self { median: number(key)?, range })
    }
}

/// Returns the key and the value of the ratios to a base.
fn ratios_key(map: &Map<String, Value>) -> Option<(&str, &Value)> {
    let (key, value) = map.iter().find(|(key, _)| key.starts_with(RATIOS))?;
    Some((key, value))
}

/// Returns the axis: the first of the usual keys that all rows have.
fn axis(rows: &[&Map<String, Value>]) -> Option<&'static str> {
    let whole = |key: &str| rows.iter().all(|row| row.get(key).is_some_and(Value::is_u64));
    AXES.into_iter().find(|key| !rows.is_empty() && whole(key))
}

/// Returns the keys whose values name a series: the first text of the rows, and other texts and
/// numbers that differ between rows. A number counts only if the user gave a list of values for it.
fn names<'a>(
    rows: &[&'a Map<String, Value>],
    axis: Option<&str>,
    asked: Option<&Map<String, Value>>,
) -> Vec<&'a str> {
    let Some(first) = rows.first() else { return Vec::new() };
    let differs = |key: &str| rows.iter().any(|row| row.get(key) != first.get(key));
    let listed = |key: &str| asked.is_some_and(|all| all.get(key).is_some_and(Value::is_array));
    let main = first.iter().find(|(_, value)| value.is_string()).map(|(key, _)| key.as_str());
    let others = first.iter().filter(|(key, value)| {
        let naming = value.is_string() || listed(key) && (value.is_number() || value.is_null());
        naming && Some(key.as_str()) != main && Some(key.as_str()) != axis && differs(key)
    });
    main.into_iter().chain(others.map(|(key, _)| key.as_str())).collect()
}

/// Numbers rows that have the same name and the same place, so that no row hides another.
fn number_the_same(rows: &mut [Row]) {
    let mut seen: HashMap<(String, Option<u64>), usize> = HashMap::new();
    for row in rows {
        let times = seen.entry((row.series.clone(), row.at)).or_default();
        *times += 1;
        if *times > 1 {
            row.rest.push(format!("number {times}"));
            row.name();
        }
    }
}

/// Whether the figure at `key` is already divided by another figure of the same row.
pub(super) fn is_quotient(key: &str) -> bool {
    key == "scaling"
}

/// Sorts the rows by place along the axis and, if all designs are known, by age with the oldest
/// design first and Onramp last.
fn sort(rows: &mut [Row]) {
    let known: Vec<_> =
        Design::ALL.iter().chain(Design::PEERS).map(|design| design.name()).collect();
    let age = |row: &Row| known.iter().position(|name| *name == row.main);
    if rows.iter().all(|row| row.main.starts_with("onramp") || age(row).is_some()) {
        rows.sort_by_key(|row| (row.main.starts_with("onramp"), age(row), row.main.clone()));
    }
    // The sort is stable, so designs keep their order at each place.
    rows.sort_by_key(|row| row.at);
}

/// Whether the word may be part of a file name.
fn is_name(kind: &str) -> bool {
    !kind.is_empty()
        && kind.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

const PREFIX: &str = "onramp.lab.";
const VERSION: u64 = 1;
const RATIOS: &str = "ratios_to_";
/// The keys in which rows of the same design may differ.
const AXES: [&str; 8] =
    ["threads", "pairs", "senders", "cpus", "clients", "queues", "flows", "ports"];
