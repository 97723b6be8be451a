//! Reads the JSON of an experiment for a report.

use std::collections::HashMap;

use onramp_lab::contention::Design;
use onramp_lab::control;
use serde_json::{Map, Value};

use super::{Story, at, story, words};
use crate::{machine, watch};

/// The results of one experiment, as the experiment wrote them.
#[derive(Debug)]
pub(crate) struct Document {
    /// The name of the experiment: the schema without its prefix `onramp.lab.`.
    kind: String,
    whole: Map<String, Value>,
    rows: Vec<Row>,
    /// The key of the number that the axis shows, which differs between rows of the same design:
    /// the number of threads, or another number.
    axis: Option<&'static str>,
    /// The keys whose values together make the name of a series. The first is the key of the design
    /// (in `onramp lab kernel`: the key `path`, which has the value `kernel` or `onramp`); the
    /// values of the other keys distinguish several rows of a design.
    names: Vec<String>,
    base: Option<Base>,
}

/// The results of one design at one place of the axis, such as a number of threads.
#[derive(Debug)]
pub(super) struct Row {
    /// The name of the series that the row belongs to: the design, followed by those of its
    /// settings that are not the same in all rows.
    pub(super) series: String,
    /// The first part of the series' name: the design, or in `onramp lab kernel` the path (`kernel`
    /// or `onramp`).
    pub(super) main: String,
    /// The other parts of the series' name.
    rest: Vec<String>,
    /// The place of the row on the axis: the number of threads, or another number.
    pub(super) at: Option<u64>,
    pub(super) values: Map<String, Value>,
}

/// The base: the design that the others are compared with. Each row is compared with the row of
/// this design that has the same settings and the same place on the axis.
#[derive(Clone, Debug)]
pub(super) struct Base {
    of: BaseOf,
    /// How captions call the base: its name, and the settings that are the same in both compared
    /// rows.
    pub(super) called: String,
    /// Whether the experiment itself compared the designs, round by round, and wrote the ratios.
    pub(super) measured: bool,
}

/// Which design is the base of a row.
#[derive(Clone, Debug)]
enum BaseOf {
    /// The design of this name, for all rows. In `onramp lab kernel` and `onramp lab wire` it is a
    /// path, such as `kernel` or `bridge`.
    All(String),
    /// In `onramp lab control`, the design that has the same kind of link as the row, and no thread
    /// that reads or changes the link.
    Undisturbed,
}

/// The value of a figure: a median, with the least and the greatest value if there were rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figure {
    pub(super) median: f64,
    pub(super) range: Option<(f64, f64)>,
}

