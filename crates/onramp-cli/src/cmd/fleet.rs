//! The commands `onramp fleet`: limits that many hosts have in common.

pub(crate) mod limit;
pub(crate) mod show;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use onramp_core::Rate;
use onramp_redis::Engine;

use super::rate_with_unit;
use crate::error::usage;

/// How long a command waits for each answer. The engine may be far away.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where the engine is.
#[derive(Debug, clap::Args)]
pub(crate) struct EngineArgs {
    /// The fleet's engine, a Redis server: redis://USER:PASSWORD@HOST:PORT, rediss:// for TLS, or
    /// unix:///PATH; @FILE reads the URL from a file [default: $ONRAMP_FLEET]
    #[arg(long, value_name = "URL")]
    engine: Option<String>,
    /// The certificate (PEM) of the authority that signed the engine's certificate [default: those
    /// that the machine trusts]
    #[arg(long, value_name = "FILE")]
    authority: Option<PathBuf>,
}

impl EngineArgs {
    /// Returns the engine. Whether it answers is not found out here.
    fn engine(&self) -> Result<Engine> {
        let url = self.engine.clone().or_else(|| std::env::var("ONRAMP_FLEET").ok());
        let url = url.filter(|url| !url.is_empty()).ok_or_else(|| {
            usage("which engine? Give --engine redis://HOST:PORT, or set ONRAMP_FLEET")
        })?;
        let engine = engine("--engine", &url, "--authority", self.authority.as_deref())?;
        Ok(engine.with_patience(PATIENCE))
    }
}

/// Returns the engine at `url`, which may be `@FILE`.
pub(crate) fn engine(
    option: &str,
    url: &str,
    authority_option: &str,
    authority: Option<&std::path::Path>,
) -> Result<Engine> {
    let url = match url.strip_prefix('@') {
        None => url.to_owned(),
        Some(file) => {
            let text = fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
            text.trim().to_owned()
        }
    };
    let read = |path: &std::path::Path| {
        fs::read(path)
            .with_context(|| format!("{authority_option}: cannot read {}", path.display()))
    };
    let pem = authority.map(read).transpose()?;
    Engine::new(&url, pem.as_deref()).map_err(|error| usage(format!("{option}: {error}")))
}

/// Says that a limit does not exist.
fn no_limit(name: &str) -> String {
    format!("there is no limit {name:?}; `onramp fleet limit list` lists them")
}

/// Runs a future to its end.
fn wait<T>(future: impl Future<Output = T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| anyhow!("cannot wait for the engine: {error}"))?;
    Ok(runtime.block_on(future))
}

/// Reads a rate with its unit, in bytes per second; zero needs no unit.
fn rate(option: &str, word: &str) -> Result<u64> {
    if word == "0" {
        return Ok(0);
    }
    rate_with_unit(option, word).map(Rate::as_bytes_per_second)
}

/// Writes a rate for people: three digits and a unit.
fn shown(bytes_per_second: u64) -> String {
    let bits = bytes_per_second as f64 * 8.0;
    let units = [(1e12, "Tbit"), (1e9, "Gbit"), (1e6, "Mbit"), (1e3, "kbit")];
    match units.iter().find(|(size, _)| bits >= *size) {
        None => format!("{bits:.0} bit"),
        Some((size, unit)) => format!("{} {unit}", three_digits(bits / size)),
    }
}

/// Writes a number of bytes for people: three digits and a unit.
fn shown_bytes(bytes: u32) -> String {
    let bytes = f64::from(bytes);
    let units = [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    match units.iter().find(|(size, _)| bytes >= *size) {
        None => format!("{bytes:.0} B"),
        Some((size, unit)) => format!("{} {unit}", three_digits(bytes / size)),
    }
}

/// Writes a number of at least 1 with three digits, or with all digits before the point.
fn three_digits(number: f64) -> String {
    let digits = if number < 9.995 { 2 } else { usize::from(number < 99.95) };
    format!("{number:.digits$}")
}

/// Returns a table with its columns in line: the first to the left, the others to the right.
fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let head: Vec<String> = head.iter().map(|&name| name.to_owned()).collect();
    let all = || std::iter::once(&head).chain(rows);
    let width = |at: usize| all().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(at, (cell, width))| match at {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    all().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_three_digits() {
        let cases = [
            (0, "0 bit"),
            (124, "992 bit"),
            (125, "1.00 kbit"),
            (1_249_000, "9.99 Mbit"),
            (1_249_500, "10.0 Mbit"),
            (12_493_700, "99.9 Mbit"),
            (12_500_000, "100 Mbit"),
            (125_000_000_000, "1.00 Tbit"),
        ];
        for (rate, text) in cases {
            assert_eq!(shown(rate), text, "{rate}");
        }
        for (bytes, text) in [(1, "1 B"), (15_360, "15.4 kB"), (u32::MAX, "4.29 GB")] {
            assert_eq!(shown_bytes(bytes), text);
        }
    }

    #[test]
    fn a_rate_has_a_unit() {
        assert_eq!(rate("--floor", "8mbit").expect("a rate"), 1_000_000);
        assert_eq!(rate("--floor", "0").expect("a rate"), 0);
        for wrong in ["8", "", "fast"] {
            assert!(rate("--floor", wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn columns_are_in_line() {
        let rows = [vec!["a".to_owned(), "10".to_owned()], vec!["long".to_owned(), "5".to_owned()]];
        assert_eq!(table(&["HOST", "N"], &rows), "HOST   N\na     10\nlong   5\n");
    }
}
