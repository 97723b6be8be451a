//! Repeats the measurements behind the tables in the documents, and shows old and new figures side
//! by side.
//!
//! A table that can be repeated says how, in a comment above the table:
//!
//! ```text
//! <!-- figures NAME
//! run: onramp lab contention --threads 1,2 --rounds 5
//! rows: threads of rows
//! column threads = threads
//! column onramp, Mpps = rows[design=onramp,manners=equal].packets_per_second /1e6 .1 spread
//! -->
//! | threads | onramp, Mpps |
//! |---|---|
//! | 1 | 7.2 (6.9-7.4) |
//! <!-- end of figures -->
//! ```
//!
//! `run` is a command that can write `--json FILE`. In the comment above, `rows: KEY of ARRAY`
//! makes a line of the table for each value that KEY has in ARRAY. `for KEY: A B` instead runs the
//! command once for each value, inserted in place of `{KEY}`, and makes a line for each run. The
//! right side of a `column` is a path into the JSON output: names separated by dots. If a name
//! leads to an array, the path continues in one object of the array: the first whose keys have the
//! values in the brackets, and whose KEY (if the object has one) has the value of the table's line.
//! `/N` divides the figure, `.N` is the number of digits, and `spread` adds the extremes that stand
//! beside the figure (`..._min`, `..._max`).

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::shell::{cargo, forget_xtask, root, run as shell};
use crate::{Failure, Outcome};

/// The documents that contain tables.
const DOCUMENTS: &[&str] = &["README.md", "docs/performance.md"];
pub(crate) const BEGIN: &str = "<!-- figures ";
const SAID: &str = "-->\n";
const END: &str = "<!-- end of figures -->";

const HELP: &str = "\
usage: cargo xtask figures [--write] [NAME...]

Runs the commands that produce the tables of README.md and docs/performance.md, and prints old and
new rows side by side. NAME: only tables whose name contains NAME. --write: replaces the old tables.
";

/// A table of measurements in a document.
#[derive(Debug, PartialEq)]
struct Table<'t> {
    name: &'t str,
    command: &'t str,
    lines: Lines<'t>,
    columns: Vec<Column<'t>>,
    /// The text of the table in the document, and its position there in bytes.
    old: &'t str,
    at: usize,
}

/// What the lines of a table stand for.
#[derive(Debug, PartialEq)]
enum Lines<'t> {
    /// One line of the table for each value that a key has in an array of the output.
    Of { key: &'t str, array: &'t str },
    /// One line of the table for each of these values. Each value needs its own run of the command.
    For { key: &'t str, values: Vec<&'t str> },
}

#[derive(Debug, PartialEq)]
struct Column<'t> {
    head: &'t str,
    path: &'t str,
    scale: f64,
    digits: usize,
    spread: bool,
}

/// Measures all tables again, or only those whose name contains one of the arguments.
pub(crate) fn run(args: &[String]) -> Outcome {
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        print!("{HELP}");
        return Ok(());
    }
    let (options, names): (Vec<&String>, Vec<&String>) =
        args.iter().partition(|arg| arg.starts_with('-'));
    if let Some(option) = options.iter().find(|option| **option != "--write") {
        return Err(Failure::Failed(format!("figures: unknown option {option}\n\n{HELP}")));
    }
    shell(&mut cargo(&["build", "--release", "-p", "onramp-cli"]))?;
    let (mut found, mut runs) = (0, Runs::default());
    for document in DOCUMENTS {
        let path = root().join(document);
        let unable = |err| Failure::Unable(format!("{document}: {err}"));
        let text = fs::read_to_string(&path).map_err(unable)?;
        let (mut new, mut copied) = (String::new(), 0);
        for table in tables(&text).map_err(|why| Failure::Failed(format!("{document}: {why}")))? {
            if !names.is_empty() && !names.iter().any(|name| table.name.contains(&***name)) {
                continue;
            }
            found += 1;
            let lines = measure(&table, &mut runs)?;
            println!("\n{document}, {}: {}", table.name, table.command);
            print!("{}", beside(table.old, &lines));
            new += &text[copied..table.at];
            new += &render(&table, &lines);
            copied = table.at + table.old.len();
        }
        new += &text[copied..];
        if !options.is_empty() && new != text {
            fs::write(&path, new).map_err(unable)?;
        }
    }
    match found {
        0 => Err(Failure::Failed("no table has a name that contains NAME".into())),
        _ => Ok(()),
    }
}

