//! Reads the packets of a source from rows of text (comma-separated values).

use std::fmt;

use onramp_core::Instant;
use onramp_queue::Packet;

use crate::time::BEGIN;

/// An error in one row of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowError {
    /// The number of the line, counted from 1.
    pub line: usize,
    /// The name of the column that is wrong.
    pub column: &'static str,
    /// What is wrong in the column, and which values are valid.
    pub why: String,
}

impl fmt::Display for RowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}: {}", self.line, self.column, self.why)
    }
}

impl std::error::Error for RowError {}

/// Reads packets from comma-separated values with a header line. The columns are `time_ns`
/// (nanoseconds since [`BEGIN`]), `flow_id` and `size_bytes`; the columns `priority`, `ecn` and
/// `txtime_ns` (the departure time; -1 means none) may be missing. Give the packets to
/// [`Records`](super::Records). With `map_while`, as in the example below, the packets end before
/// the first invalid row.
///
/// ```
/// use onramp_sim::source::{Records, rows};
/// let packets = rows("time_ns,flow_id,size_bytes\n0,1,1514\n1000,2,60\n")?;
/// let source = Records::new(packets.map_while(Result::ok));
/// # drop(source);
/// # Ok::<(), onramp_sim::source::RowError>(())
/// ```
///
/// # Errors
///
/// [`RowError`]: a required column is missing.
pub fn rows(
    text: &str,
) -> Result<impl Iterator<Item = Result<(Instant, Packet), RowError>>, RowError> {
    let head: Vec<&str> =
        text.lines().next().unwrap_or_default().split(',').map(str::trim).collect();
    let place = |column| head.iter().position(|name| *name == column);
    let must = |column| {
        let why = || format!("the column is missing; there are {}", head.join(", "));
        place(column).ok_or_else(|| RowError { line: 1, column, why: why() })
    };
    let (time, flow, size) = (must("time_ns")?, must("flow_id")?, must("size_bytes")?);
    let (priority, ecn, txtime) = (place("priority"), place("ecn"), place("txtime_ns"));
    let lines = text.lines().enumerate().skip(1).filter(|(_, line)| !line.trim().is_empty());
    Ok(lines.map(move |(index, line)| {
        let row = Row { line: index + 1, fields: line.split(',').map(str::trim).collect() };
        let mut pkt = Packet::new(row.number(size, "size_bytes", "1 to 4294967295 bytes")?);
        pkt.flow = row.number(flow, "flow_id", "a whole number")?;
        if let Some(priority) = priority {
            pkt.priority = row.number(priority, "priority", "0 to 4294967295")?;
        }
        if let Some(ecn) = ecn {
            pkt.ecn = row.number(ecn, "ecn", "0 to 3")?;
            row.check(pkt.ecn <= 3, ecn, "ecn", "0 to 3")?;
        }
        row.check(pkt.len > 0, size, "size_bytes", "1 to 4294967295 bytes")?;
        if let Some(txtime) = txtime.filter(|at| row.fields.get(*at) != Some(&"-1")) {
            let since: u64 = row.number(txtime, "txtime_ns", "nanoseconds, or -1")?;
            pkt.txtime_ns = BEGIN.after(since).0;
        }
        let since = row.number(time, "time_ns", "nanoseconds since the beginning")?;
        Ok((BEGIN.after(since), pkt))
    }))
}

struct Row<'t> {
    line: usize,
    fields: Vec<&'t str>,
}

impl Row<'_> {
    /// Reads a whole number. It is decimal or, with the prefix `0x`, hexadecimal.
    fn number<N: TryFrom<u64>>(
        &self,
        at: usize,
        column: &'static str,
        range: &str,
    ) -> Result<N, RowError> {
        let field = self.fields.get(at).copied().unwrap_or_default();
        let number = match field.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => field.parse(),
        };
        let number = number.ok().and_then(|number| N::try_from(number).ok());
        number.ok_or_else(|| self.wrong(field, column, range))
    }

    fn check(
        &self,
        ok: bool,
        at: usize,
        column: &'static str,
        range: &str,
    ) -> Result<(), RowError> {
        let field = self.fields.get(at).copied().unwrap_or_default();
        if ok { Ok(()) } else { Err(self.wrong(field, column, range)) }
    }

    fn wrong(&self, field: &str, column: &'static str, range: &str) -> RowError {
        RowError { line: self.line, column, why: format!("{field:?}: expected {range}") }
    }
}
