//! The command `onramp man`: writes the manual pages.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::reference::man::pages;

/// Write the manual pages
///
/// The pages are made from the tables of words that tc and ip understand.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: onramp man . && man ./onramp-tc.8")]
pub(crate) struct Args {
    /// The folder for the pages; it is made if it does not exist
    folder: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let folder = &args.folder;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for (name, page) in pages()? {
        let path = folder.join(name);
        fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}