impl Document {
    /// Reads the text of a document that `--json` wrote.
    ///
    /// # Errors
    ///
    /// A text that says what is wrong with the input.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let value =
            serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))?;
        Self::of(value)
    }

    /// Reads a document that is already parsed as JSON.
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
        let paths;
        let objects = match kind {
            "wire" => {
                paths = rows_of_wire(&objects);
                paths.iter().collect()
            }
            // The busy thread sends nothing, so it has no place among the ways of packets.
            "pacing" => objects
                .into_iter()
                .filter(|row| row.get("path").is_none_or(|path| path != "busy"))
                .collect(),
            _ => objects,
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

    /// Returns the label that people see for the figure at `key`.
    pub(super) fn label(&self, key: &str) -> String {
        words::label_in(&self.kind, key)
    }

    pub(super) fn title(&self) -> String {
        self.story().map_or_else(|| self.kind.clone(), |story| story.title.to_owned())
    }

    /// Returns a text with the parameters in which runs of the same experiment usually differ.
    pub(super) fn summary(&self) -> String {
        let parameters = self.part("parameters");
        let given = ["qdisc", "load", "device_ns"].into_iter().filter_map(|key| {
            let value = words::value(key, parameters.get(key)?);
            Some(format!("{} {value}", words::label(key)))
        });
        given.collect::<Vec<_>>().join(", ")
    }

    /// Returns the object under `key` of the document; an empty object if there is none.
    pub(super) fn part(&self, key: &str) -> &Map<String, Value> {
        static NOTHING: std::sync::LazyLock<Map<String, Value>> =
            std::sync::LazyLock::new(Map::new);
        self.whole.get(key).and_then(Value::as_object).unwrap_or(&NOTHING)
    }

    /// Returns the command line of the run, quoted for a shell.
    pub(super) fn command(&self) -> String {
        let words = self.whole.get("command").and_then(Value::as_array);
        let words = words.map(|words| words.iter().filter_map(Value::as_str));
        let line = words.and_then(|words| shlex::try_join(words).ok());
        line.unwrap_or_else(|| "The command line was not recorded.".to_owned())
    }

    /// Returns a line of text about the machine of the run.
    pub(super) fn machine_summary(&self) -> String {
        let machine = self.part("machine");
        let cpus = machine.get("cpus").and_then(Value::as_u64);
        let cpus = cpus.map(|cpus| format!("{cpus} {}", if cpus == 1 { "CPU" } else { "CPUs" }));
        let memory = machine.get("memory_bytes").map(|value| words::value("memory_bytes", value));
        let text = |key: &str| machine.get(key).and_then(Value::as_str).map(str::to_owned);
        let parts = [text("cpu"), cpus, memory, text("kernel")].into_iter().flatten();
        parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
    }

    /// Returns sentences that say what the run could not measure.
    pub(super) fn missing(&self) -> Vec<String> {
        watch::missing(&self.whole)
    }

    /// Returns warnings to readers of the figures: that the program was built without optimisation,
    /// which documents of older versions do not tell, and that other programs kept the machine busy
    /// before the experiment ran.
    pub(super) fn warnings(&self) -> Vec<String> {
        let machine = self.part("machine");
        let number = |key| machine.get(key).and_then(Value::as_f64);
        let busy = number("load_1m").zip(number("cpus"));
        let busy = busy.and_then(|(load, cpus)| machine::was_busy(load, cpus));
        let slow = machine.get("optimised").is_some_and(|optimised| optimised == false);
        let slow = slow.then(|| machine::NOT_OPTIMISED.to_owned());
        slow.into_iter().chain(busy).collect()
    }

    /// Returns the names of the series, each once, in the order of the rows: the oldest design
    /// first.
    pub(super) fn series(&self) -> Vec<&str> {
        let mut series: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !series.contains(&row.series.as_str()) {
                series.push(&row.series);
            }
        }
        series
    }

    /// Returns the numbers along the axis in ascending order. If there is no axis, the only element
    /// is `None`.
    pub(super) fn places(&self) -> Vec<Option<u64>> {
        let mut places: Vec<_> = self.rows.iter().map(|row| row.at).collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    pub(super) fn row(&self, series: &str, at: Option<u64>) -> Option<&Row> {
        self.rows.iter().find(|row| row.series == series && row.at == at)
    }

    /// Whether the series belongs to the design that is compared with the others, and is
    /// highlighted.
    pub(super) fn is_ours(&self, series: &str) -> bool {
        series.starts_with(self.story().map_or("onramp", |story| story.ours))
    }

    /// Returns the keys of those figures that matter most and were measured.
    pub(super) fn figures(&self) -> Vec<&str> {
        let measured = |key: &&str| self.rows.iter().any(|row| row.figure(key).is_some());
        match self.story() {
            Some(story) => story.figures.iter().copied().filter(measured).collect(),
            None => self.spreads().into_iter().filter(measured).take(4).collect(),
        }
    }

    /// Returns the keys of figures that have a least and a greatest value.
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

    /// Returns the row that `row` is compared with: the row of the base (the design that others are
    /// compared with) that has the same settings and the same place on the axis.
    pub(super) fn base_of(&self, row: &Row) -> Option<&Row> {
        let base = self.base()?.name_for(row)?;
        let same =
            |other: &&Row| other.main == base && other.rest == row.rest && other.at == row.at;
        self.rows.iter().find(same)
    }

    /// Whether `row` belongs to the base, so that other rows are compared with it.
    pub(super) fn is_base(&self, row: &Row) -> bool {
        self.base().is_some_and(|base| base.name_for(row) == Some(row.main.as_str()))
    }

    /// Whether rows are compared with different designs.
    pub(super) fn has_several_bases(&self) -> bool {
        self.base().is_some_and(|base| matches!(base.of, BaseOf::Undisturbed))
    }

    /// Whether `row` is compared with another row, which has the same settings and the same place
    /// on the axis.
    pub(super) fn has_partner(&self, row: &Row) -> bool {
        let Some(base) = self.base() else { return false };
        let pair =
            |other: &&Row| other.main != row.main && other.rest == row.rest && other.at == row.at;
        let with = |one: &Row, other: &Row| base.name_for(one) == Some(other.main.as_str());
        self.rows.iter().filter(pair).any(|other| with(row, other) || with(other, row))
    }

    /// Returns a number that is the same for all rows with the same settings, in the order in which
    /// the settings first appear.
    pub(super) fn pair_number(&self, row: &Row) -> Option<usize> {
        self.rows.iter().position(|other| other.rest == row.rest)
    }

    /// Whether a design may have several rows at the same place of the axis, with different
    /// settings. If so, each row is compared with the row of the base that has the same settings.
    pub(super) fn has_pairs(&self) -> bool {
        self.names.len() > 1
    }

    /// Returns the ratio of the figure at `key` in `row` to the same figure in the row of the base.
    pub(super) fn ratio(&self, row: &Row, key: &str) -> Option<Figure> {
        let base = self.base_of(row)?;
        if self.has_pairs() && self.is_base(row) {
            return None;
        }
        // A ratio that the experiment itself wrote takes precedence over one computed from the
        // medians. If the experiment wrote `null` instead of a ratio, the row has no ratio. Ratios
        // to another design than the base, which was not measured, say nothing here.
        let own = self.base().filter(|base| base.measured).and_then(|_| self.ratios(row));
        let own = own.filter(|ratios| ratios.contains_key(key));
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

    /// Whether the ratios of the figure `key` were computed round by round, and are not ratios of
    /// the medians.
    pub(super) fn compares_rounds(&self, key: &str) -> bool {
        let least = format!("{key}_min");
        let mut ratios = self.rows.iter().filter_map(|row| self.ratios(row));
        ratios.any(|ratios| ratios.get(&least).is_some_and(Value::is_number))
    }

    /// Returns the ratios of a row: those in the row itself, or the entry about this row in a list
    /// that the document has beside the rows.
    pub(super) fn ratios<'a>(&'a self, row: &'a Row) -> Option<&'a Map<String, Value>> {
        let (_, value) = ratios_key(&row.values).or_else(|| ratios_key(&self.whole))?;
        let Value::Array(all) = value else { return value.as_object() };
        // `all` has an entry for each row that is compared with the base. An entry may lack the
        // name of its design if only one design is compared. Such an entry would also fit the row
        // of the base, so that row is excluded here.
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

    /// Returns the ratios of the figure `packets_per_second` in `onramp lab control` to that of the
    /// design whose second thread reads another link: the name of that design, and each row that
    /// has such a ratio.
    pub(super) fn beside_elsewhere(&self) -> Option<(&'static str, Vec<(&Row, Figure)>)> {
        let base = control_design("queues-read")?.elsewhere()?.name();
        let ratio = |row| Some((row, Figure::of(at(row, ELSEWHERE)?.as_object()?, RATE)?));
        let rows: Vec<_> = self.rows.iter().filter_map(ratio).collect();
        (!rows.is_empty()).then_some((base, rows))
    }

    /// Returns the base: the design that the experiment itself compared with; or else `busylock` or
    /// `llist`, if there are rows of them; or else the first design that is not highlighted.
    fn find_base(&self) -> Option<Base> {
        let mut tables = self.rows.iter().map(|row| &row.values).chain([&self.whole]);
        let named = tables.find_map(ratios_key);
        if named.is_some_and(|(key, _)| key == UNDISTURBED) {
            let called = "its own link, undisturbed".to_owned();
            return Some(Base { of: BaseOf::Undisturbed, called, measured: true });
        }
        let named = named.map(|(key, _)| key[RATIOS.len()..].replace('_', "-"));
        let mains = || self.rows.iter().map(|row| row.main.as_str());
        let base = |main: &str, measured| {
            let called = match self.has_pairs() {
                true => format!("{main} with the same {}", self.rest_labels()),
                false => main.to_owned(),
            };
            Some(Base { of: BaseOf::All(main.to_owned()), called, measured })
        };
        if let Some(name) = named.filter(|name| mains().any(|main| main == name)) {
            return base(&name, true);
        }
        let known = ["busylock", "llist"].into_iter().find(|name| mains().any(|m| m == *name));
        base(known.or_else(|| mains().find(|name| !self.is_ours(name)))?, false)
    }

    /// Returns the labels of the keys, other than the axis, in which rows of the same design
    /// differ.
    fn rest_labels(&self) -> String {
        let labels: Vec<_> = self.names.iter().skip(1).map(|key| words::label(key)).collect();
        labels.join(" and ")
    }

    /// Returns the place on the axis to which the figure `scaling` of all rows relates: the first
    /// place that the user asked for, or else the lowest place.
    pub(super) fn first_place(&self) -> Option<u64> {
        let asked = self.part("parameters").get(self.axis?).and_then(Value::as_array);
        asked.and_then(|all| all.first()?.as_u64()).or_else(|| self.places().first().copied()?)
    }
}

impl Base {
    /// Returns the name of the design that `row` is compared with; `None` if the program does not
    /// know it.
    fn name_for(&self, row: &Row) -> Option<&str> {
        match &self.of {
            BaseOf::All(main) => Some(main),
            BaseOf::Undisturbed => Some(control_design(&row.main)?.undisturbed().name()),
        }
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

    /// Sets the name of the row's series: `main` and the parts in `rest`, joined by commas.
    fn name(&mut self) {
        let parts: Vec<_> = std::iter::once(&self.main).chain(&self.rest).cloned().collect();
        self.series = parts.join(", ");
    }

    /// Returns the settings of the row, which tell it from the other rows of its design.
    pub(super) fn rest(&self) -> String {
        self.rest.join(", ")
    }

    /// Returns the figure at the path `key` of this row; `None` if it was not measured.
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
    /// Returns the figure at `key` of `map`, together with its least and its greatest value if
    /// `map` has them.
    pub(super) fn of(map: &Map<String, Value>, key: &str) -> Option<Self> {
        let number = |key: &str| map.get(key)?.as_f64().filter(|figure| figure.is_finite());
        let range = number(&format!("{key}_min")).zip(number(&format!("{key}_max")));
        Some(Self { median: number(key)?, range })
    }
}

/// Returns the first entry of `map` with ratios to a base: the key, which names the base, and the
/// ratios.
fn ratios_key(map: &Map<String, Value>) -> Option<(&str, &Value)> {
    let (key, value) = map.iter().find(|(key, _)| key.starts_with(RATIOS))?;
    Some((key, value))
}

/// Returns the design of `onramp lab control` that has this name.
fn control_design(name: &str) -> Option<control::Design> {
    control::Design::ALL.into_iter().find(|design| design.name() == name)
}

/// Returns the rows of `onramp lab wire` in the form that the rows of other experiments have: the
/// ratios to the bridge are in an object of their own, under the keys of the figures, and a row
/// without a shaper has a text that says so. If there are no rows of the bridge, the ratios are
/// left out.
fn rows_of_wire(rows: &[&Map<String, Value>]) -> Vec<Map<String, Value>> {
    let bridge = rows.iter().any(|row| row.get("path").is_some_and(|path| path == "bridge"));
    let row = |row: &&Map<String, Value>| {
        let (mut row, mut ratios) = ((*row).clone(), Map::new());
        for (key, figure) in TO_BRIDGE {
            for end in ["", "_min", "_max"] {
                let ratio = row.shift_remove(&format!("{key}{end}"));
                ratios.extend(ratio.map(|ratio| (format!("{figure}{end}"), ratio)));
            }
        }
        if bridge {
            row.insert(format!("{RATIOS}bridge"), ratios.into());
        }
        if let Some(shaper) = row.get_mut("shaper").filter(|shaper| shaper.is_null()) {
            *shaper = "no shaper".into();
        }
        row
    };
    rows.iter().map(row).collect()
}

/// Returns the key of the axis: the first of [`AXES`] that has a whole number in all rows.
fn axis(rows: &[&Map<String, Value>]) -> Option<&'static str> {
    let whole = |key: &str| rows.iter().all(|row| row.get(key).is_some_and(Value::is_u64));
    AXES.into_iter().find(|key| !rows.is_empty() && whole(key))
}

/// Returns the keys whose values make the name of a series: the first key with a text, and the
/// other keys with texts or numbers that differ between rows. A key with numbers is taken only if
/// the user gave a list of values for it.
fn names<'a>(
    rows: &[&'a Map<String, Value>],
    axis: Option<&str>,
    asked: Option<&Map<String, Value>>,
) -> Vec<&'a str> {
    let Some(first) = rows.first() else { return Vec::new() };
    let differs = |key: &str| rows.iter().any(|row| row.get(key) != first.get(key));
    let list = |key: &str| asked.and_then(|all| all.get(key)?.as_array());
    let listed = |key: &str| list(key).is_some_and(|values| !values.is_empty());
    let main = first.iter().find(|(_, value)| value.is_string()).map(|(key, _)| key.as_str());
    let others = first.iter().filter(|(key, value)| {
        let naming = value.is_string() || listed(key) && (value.is_number() || value.is_null());
        naming && Some(key.as_str()) != main && Some(key.as_str()) != axis && differs(key)
    });
    main.into_iter().chain(others.map(|(key, _)| key.as_str())).collect()
}

/// If several rows have the same name and the same place, adds a number to the names of the second
/// and later ones, so that no row hides another.
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

/// Whether the figure at `key` is itself a ratio to another row of the same design.
pub(super) fn is_quotient(key: &str) -> bool {
    key == "scaling"
}

/// Sorts the rows by their place on the axis. If the program knows all designs in the rows, it
/// sorts rows at the same place by the age of their design, the oldest first and Onramp last.
fn sort(rows: &mut [Row]) {
    let known: Vec<_> = Design::ALL
        .iter()
        .chain(Design::QUEUED)
        .chain(Design::OTHERS)
        .chain(Design::PEERS)
        .map(|design| design.name())
        .collect();
    let age = |row: &Row| known.iter().position(|name| *name == row.main);
    if rows.iter().all(|row| row.main.starts_with("onramp") || age(row).is_some()) {
        rows.sort_by_key(|row| (row.main.starts_with("onramp"), age(row), row.main.clone()));
    }
    // The sort is stable, so rows at the same place keep the order of their designs.
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
/// The keys of the ratios in rows of `onramp lab control`.
const UNDISTURBED: &str = "ratios_to_undisturbed";
const ELSEWHERE: &str = "ratios_to_elsewhere";
/// The figure of these ratios.
pub(super) const RATE: &str = "packets_per_second";
/// The keys of the ratios in rows of `onramp lab wire`, and the figure of each.
const TO_BRIDGE: [(&str, &str); 3] = [
    ("rate_to_bridge", RATE),
    ("cpu_to_bridge", "cpu_ns_per_packet"),
    ("equal_load_cpu_to_bridge", "equal_load_cpu_ns_per_packet"),
];
/// The keys of the numbers that the axis of a report may show.
const AXES: [&str; 9] =
    ["threads", "pairs", "senders", "cpus", "clients", "queues", "flows", "ports", "rate"];