/// Returns the tables of a document that have a comment on how they were made.
fn tables(text: &str) -> Result<Vec<Table<'_>>, String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once(BEGIN) {
        let (name, after) = after.split_once('\n').ok_or("a table without a name")?;
        let wrong = |what: &str| format!("table {name}: {what}");
        let (said, after) = after.split_once(SAID).ok_or_else(|| wrong("no end of the comment"))?;
        let (old, after) = after.split_once(END).ok_or_else(|| wrong("no end of figures"))?;
        rest = after;
        let at = text.len() - after.len() - END.len() - old.len();
        let table = table(name.trim(), said, old).map_err(|why| wrong(&why))?;
        found.push(Table { at, ..table });
    }
    Ok(found)
}

fn table<'t>(name: &'t str, said: &'t str, old: &'t str) -> Result<Table<'t>, String> {
    let (mut command, mut lines, mut columns) = (None, None, Vec::new());
    for line in said.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let wrong = || format!("unknown line in the comment of a table: {line}");
        if let Some(rest) = line.strip_prefix("run:") {
            command = Some(rest.trim());
        } else if let Some(rest) = line.strip_prefix("rows:") {
            let (key, array) = rest.split_once(" of ").ok_or_else(wrong)?;
            lines = Some(Lines::Of { key: key.trim(), array: array.trim() });
        } else if let Some(rest) = line.strip_prefix("for ") {
            let (key, values) = rest.split_once(':').ok_or_else(wrong)?;
            lines = Some(Lines::For { key, values: values.split_whitespace().collect() });
        } else if let Some(rest) = line.strip_prefix("column ") {
            columns.push(column(rest).ok_or_else(wrong)?);
        } else {
            return Err(wrong());
        }
    }
    let command = command.ok_or("no run:")?;
    let lines = lines.ok_or("neither rows: nor for")?;
    if columns.is_empty() {
        return Err("no column".into());
    }
    Ok(Table { name, command, lines, columns, old, at: 0 })
}

fn column(text: &str) -> Option<Column<'_>> {
    let (head, rest) = text.split_once(" = ")?;
    let mut words = rest.split_whitespace();
    let path = words.next()?;
    let mut column = Column { head, path, scale: 1.0, digits: 0, spread: false };
    for word in words {
        if let Some(scale) = word.strip_prefix('/') {
            column.scale = scale.parse().ok()?;
        } else if let Some(digits) = word.strip_prefix('.') {
            column.digits = digits.parse().ok()?;
        } else if word == "spread" {
            column.spread = true;
        } else {
            return None;
        }
    }
    Some(column)
}

/// Runs the measurement of a table. Returns the lines of the new table: the value that each line
/// stands for, and its cells.
fn measure(table: &Table<'_>, runs: &mut Runs) -> Result<Vec<Vec<String>>, Failure> {
    let wrong = |why: String| Failure::Failed(format!("table {}: {why}", table.name));
    let mut lines = Vec::new();
    match &table.lines {
        Lines::Of { key, array } => {
            let json = runs.results(table.command)?;
            for value in distinct(json, array, key).map_err(wrong)? {
                lines.push(cells(table, json, key, &value).map_err(wrong)?);
            }
        }
        Lines::For { key, values } => {
            for value in values {
                let json = runs.results(&table.command.replace(&format!("{{{key}}}"), value))?;
                lines.push(cells(table, json, key, value).map_err(wrong)?);
            }
        }
    }
    Ok(lines)
}

