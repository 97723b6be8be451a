//! `include/onramp.h` is what cbindgen makes of the Rust code. `ONRAMP_WRITE_DOCS=1` renews it.

use std::path::Path;
use std::{env, fs};

use cbindgen::{Builder, Config};

/// The files with what the header declares, in its order.
const SOURCES: &[&str] =
    &["abi", "ffi/device", "ffi", "ffi/tree", "ffi/frame", "ffi/link", "ffi/sender"];

#[test]
fn the_header_is_that_of_the_code() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = Config::from_file(folder.join("cbindgen.toml")).expect("cbindgen.toml is right");
    let mut builder = Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(folder.join(format!("src/{source}.rs")));
    }
    let mut bytes = Vec::new();
    builder.generate().expect("the code has a header").write(&mut bytes);
    let made = compact(&String::from_utf8(bytes).expect("a header is text"));
    let file = folder.join("include/onramp.h");
    if env::var_os("ONRAMP_WRITE_DOCS").is_some() {
        fs::write(&file, &made).expect("the header can be written");
    }
    let there = fs::read_to_string(&file).unwrap_or_default();
    let line = there.lines().zip(made.lines()).position(|(there, made)| there != made);
    assert!(
        there == made,
        "include/onramp.h is out of date from line {:?} on: run this test with ONRAMP_WRITE_DOCS=1",
        line.map(|line| line + 1)
    );
}

/// Gives the comments that cbindgen has made the form of the comment at the top: a comment begins
/// and ends on the lines of its text.
fn compact(header: &str) -> String {
    let mut out = String::new();
    let mut lines = header.lines();
    while let Some(line) = lines.next() {
        let indent = &line[..line.len() - line.trim_start().len()];
        if line.trim() != "/*" {
            out.extend([line, "\n"]);
            continue;
        }
        let text: Vec<_> = lines.by_ref().map(str::trim).take_while(|line| *line != "*/").collect();
        for (number, line) in text.iter().enumerate() {
            let begin = if number == 0 { "/*" } else { " *" };
            let end = if number + 1 == text.len() { " */" } else { "" };
            let line = format!("{indent}{begin} {line}");
            out.extend([line.trim_end(), end, "\n"]);
        }
    }
    out
}
