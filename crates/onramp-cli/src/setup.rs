//! Files that describe a tree of qdiscs in lines of `tc`: the option `--setup`.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use anyhow::{Result, anyhow};
use onramp::Spec;
use onramp_core::{Setup, filter};
use onramp_wire::series;

use crate::error::usage;

/// Largest size, in bytes, of a file with the lines of `tc` that make a tree, or with the program
/// of a `bpf` filter. A tree with the largest possible number of classes needs a tenth of this
/// size.
const TEXT_MAX: u64 = 64 << 20;

/// Reads the file at `path`. Returns the tree that it describes, and its lines without comments.
pub(crate) fn read(path: &Path) -> Result<(Setup, Vec<String>)> {
    let (file, text) = (path.display(), text(path)?);
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

/// Reads the file at `path`, whose lines are about the devices with these names. Returns the tree
/// of each, or `None` where the file has no line about a device.
pub(crate) fn read_each(path: &Path, devices: &[&str]) -> Result<Vec<Option<Setup>>> {
    let (file, text) = (path.display(), text(path)?);
    let mut setups = vec![None; devices.len()];
    for (number, line) in (1..).zip(text.lines()) {
        let plain = line.split('#').next().unwrap_or_default();
        let mut words = plain.split_whitespace();
        if words.clone().next().is_none() {
            continue;
        }
        let device = words.find(|word| *word == "dev").and_then(|_| words.next());
        let Some(at) = devices.iter().position(|name| Some(*name) == device) else {
            return Err(anyhow!(
                "{file}: line {number}: it is about {}; name {} behind `dev`",
                device.unwrap_or("no device"),
                devices.join(" or "),
            ));
        };
        let setup = setups[at].get_or_insert_with(Setup::default);
        apply(setup, line).map_err(|error| anyhow!("{file}: line {number}: {error}"))?;
    }
    let none = setups.iter().all(Option::is_none);
    if none || setups.iter().flatten().any(|setup| setup.root_id().is_none()) {
        return Err(rootless(path));
    }
    Ok(setups)
}

fn text(path: &Path) -> Result<String> {
    if path == Path::new("-") {
        return Err(anyhow!(
            "cannot read -: a tree is not read from standard input by that name; name a file with \
             lines of tc, or /dev/stdin"
        ));
    }
    let text = bytes(path).and_then(|bytes| {
        String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8 text"))
    });
    let file = path.display();
    text.map_err(|error| anyhow!("cannot read {file}: {error}; name a file with lines of tc"))
}

/// Returns an error that says that the tree of the file at `path` has no root.
pub(crate) fn rootless(path: &Path) -> anyhow::Error {
    anyhow!(
        "{}: the tree has no root: add a line such as `qdisc add dev eth0 root fq`",
        path.display()
    )
}

/// Returns the tree whose stages are these qdiscs, one behind the other. Each stands with the
/// option that named it, which errors name.
pub(crate) fn stages(stages: &[(&str, &str)]) -> Result<Setup> {
    for (qdisc, option) in stages {
        Spec::with_units(qdisc).map_err(|error| usage(format!("{option}: {error}")))?;
    }
    let qdiscs: Vec<_> = stages.iter().map(|(qdisc, _)| *qdisc).collect();
    series(&qdiscs).map_err(|error| usage(format!("{}: {}", stages[error.index].1, error.error)))
}

/// Executes one line of `tc`. Such a line may name a file that contains a program for a filter.
/// Refuses filters for packets that come in: packets only leave through the tree of a file.
pub(crate) fn apply(setup: &mut Setup, line: &str) -> Result<()> {
    let line = filter::with_files(line, |file| bytes(Path::new(file)))?;
    Ok(setup.apply_leaving(&line)?)
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
