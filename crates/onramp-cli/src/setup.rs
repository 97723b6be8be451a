//! Files that describe a tree of qdiscs in lines of `tc`: the option `--setup`.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use anyhow::{Result, anyhow};
use onramp_core::{ConfigError, Setup, filter};

/// Largest size, in bytes, of a file with the lines of `tc` that make a tree, or with the program
/// of a `bpf` filter. A tree with the largest possible number of classes needs a tenth of this
/// size.
const TEXT_MAX: u64 = 64 << 20;

/// Reads the file at `path`. Returns the tree that it describes, and its lines without comments.
pub(crate) fn read(path: &Path) -> Result<(Setup, Vec<String>)> {
    let file = path.display();
    let text = bytes(path).and_then(|bytes| {
        String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8 text"))
    });
    let text =
        text.map_err(|error| anyhow!("cannot read {file}: {error}; name a file with lines of tc"))?;
    let (mut setup, mut lines) = (Setup::default(), Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        apply(&mut setup, line).map_err(|error| anyhow!("{file}: line {number}: {error}"))?;
        let line = line.split('#').next().unwrap_or_default().trim();
        if !line.is_empty() {
            lines.push(line.to_owned());
        }
    }
    Ok((setup, lines))
}

/// Returns an error that says that the tree of the file at `path` has no root.
pub(crate) fn rootless(path: &Path) -> anyhow::Error {
    anyhow!(
        "{}: the tree has no root: add a line such as `qdisc add dev eth0 root fq`",
        path.display()
    )
}

/// Executes one line of `tc`. Such a line may name a file that contains a program for a filter.
pub(crate) fn apply(setup: &mut Setup, line: &str) -> Result<(), ConfigError> {
    setup.apply(&filter::with_files(line, |file| bytes(Path::new(file)))?)
}

/// Reads a file. It fails if the file is larger than `TEXT_MAX`, because a file such as `/dev/zero`
/// has no end.
fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(TEXT_MAX + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 {
        ..=TEXT_MAX => Ok(bytes),
        _ => Err(io::Error::other(format!("it has more than {} MiB", TEXT_MAX >> 20))),
    }
}
