//! Reads the files of a case.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use onramp_core::Setup;

use super::{Arrival, Case, CaseError, Change, Event, Outcome, Reason, START_NS, tc};

/// The files of a case: their names and texts, and where they are, for people.
pub(super) struct Files {
    place: String,
    texts: BTreeMap<String, String>,
}

impl Files {
    const NAMES: [&str; 6] =
        ["tc.txt", "opts", "flows.csv", "changes.csv", "workload.csv", "kernel.csv"];
    /// What begins a file in a text that has them all.
    const HEAD: &str = "== ";

    /// Those of a folder. What is missing is told by whoever needs it.
    pub(super) fn of_folder(folder: &Path) -> Self {
        let read =
            |name: &str| Some((name.to_owned(), fs::read_to_string(folder.join(name)).ok()?));
        let texts = Self::NAMES.iter().filter_map(|name| read(name)).collect();
        Self { place: format!("{}/", folder.display()), texts }
    }

    /// Those in one text, where each begins with a line `== NAME`; what stands before the first is
    /// a remark.
    pub(super) fn of_text(place: &str, text: &str) -> Self {
        let mut texts = BTreeMap::<String, String>::new();
        let mut name = None;
        for line in text.lines() {
            if let Some(next) = line.strip_prefix(Self::HEAD) {
                name = Some(next.trim().to_owned());
            } else if let Some(name) = &name {
                *texts.entry(name.clone()).or_default() += &format!("{line}\n");
            }
        }
        Self { place: format!("{place}:"), texts }
    }

    fn at(&self, name: &str) -> String {
        format!("{}{name}", self.place)
    }

    fn text(&self, name: &str) -> Result<&str, CaseError> {
        self.texts.get(name).map(String::as_str).ok_or_else(|| CaseError::Broken {
            at: self.at(name),
            why: "there is no such file, or it cannot be read".into(),
        })
    }

    fn table(&self, name: &str) -> Result<Table<'_>, CaseError> {
        Ok(Table { path: self.at(name), text: self.text(name)? })
    }
}

pub(super) fn case(name: &str, files: &Files) -> Result<Case, CaseError> {
    let opts = files.text("opts").unwrap_or_default();
    let option = |key: &str| {
        let line = opts.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix('='));
        line.and_then(|rest| rest.split_whitespace().next()).unwrap_or("0")
    };
    let link = option("LINK");
    let link_bps = link.parse().map_err(|_| CaseError::Broken {
        at: files.at("opts"),
        why: format!("LINK={link}: expected bits per second"),
    })?;
    let setup = setup(files.text("tc.txt")?)?;
    Ok(Case {
        name: name.to_owned(),
        changes: changes(files, setup.clone())?,
        setup,
        link_bps,
        bypass: option("NOBYPASS") != "1",
        arrivals: workload(files)?,
        recorded: recorded(&files.table("kernel.csv")?)?,
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

fn workload(files: &Files) -> Result<Vec<Arrival>, CaseError> {
    let mut rates = BTreeMap::new();
    for line in files.text("flows.csv").unwrap_or_default().lines() {
        let parts = line.split_once(',');
        if let Some((Ok(flow), Ok(rate))) =
            parts.map(|(flow, rate)| (flow.parse::<u64>(), rate.trim().parse::<u64>()))
        {
            rates.insert(flow, rate);
        }
    }
    files.table("workload.csv")?.rows(|row| {
        let flow = row.number("flow_id")?;
        // -1 = none.
        let txtime = row.field("txtime_ns").ok().and_then(|text| text.parse::<u64>().ok());
        Ok(Arrival {
            time_ns: START_NS + row.number::<u64>("time_ns")?,
            flow,
            len: row.number("size_bytes")?,
            priority: row.number("priority")?,
            ecn: row.number("ecn")?,
            txtime_ns: txtime.map_or(0, |ns| START_NS + ns),
            pacing_rate: rates.get(&flow).copied().unwrap_or(0),
        })
    })
}

/// The lines under way, each of which has to be one for the tree as it is by then.
fn changes(files: &Files, mut setup: Setup) -> Result<Vec<Change>, CaseError> {
    if files.text("changes.csv").is_err() {
        return Ok(Vec::new());
    }
    files.table("changes.csv")?.rows(|row| {
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
            "GENERIC" | "NOT_SPECIFIED" | "TC_RECLASSIFY_LOOP" => Some(Reason::Unsaid),
            "OVERLIMIT" | "MAXFLOWS" => Some(Reason::Overlimit),
            "CONGESTED" => Some(Reason::Congested),
            "L4S_STEP_NON_ECN" => Some(Reason::StepNonEcn),
            "FLOOD_PROTECTION" => Some(Reason::FloodProtection),
            "BAND_LIMIT" => Some(Reason::BandLimit),
            "FLOW_LIMIT" => Some(Reason::FlowLimit),
            "HORIZON_LIMIT" => Some(Reason::HorizonLimit),
            other => return Err(row.wrong(format!("{other}: no drop reason we know"))),
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

    fn field(&self, name: &str) -> Result<&str, CaseError> {
        let column = self.names.iter().position(|other| *other == name);
        let field = column.and_then(|column| self.fields.get(column));
        field.copied().ok_or_else(|| self.wrong(format!("there is no {name}")))
    }

    /// The last column, in which there may be commas.
    fn rest(&self, name: &str) -> Result<String, CaseError> {
        self.field(name)?;
        let column = self.names.iter().position(|other| *other == name).unwrap_or(0);
        Ok(self.fields[column..].join(","))
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
