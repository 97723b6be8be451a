//! The command `onramp lab report`: makes reports of experiments that ran earlier.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};

use super::common::{Looks, Pages};
use crate::error::usage;
use crate::report::lab::Document;

/// Make an HTML page and charts of experiments that ran earlier
///
/// Reads one or several files that experiments wrote with --json, possibly on different machines,
/// and puts them on one page. The page of a single file equals the page that --html would have
/// written with it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp lab report contention.json --html report.html
  onramp lab report before.json after.json loopback.json --html report.html --charts charts")]
pub(crate) struct Args {
    /// Files that onramp lab wrote with --json
    #[arg(required = true, value_name = "FILE.json")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    pages: Pages,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let looks = Looks::new(&args.pages, None)?;
    if looks.is_empty() {
        return Err(usage("there is no output: give --html FILE, --charts DIR or both"));
    }
    let documents = args.files.iter().map(|file| read(file)).collect::<Result<Vec<_>>>()?;
    if let Some(file) = args.files.iter().find(|file| looks.is_page(file)) {
        let file = file.display();
        return Err(usage(format!("--html names {file}, which is an input; name another file")));
    }
    looks.write(&documents)
}

fn read(file: &Path) -> Result<Document> {
    let shown = file.display();
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {shown}"))?;
    Document::read(&text).map_err(|why| anyhow!("cannot use {shown}: {why}"))
}