/// The output of each command that was run. Tables with the same command share one run.
#[derive(Default)]
struct Runs(BTreeMap<String, Value>);

impl Runs {
    fn results(&mut self, command: &str) -> Result<&Value, Failure> {
        if !self.0.contains_key(command) {
            self.0.insert(command.to_owned(), results(command)?);
        }
        Ok(&self.0[command])
    }
}

/// Runs `command`, which begins with `onramp` or `cargo`, and reads the JSON that the command
/// wrote.
fn results(command: &str) -> Result<Value, Failure> {
    let unable = |why: String| Failure::Unable(format!("`{command}`: {why}"));
    let words = words(command);
    let program = match words.first().map(String::as_str) {
        Some("onramp") => root().join("target/release/onramp"),
        Some("cargo") => PathBuf::from(env!("CARGO")),
        _ => return Err(unable("expected a command that begins with `onramp` or `cargo`".into())),
    };
    let file: PathBuf = root().join("target/figures.json");
    eprintln!("$ {command}");
    let mut run = Command::new(program);
    forget_xtask(&mut run);
    run.current_dir(root())
        .args(&words[1..])
        .arg("--json")
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let status = run.status().map_err(|err| unable(err.to_string()))?;
    if !status.success() {
        return Err(Failure::Failed(format!("`{command}`: {status}")));
    }
    let text = fs::read_to_string(file).map_err(|err| unable(err.to_string()))?;
    serde_json::from_str(&text).map_err(|err| unable(err.to_string()))
}

/// Splits a command line into words. Words in single quotes may contain spaces.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (at, part) in command.split('\'').enumerate() {
        if at % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

fn distinct(json: &Value, array: &str, key: &str) -> Result<Vec<String>, String> {
    let rows = json[array].as_array().ok_or_else(|| format!("there is no array {array}"))?;
    let mut values: Vec<String> = Vec::new();
    for value in rows.iter().map(|row| plain(&row[key])) {
        if !values.contains(&value) {
            values.push(value);
        }
    }
    Ok(values)
}

fn cells(table: &Table<'_>, json: &Value, key: &str, line: &str) -> Result<Vec<String>, String> {
    let cell = |column: &Column<'_>| {
        if column.path == key {
            return Ok(line.to_owned());
        }
        let figure = |path: &str| find(json, path, key, line).and_then(Value::as_f64);
        let show = |value: f64| format!("{:.*}", column.digits, value / column.scale);
        let Some(median) = figure(column.path) else {
            let there = find(json, column.path, key, line).is_some_and(Value::is_null);
            let path = column.path;
            return if there { Ok("-".into()) } else { Err(format!("no {path} for {line}")) };
        };
        let extremes = ["min", "max"].map(|end| figure(&format!("{}_{end}", column.path)));
        Ok(match extremes {
            [Some(min), Some(max)] if column.spread => {
                format!("{} ({}-{})", show(median), show(min), show(max))
            }
            _ if column.spread => return Err(format!("{} has no extremes", column.path)),
            _ => show(median),
        })
    };
    table.columns.iter().map(cell).collect()
}

/// Returns the value at `path` in the JSON output, for the line whose `key` has the value `line`.
/// Returns `None` if the path leads nowhere.
fn find<'j>(json: &'j Value, path: &str, key: &str, line: &str) -> Option<&'j Value> {
    let mut at = json;
    for part in path.split('.') {
        let (name, filters) = part.split_once('[').unwrap_or((part, ""));
        if at.is_null() {
            return Some(at); // The object with the figure is `null`, so the figure is missing.
        }
        at = at.get(name)?;
        if let Some(rows) = at.as_array() {
            let filters = filters.trim_end_matches(']');
            let fits = |row: &&Value| {
                let asked = filters.split(',').filter_map(|filter| filter.split_once('='));
                asked.into_iter().all(|(key, value)| plain(&row[key]) == value)
                    && row.get(key).is_none_or(|value| plain(value) == line)
            };
            at = rows.iter().find(fits)?;
        }
    }
    Some(at)
}

