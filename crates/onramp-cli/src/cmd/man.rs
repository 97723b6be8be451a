//! The command `onramp man`: writes the manual pages.

use std::path::PathBuf;

use anyhow::Result;

use crate::output::{self, Folder};
use crate::reference::man::pages;

/// Write the manual pages
///
/// The pages are made from the tables of words that tc and ip understand.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  onramp man . && man ./onramp-tc.8")]
pub(crate) struct Args {
    /// The folder for the pages; it is made if it does not exist
    folder: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let folder = Folder::new(&args.folder)?;
    let mut written = String::new();
    for (name, page) in pages()? {
        folder.write(&name, &page)?;
        written.push_str(&format!("{}\n", args.folder.join(name).display()));
    }
    output::print(&written)
}
