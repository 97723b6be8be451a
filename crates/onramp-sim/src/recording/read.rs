//! Reads the files of a case: a recorded run of Linux, with the tree of qdiscs, the packets that
//! came, and what the kernel did with each packet.

use std::collections::BTreeMap;
use std::str::FromStr;

use onramp_core::Setup;

use super::files::Files;
use super::{
    Arrival, Case, CaseError, Change, Event, Figures, Outcome, Reason, START_NS, listing, short, tc,
};

/// Number of seconds that the recorder (the program that made the recording) waits, after it has
/// sent the last packet, for packets to leave the tree, if the file `opts` of the case does not set
/// another number.
const PATIENCE_S: u64 = 600;

pub(super) fn case(name: &str, files: &Files) -> Result<Case, CaseError> {
    let opts = files.text("opts").unwrap_or_default();
    let option = |key: &str| {
        let line = opts.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix('='));
        line.and_then(|rest| rest.split_whitespace().next()).unwrap_or("0")
    };
    let number = |key: &str, unit: &str| {
        let value = option(key);
        value.parse::<u64>().map_err(|_| CaseError::Broken {
            at: files.at("opts"),
            why: format!("{key}={value}: expected {unit}"),
        })
    };
    let link_bps = number("LINK", "bits per second")?;
    let patience_s = match number("MAXWAIT", "seconds")? {
        0 => PATIENCE_S,
        seconds => seconds,
    };
    let setup = setup(files.text("tc.txt")?)?;
    let changes = changes(files, setup.clone())?;
    let mut arrivals = match files.text(short::PACKETS) {
        Ok(_) => short::arrivals(files)?,
        Err(_) => workload(files)?,
    };
    pace(files, &mut arrivals);
    let recorded = match files.text(short::LEFT) {
        Ok(_) => short::outcome(files, &arrivals)?,
        Err(_) => recorded(&table(files, "kernel.csv")?)?,
    };
    let patience_ns = patience_s.saturating_mul(1_000_000_000);
    let end_ns = arrivals.last().map_or(START_NS, |last| last.time_ns).saturating_add(patience_ns);
    let gave_up = recorded.end().is_some_and(|last| START_NS + last >= end_ns);
    Ok(Case {
        name: name.to_owned(),
        changes,
        setup,
        link_bps,
        patience_ns,
        bypass: option("NOBYPASS") != "1",
        ticks: option("TICKS") == "1",
        arrivals,
        recorded: recorded.before(end_ns),
        gave_up,
        shown: files.text("stats.txt").ok().map(listing::recounted),
        figures: Figures::read(files)?,
    })
}

fn setup(text: &str) -> Result<Setup, CaseError> {
    let mut setup = Setup::default();
    for line in text.lines() {
        setup.apply(&tc::handed_over(line)).map_err(|error| CaseError::Unsupported {
            line: line.to_owned(),
            error: Box::new(error),
        })?;
    }
    Ok(setup)
}

/// Gives each packet the pacing rate of its flow, if the file `flows.csv` has a rate for the flow.
fn pace(files: &Files, arrivals: &mut [Arrival]) {
    let mut rates = BTreeMap::new();
    for line in files.text("flows.csv").unwrap_or_default().lines() {
        let parts = line.split_once(',');
        if let Some((Ok(flow), Ok(rate))) =
            parts.map(|(flow, rate)| (flow.parse::<u64>(), rate.trim().parse::<u64>()))
        {
            rates.insert(flow, rate);
        }
    }
    for arrival in arrivals {
        arrival.pacing_rate = rates.get(&arrival.flow).copied().unwrap_or(0);
    }
}

fn workload(files: &Files) -> Result<Vec<Arrival>, CaseError> {
    table(files, "workload.csv")?.rows(|row| {
        // A time of -1 means that the packet has no departure time of its own.
        let txtime = row.field("txtime_ns").ok().and_then(|text| text.parse::<u64>().ok());
        Ok(Arrival {
            time_ns: START_NS + row.number::<u64>("time_ns")?,
            flow: row.number("flow_id")?,
            len: row.number("size_bytes")?,
            priority: row.number("priority")?,
            ecn: row.number("ecn")?,
            txtime_ns: txtime.map_or(0, |ns| START_NS + ns),
            pacing_rate: 0,
        })
    })
}

