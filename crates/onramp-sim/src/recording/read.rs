//! Reads the files of a case.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use onramp_core::Setup;

use super::{Arrival, Case, CaseError, Event, Outcome, Reason, START_NS};

pub(super) fn case(folder: &Path) -> Result<Case, CaseError> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let opts = text(&folder.join("opts")).unwrap_or_default();
    let option = |key: &str| {
        let line = opts.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix('='));
        line.and_then(|rest| rest.split_whitespace().next()).unwrap_or("0")
    };
    let link = option("LINK");
    let link_bps = link.parse().map_err(|_| CaseError::Broken {
        at: folder.join("opts").display().to_string(),
        why: format!("LINK={link}: expected bits per second"),
    })?;
    Ok(Case {
        name,
        setup: setup(&folder.join("tc.txt"))?,
        link_bps,
        bypass: option("NOBYPASS") != "1",
        arrivals: workload(folder)?,
        recorded: recorded(&folder.join("kernel.csv"))?,
    })
}

fn setup(path: &Path) -> Result<Setup, CaseError> {
    let mut setup = Setup::default();
    for line in text(path)?.lines() {
        setup.apply(line).map_err(|error| CaseError::Unsupported {
            line: line.to_owned(),
            error: Box::new(error),
        })?;
    }
    Ok(setup)
}

fn workload(folder: &Path) -> Result<Vec<Arrival>, CaseError> {
    let mut rates = BTreeMap::new();
    for line in text(&folder.join("flows.csv")).unwrap_or_default().lines() {
        let parts = line.split_once(',');
        if let Some((Ok(flow), Ok(rate))) =
            parts.map(|(flow, rate)| (flow.parse::<u64>(), rate.trim().parse::<u64>()))
        {
            rates.insert(flow, rate);
        }
    }
    Table::read(&folder.join("workload.csv"))?.rows(|row| {
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

fn recorded(path: &Path) -> Result<Outcome, CaseError> {
    let events = Table::read(path)?.rows(|row| {
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

fn text(path: &Path) -> Result<String, CaseError> {
    fs::read_to_string(path).map_err(|error| CaseError::Broken {
        at: path.display().to_string(),
        why: error.to_string(),
    })
}

/// A CSV file whose first line names the columns.
struct Table {
    path: String,
    text: String,
}

struct Row<'a> {
    at: String,
    names: &'a [&'a str],
    fields: Vec<&'a str>,
}

impl Table {
    fn read(path: &Path) -> Result<Self, CaseError> {
        Ok(Self { path: path.display().to_string(), text: text(path)? })
    }

    fn rows<T>(&self, row: impl Fn(&Row<'_>) -> Result<T, CaseError>) -> Result<Vec<T>, CaseError> {
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

    fn number<T: FromStr + TryFrom<u64>>(&self, name: &str) -> Result<T, CaseError> {
        let word = self.field(name)?;
        let number = match word.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok().and_then(|n| T::try_from(n).ok()),
            None => word.parse().ok(),
        };
        number.ok_or_else(|| self.wrong(format!("{name} is {word}: expected a whole number")))
    }
}