/// Returns a value in the form in which a table shows it.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn render(table: &Table<'_>, lines: &[Vec<String>]) -> String {
    let heads: Vec<_> = table.columns.iter().map(|column| column.head).collect();
    let mut text = format!("| {} |\n|{}\n", heads.join(" | "), "---|".repeat(heads.len()));
    for line in lines {
        text += &format!("| {} |\n", line.join(" | "));
    }
    text
}

/// Returns one line of text for each figure of the new table: the old figure, the new one, and the
/// ratio of the new to the old.
fn beside(old: &str, new: &[Vec<String>]) -> String {
    let row = |line: &str| -> Vec<String> {
        line.trim().trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let mut old = old.lines().filter(|line| line.starts_with('|')).map(row);
    let heads = old.next().unwrap_or_default();
    let old: Vec<Vec<String>> = old.skip(1).collect();
    let mut text = String::new();
    for line in new {
        let before = old.iter().find(|old| old.first() == line.first());
        for (at, cell) in line.iter().enumerate().skip(1) {
            let head = heads.get(at).map_or("?", String::as_str);
            let was = before.and_then(|old| old.get(at)).map_or("-", String::as_str);
            let times = number(cell).zip(number(was)).filter(|(_, was)| *was > 0.0);
            let times = times.map_or_else(String::new, |(is, was)| format!("  x{:.2}", is / was));
            text += &format!("  {:<10} {head:<28} {was:>22} -> {cell:<22}{times}\n", line[0]);
        }
    }
    text
}

/// Returns the number at the beginning of a cell.
fn number(cell: &str) -> Option<f64> {
    cell.split([' ', '(']).next()?.replace(',', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TEXT: &str = "\
before\n<!-- figures one\nrun: onramp lab x --qdisc 'fq limit 7' --n {n}\nrows: threads of rows\n\
column threads = threads\ncolumn Mpps = rows[design=a,manners=b].rate /1e6 .1 spread\n\
column p99 = rows[design=a,manners=b].accept.p99\n-->\n| threads | Mpps | p99 |\n|---|---|---|\n\
| 1 | 2.0 (1.0-3.0) | 7 |\n<!-- end of figures -->\nafter\n";

    fn results() -> Value {
        let row = |threads: u32, manners: &str, rate: f64| {
            json!({
                "design": "a", "manners": manners, "threads": threads, "rate": rate,
                "rate_min": rate / 2.0, "rate_max": rate * 2.0, "accept": {"p99": threads * 10},
            })
        };
        json!({"rows": [row(1, "c", 9e6), row(1, "b", 1e6), row(2, "b", 3e6)]})
    }

    /// Returns what is wrong with the claims of a page. Each claim stands below a comment with the
    /// name of a table, of a row, and the number of a column (the name of the row is column 0). Its
    /// only bold figure is the cell there, and its command is of the kind that made the table.
    fn wrong_claims(page: &str) -> Vec<String> {
        let tables = tables(page).expect("tables");
        let mut wrong = Vec::new();
        for claim in page.split("<!-- claim ").skip(1) {
            let (place, text) = claim.split_once(" -->").expect("the comment ends");
            let text = text.split("\n   ```\n").next().expect("a claim");
            let words: Vec<&str> = place.split(' ').collect();
            let table = tables.iter().find(|table| table.name == words[0]).expect(place);
            let rows = table.old.lines().map(|row| row.trim_matches('|').split('|'));
            let mut rows = rows.map(|row| row.map(str::trim).collect::<Vec<_>>());
            let row = rows.find(|row| row[0] == words[1]).expect(place);
            let cell = row[words[2].parse::<usize>().expect(place)];
            let figure = |text: &&str| text.starts_with(|first: char| first.is_ascii_digit());
            let bold = text.split("**").skip(1).step_by(2).filter(figure);
            let bold: Vec<&str> = bold.map(|figure| figure.trim_end_matches(" µs")).collect();
            if bold != [cell] {
                wrong.push(format!("{place}: {bold:?} instead of {cell}"));
            }
            let kind = |line: &str| line.trim().split(" --").next().map(str::to_owned);
            let command = text.lines().find(|line| line.starts_with("   onramp "));
            if command.and_then(kind) != kind(table.command) {
                wrong.push(format!("{place}: {command:?} instead of {}", table.command));
            }
        }
        wrong
    }

    #[test]
    fn every_claim_quotes_its_table() {
        let page = fs::read_to_string(root().join("docs/performance.md")).expect("a page");
        assert_eq!(wrong_claims(&page), [""; 0], "renew the claims as well");
        let claims = page.split("## ").find(|part| part.starts_with("Five claims"));
        assert_eq!(claims.expect("claims").matches("<!-- claim ").count(), 5);
        // The check fires: another cell of the same table, no bold figure, another command.
        for (old, new) in [
            ("**2.44 (2.20-3.59)**", "**4.12 (4.05-4.63)**"),
            ("**0.13 µs**", "**0.09 µs**"),
            ("**0.91 (0.81-0.95)**", "0.99 (0.98-1.00)"),
            ("   onramp lab control", "   onramp nonsense"),
        ] {
            assert!(page.contains(old), "{old}");
            assert_eq!(wrong_claims(&page.replacen(old, new, 1)).len(), 1, "{old}");
        }
    }

    #[test]
    fn a_table_is_read_measured_and_written() {
        let tables = tables(TEXT).expect("one table");
        let table = &tables[0];
        assert_eq!((tables.len(), table.name), (1, "one"));
        assert!(TEXT[table.at..].starts_with(table.old), "{}", table.at);
        assert_eq!(words(table.command)[4..], ["fq limit 7", "--n", "{n}"]);
        let json = results();
        let lines = distinct(&json, "rows", "threads").expect("two");
        let lines: Vec<_> = lines
            .iter()
            .map(|line| cells(table, &json, "threads", line).expect("all are there"))
            .collect();
        assert_eq!(lines[0], ["1", "1.0 (0.5-2.0)", "10"]);
        assert_eq!(lines[1], ["2", "3.0 (1.5-6.0)", "20"]);
        let new = render(table, &lines);
        assert_eq!(new.lines().count(), 4);
        assert!(
            new.starts_with("| threads | Mpps | p99 |\n|---|---|---|\n| 1 | 1.0 (0.5"),
            "{new}"
        );
        let shown = beside(table.old, &lines);
        assert!(shown.contains("2.0 (1.0-3.0) -> 1.0 (0.5-2.0)") && shown.contains("x0.50"));
        assert!(shown.contains("- -> 20"), "a line that is new: {shown}");
    }

    #[test]
    fn what_is_wrong_with_a_table_is_said() {
        for (from, to, why) in [
            ("run:", "ran:", "unknown line in the comment of a table: ran:"),
            ("<!-- end of", "<!-- end", "no end of figures"),
            (" spread", " widely", "unknown line in the comment of a table: column Mpps"),
            ("rows: threads of rows\n", "", "neither rows: nor for"),
        ] {
            let error = tables(&TEXT.replacen(from, to, 1)).expect_err(why);
            assert!(error.contains(why), "{error}");
        }
        let text = TEXT.replacen("accept.p99", "accept.p9", 1);
        let table = &tables(&text).expect("it reads")[0];
        let mut json = results();
        json["rows"][1]["accept"] = Value::Null;
        assert_eq!(cells(table, &json, "threads", "1").expect("it is null")[2], "-");
        let error = cells(table, &results(), "threads", "1").expect_err("there is no p9");
        assert!(error.contains("no rows[design=a,manners=b].accept.p9 for 1"), "{error}");
    }

    #[test]
    fn the_tables_of_the_documents_are_understood() {
        let read = |document: &&str| {
            let text = fs::read_to_string(root().join(document)).expect("a document");
            tables(&text).expect("tables").len()
        };
        assert!(DOCUMENTS.iter().map(read).sum::<usize>() > 0);
    }
}