/// Reads from `changes.csv` the `tc` commands that were run while packets came. Returns an error if
/// a command is not valid for the tree that the commands before it have made.
fn changes(files: &Files, mut setup: Setup) -> Result<Vec<Change>, CaseError> {
    if files.text("changes.csv").is_err() {
        return Ok(Vec::new());
    }
    table(files, "changes.csv")?.rows(|row| {
        let (from_ns, to_ns) = (row.number::<u64>("from_ns")?, row.number::<u64>("to_ns")?);
        if from_ns > to_ns {
            return Err(row.wrong(format!("from {from_ns} to {to_ns}: it ends before it begins")));
        }
        let line = tc::handed_over(&row.rest("line")?);
        setup.apply(&line).map_err(|error| CaseError::Unsupported {
            line: line.clone(),
            error: Box::new(error),
        })?;
        Ok(Change { from_ns: START_NS + from_ns, to_ns: START_NS + to_ns, line })
    })
}

fn recorded(table: &Table<'_>) -> Result<Outcome, CaseError> {
    let events = table.rows(|row| {
        let reason = match row.field("reason")? {
            "" => None,
            word => Some(
                Reason::read(word)
                    .ok_or_else(|| row.wrong(format!("{word}: unknown drop reason")))?,
            ),
        };
        let left = match row.field("event")? {
            "deq" => true,
            "drop" => false,
            other => return Err(row.wrong(format!("{other}: expected deq or drop"))),
        };
        let event = Event {
            time_ns: START_NS + row.number::<u64>("time_ns")?,
            packet: row.number("idx")?,
            ecn: row.number("ecn")?,
            reason,
        };
        Ok((left, event))
    })?;
    let mut outcome = Outcome::default();
    for (left, event) in events {
        (if left { &mut outcome.dequeues } else { &mut outcome.drops }).push(event);
    }
    outcome.drops.sort();
    Ok(outcome)
}

/// Returns the file `name` of the case, a CSV file, as a table.
fn table<'t>(files: &'t Files, name: &str) -> Result<Table<'t>, CaseError> {
    Ok(Table { path: files.at(name), text: files.text(name)? })
}

/// A CSV file whose first line names the columns.
struct Table<'t> {
    path: String,
    text: &'t str,
}

struct Row<'a> {
    at: String,
    names: &'a [&'a str],
    fields: Vec<&'a str>,
}

impl Table<'_> {
    fn rows<T>(
        &self,
        mut row: impl FnMut(&Row<'_>) -> Result<T, CaseError>,
    ) -> Result<Vec<T>, CaseError> {
        let mut lines = self.text.lines().enumerate();
        let names: Vec<_> = lines.next().map_or("", |(_, line)| line).split(',').collect();
        let read = |(index, line): (usize, &str)| {
            let at = format!("{}:{}", self.path, index + 1);
            row(&Row { at, names: &names, fields: line.split(',').collect() })
        };
        lines.map(read).collect()
    }
}

impl Row<'_> {
    fn wrong(&self, why: String) -> CaseError {
        CaseError::Broken { at: self.at.clone(), why }
    }

    /// Returns the fields from the column `name` to the end of the row.
    fn from(&self, name: &str) -> Result<&[&str], CaseError> {
        let column = self.names.iter().position(|other| *other == name);
        let fields = column.and_then(|column| self.fields.get(column..));
        fields.ok_or_else(|| self.wrong(format!("there is no {name}")))
    }

    fn field(&self, name: &str) -> Result<&str, CaseError> {
        let first = self.from(name)?.first();
        first.copied().ok_or_else(|| self.wrong(format!("there is no {name}")))
    }

    /// Returns the last column, which may contain commas.
    fn rest(&self, name: &str) -> Result<String, CaseError> {
        self.field(name)?;
        Ok(self.from(name)?.join(","))
    }

    fn number<T: FromStr + TryFrom<u64>>(&self, name: &str) -> Result<T, CaseError> {
        let word = self.field(name)?;
        let number = match word.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok().and_then(|n| T::try_from(n).ok()),
            None => word.parse().ok(),
        };
        number.ok_or_else(|| self.wrong(format!("{name} is {word}: expected a whole number")))
    }
}
