//! The project's own rules for its files, which no compiler checks. Each rule is a function of a
//! file's path and text.

use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::layers::{self, LAYERS, Wrong};
use crate::lex::{self, Line, has_word};
use crate::{Failure, Outcome, shell};

const COLUMNS: usize = 100;
const LINES_SOFT: usize = 500;
const LINES_HARD: usize = 800;

/// Files and folders whose code may contain `unsafe`.
const UNSAFE: &[&str] = &[
    "crates/onramp-capi/src/ffi.rs",
    "crates/onramp-capi/src/ffi/",
    "crates/onramp-queue/src/",
    "crates/onramp-dev/src/sys/",
    "crates/onramp-preload/src/entry/",
    "crates/onramp-preload/src/sys/",
    "crates/onramp-differential/src/reach.rs",
    "crates/onramp-machine/src/fiber.rs",
    "crates/onramp-lab/src/cell.rs",
    "crates/onramp-lab/src/cell/",
];

/// The folder whose files declare the kinds of qdiscs.
const QDISCS: &str = "crates/onramp-core/src/qdisc/";

const ORDERINGS: &[&str] = &["Acquire", "Release", "AcqRel", "SeqCst", "Relaxed"];

/// The reason for an atomic ordering must stand in a comment at most this many lines above it.
const REASON_LINES: usize = 4;

/// Words that mark unfinished work. Each string is split, so that this file passes its own check.
const UNFINISHED: &[&str] = &[concat!("FIX", "ME"), concat!("TO", "DO"), concat!("XX", "X")];

/// Words that show that code comes from elsewhere, under a licence that is not ours.
const FOREIGN: &[&str] =
    &[concat!("GPL", "-2.0"), concat!("GNU General ", "Public"), concat!("MODULE_", "LICENSE")];

/// Paths that exist only on the machine of one person.
const PRIVATE: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/Use", "rs/")];

/// A place at which a file breaks a rule.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    line: usize,
    rule: &'static str,
    what: String,
}

impl Finding {
    fn new(line: usize, rule: &'static str, what: impl Into<String>) -> Self {
        Self { line, rule, what: what.into() }
    }

    /// Whether breaking the rule is only a warning, which does not make the check fail.
    fn warns(&self) -> bool {
        self.rule == "long-file-soon"
    }
}

/// Checks every file of the repository.
pub(crate) fn run() -> Outcome {
    let root = shell::root();
    let mut paths = Vec::new();
    walk(&root, &mut paths);
    paths.sort();
    let (mut failed, mut warned) = (0, 0);
    for path in &paths {
        let Ok(text) = fs::read_to_string(path) else { continue };
        let name = path.strip_prefix(&root).expect("found below the root");
        for finding in check(name, &text, &|target| root.join(target).exists()) {
            let Finding { line, rule, what } = &finding;
            let level = if finding.warns() { "warning" } else { "error" };
            eprintln!("{}:{line}: {level}: {what} [{rule}]", name.display());
            if finding.warns() {
                warned += 1;
            } else {
                failed += 1;
            }
        }
    }
    let files: Vec<PathBuf> =
        paths.iter().filter_map(|path| path.strip_prefix(&root).ok()).map(Path::to_owned).collect();
    for wrong in modules(&root, &files) {
        eprintln!("{}:{}: error: {} [modules]", wrong.file.display(), wrong.line, wrong.what);
        failed += 1;
    }
    eprintln!("tidy: {} files, {failed} errors, {warned} warnings", paths.len());
    if failed == 0 { Ok(()) } else { Err(Failure::Failed(format!("tidy: {failed} errors"))) }
}

/// Checks how the modules of each crate use each other. Returns the cycles, and the imports from
/// higher layers.
fn modules(root: &Path, files: &[PathBuf]) -> Vec<Wrong> {
    let crates = fs::read_dir(root.join("crates")).into_iter().flatten().flatten();
    let crates = crates.map(|entry| Path::new("crates").join(entry.file_name()));
    let mut crates: Vec<PathBuf> = crates.chain([PathBuf::from("xtask")]).collect();
    crates.sort();
    let read = |file: &Path| fs::read_to_string(root.join(file)).ok();
    layers::check_all(&crates, LAYERS, files, &read)
}

/// Collects the text files of the project, without cargo's output and git's own files.
fn walk(dir: &Path, paths: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if name != "target" && name != ".git" {
                walk(&path, paths);
            }
        } else if is_text(&path) && !path.is_symlink() {
            paths.push(path);
        }
    }
}

fn is_text(path: &Path) -> bool {
    let known = ["rs", "md", "toml", "sh", "yml", "yaml"];
    path.extension().and_then(|ext| ext.to_str()).is_some_and(|ext| known.contains(&ext))
        || path.ends_with(".ci/run")
}

/// Applies all rules to one file. `exists` says whether a path relative to the root of the
/// repository exists.
fn check(path: &Path, text: &str, exists: &dyn Fn(&Path) -> bool) -> Vec<Finding> {
    let name = path.to_string_lossy().replace('\\', "/");
    let mut found = Vec::new();
    words(text, &mut found);
    if name.ends_with(".md") {
        prose_columns(text, &mut found);
        joined_tables(text, &mut found);
        links(path, text, exists, &mut found);
    }
    if name.ends_with(".rs") {
        columns(text, &mut found);
        length(text, &mut found);
        let lines = lex::lines(text);
        unsafe_code(&name, &lines, &mut found);
        ignored_tests(&lines, &mut found);
        if name.starts_with("crates/") && name.contains("/src/") {
            orderings(&lines, &mut found);
        }
        if name.starts_with(QDISCS) {
            qdisc_header(text, &lines, &mut found);
        }
    }
    found
}

fn columns(text: &str, found: &mut Vec<Finding>) {
    for (at, line) in numbered(text) {
        let columns = line.chars().count();
        if columns > COLUMNS {
            found.push(Finding::new(at, "columns", format!("{columns} columns of {COLUMNS}")));
        }
    }
}

/// Checks that lines of prose are not too long. Tables, the comments that say how tables are made,
/// lines with links, and code blocks may be longer.
fn prose_columns(text: &str, found: &mut Vec<Finding>) {
    let mut fenced = false;
    for (at, line) in numbered(text) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if line.starts_with(crate::figures::BEGIN) || line == "-->" {
            fenced = line != "-->";
        }
        let linked = line.contains("](") || line.contains("://");
        let columns = line.chars().count();
        if columns > COLUMNS && !fenced && !linked && !line.trim_start().starts_with('|') {
            found.push(Finding::new(at, "columns", format!("{columns} columns of {COLUMNS}")));
        }
    }
}

/// Checks that no table has lost the line breaks between its rows: then it is shown as text. The
/// line below the heading has only hyphens in its cells, and begins with them.
fn joined_tables(text: &str, found: &mut Vec<Finding>) {
    let mut fenced = false;
    for (at, line) in numbered(text) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if !fenced && line.match_indices('|').any(|(place, _)| begins_below(&line[place..])) {
            let what = "the rows of a table stand on one line: give each row a line of its own";
            found.push(Finding::new(at, "table", what));
        }
    }
}

/// Whether a row ends here, and the line below the heading of a table begins.
fn begins_below(rest: &str) -> bool {
    let cell = rest.strip_prefix("| |").and_then(|next| next.split('|').next());
    let cell = cell.unwrap_or_default().trim();
    cell.len() >= 3 && cell.chars().all(|sign| matches!(sign, '-' | ':'))
}

fn length(text: &str, found: &mut Vec<Finding>) {
    let lines = text.lines().count();
    if lines > LINES_HARD {
        let what = format!("{lines} lines of at most {LINES_HARD}: split the file");
        found.push(Finding::new(lines, "long-file", what));
    } else if lines > LINES_SOFT {
        let what = format!("{lines} lines; aim at no more than {LINES_SOFT}");
        found.push(Finding::new(lines, "long-file-soon", what));
    }
}

fn words(text: &str, found: &mut Vec<Finding>) {
    for (at, line) in numbered(text) {
        for word in UNFINISHED.iter().filter(|word| has_word(line, word)) {
            found.push(Finding::new(
                at,
                "unfinished",
                format!("{word}: finish the work, or file an issue"),
            ));
        }
        for mark in FOREIGN.iter().filter(|mark| line.contains(**mark)) {
            found.push(Finding::new(at, "licence", format!("`{mark}` is text of another licence")));
        }
        for path in PRIVATE.iter().filter(|path| line.contains(**path)) {
            found.push(Finding::new(
                at,
                "private-path",
                format!("`{path}` is a private path; name a path that every reader has"),
            ));
        }
    }
}

fn unsafe_code(name: &str, lines: &[Line], found: &mut Vec<Finding>) {
    if UNSAFE.iter().any(|place| name.starts_with(place)) {
        return;
    }
    for (at, _) in coded(lines, |line| line.has_word("unsafe")) {
        let what = format!("`unsafe` is allowed only in {}", UNSAFE.join(" and "));
        found.push(Finding::new(at, "unsafe-path", what));
    }
}

fn ignored_tests(lines: &[Line], found: &mut Vec<Finding>) {
    for (at, _) in coded(lines, |line| line.code.contains("#[ignore")) {
        let what = "an ignored test: run it, or print SKIP when something is missing";
        found.push(Finding::new(at, "ignored-test", what));
    }
}

/// Checks that each atomic ordering has a comment that names it, on its line or a few lines above.
fn orderings(lines: &[Line], found: &mut Vec<Finding>) {
    let tests = lines.iter().position(|line| line.code.contains("#[cfg(test)]"));
    let product = &lines[..tests.unwrap_or(lines.len())];
    let mut import = false;
    for (index, line) in product.iter().enumerate() {
        let code = line.code.trim_start();
        import |= code.starts_with("use ") || code.starts_with("pub(crate) use ");
        let named = ORDERINGS.iter().find(|order| line.has_word(order));
        if let Some(order) = named.filter(|_| !import) {
            let above = &product[index.saturating_sub(REASON_LINES)..=index];
            let reasoned = |line: &Line| ORDERINGS.iter().any(|o| has_word(&line.comment, o));
            if !above.iter().any(reasoned) {
                let what = format!("{order} needs a comment that says why, and with what it pairs");
                found.push(Finding::new(index + 1, "ordering", what));
            }
        }
        import &= !code.contains(';');
    }
}

fn qdisc_header(text: &str, lines: &[Line], found: &mut Vec<Finding>) {
    if !lines.iter().any(|line| line.code.contains("const KIND")) {
        return;
    }
    let header: Vec<&str> = text.lines().take_while(|line| line.starts_with("//!")).collect();
    for part in ["Source:", "Invariant:"] {
        if !header.iter().any(|line| line.contains(part)) {
            let what = format!("the header of a qdisc needs a line `{part}`");
            found.push(Finding::new(1, "qdisc-header", what));
        }
    }
}

/// Checks that relative links lead to files of this repository.
fn links(path: &Path, text: &str, exists: &dyn Fn(&Path) -> bool, found: &mut Vec<Finding>) {
    let mut fenced = false;
    for (at, line) in numbered(text) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split(['#', ' ']).next().unwrap_or("");
            if fenced || file.is_empty() || file.contains(':') {
                continue;
            }
            let whole = path.parent().unwrap_or_else(|| Path::new("")).join(file);
            if !normal(&whole).is_some_and(|whole| exists(&whole)) {
                found.push(Finding::new(
                    at,
                    "link",
                    format!("the link leads to `{file}`, which does not exist"),
                ));
            }
        }
    }
}

/// Resolves each `..` in a path. Returns `None` if the path leads out of the repository.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => out.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                if !out.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(out)
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

fn coded(lines: &[Line], is: impl Fn(&Line) -> bool) -> impl Iterator<Item = (usize, &Line)> {
    lines.iter().enumerate().filter(move |(_, line)| is(line)).map(|(at, line)| (at + 1, line))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies all rules to a file. Returns the names of the rules that it breaks, with the line
    /// numbers.
    fn fires(path: &str, text: &str) -> Vec<(usize, &'static str)> {
        let exists = |path: &Path| path == Path::new("docs/json.md");
        let found = check(Path::new(path), text, &exists);
        found.into_iter().map(|finding| (finding.line, finding.rule)).collect()
    }

    #[test]
    fn this_repository_is_tidy() {
        run().expect("each error is printed above");
    }

    #[test]
    fn columns_in_source_and_prose() {
        let long = "a ".repeat(51);
        assert_eq!(fires("xtask/src/a.rs", &format!("x\n// {long}")), [(2, "columns")]);
        assert_eq!(fires("xtask/src/a.rs", &"ä".repeat(100)), []);
        assert_eq!(fires("README.md", &long), [(1, "columns")]);
        assert_eq!(fires("README.md", &format!("| {long} |")), []);
        assert_eq!(fires("README.md", &format!("<https://example.org> {long}")), []);
        assert_eq!(fires("README.md", &format!("```\n{long}\n```\n{long}")), [(4, "columns")]);
    }

    #[test]
    fn tables_on_one_line() {
        for joined in ["| a | b | |---|---| | c | d |", "x | | --- | --- |"] {
            assert_eq!(fires("README.md", &format!("x\n{joined}")), [(2, "table")], "{joined}");
            assert_eq!(fires("README.md", &format!("```\n{joined}\n```\n")), []);
        }
        for table in ["| a | b |\n|---|---|\n| c | d |", "| | |\n| --- | --- |\n| | --- x |"] {
            assert_eq!(fires("README.md", table), [], "{table}");
        }
    }

    #[test]
    fn length_of_a_file() {
        let lines = |count: usize| "x\n".repeat(count);
        assert_eq!(fires("xtask/src/a.rs", &lines(500)), []);
        assert_eq!(fires("xtask/src/a.rs", &lines(501)), [(501, "long-file-soon")]);
        assert_eq!(fires("xtask/src/a.rs", &lines(801)), [(801, "long-file")]);
        assert!(Finding::new(1, "long-file-soon", "").warns());
        assert!(!Finding::new(1, "long-file", "").warns());
    }

    #[test]
    fn unsafe_only_where_listed() {
        let text = "fn a() {\n    unsafe { b() }\n}";
        assert_eq!(fires("crates/onramp-core/src/a.rs", text), [(2, "unsafe-path")]);
        assert_eq!(fires("crates/onramp-dev/src/udp.rs", text), [(2, "unsafe-path")]);
        assert_eq!(fires("crates/onramp-queue/tests/a.rs", text), [(2, "unsafe-path")]);
        assert_eq!(fires("crates/onramp-lab/src/lock.rs", text), [(2, "unsafe-path")]);
        assert_eq!(fires("crates/onramp-lab/src/cell.rs", text), []);
        assert_eq!(fires("crates/onramp-dev/src/sys/a.rs", text), []);
        assert_eq!(fires("crates/onramp-queue/src/a.rs", text), []);
        let harmless = "#![forbid(unsafe_code)]\n// unsafe\nlet a = \"unsafe\";";
        assert_eq!(fires("crates/onramp-core/src/a.rs", harmless), []);
    }

    #[test]
    fn orderings_have_a_reason() {
        let file = "crates/onramp/src/a.rs";
        assert_eq!(fires(file, "a.load(Acquire);"), [(1, "ordering")]);
        assert_eq!(fires(file, "a.load(Ordering::SeqCst);"), [(1, "ordering")]);
        assert_eq!(fires(file, "// Acquire: pairs with b.\na.load(Acquire);"), []);
        assert_eq!(fires(file, "a.load(Relaxed); // Relaxed: a hint."), []);
        // A comment does not count as a reason if it is too far away, or if it does not name the
        // ordering.
        let far = "// Acquire: b.\n\n\n\n\na.load(Acquire);";
        assert_eq!(fires(file, far), [(6, "ordering")]);
        assert_eq!(fires(file, "// Loads it.\na.load(Acquire);"), [(2, "ordering")]);
        // Imports of orderings need no reason, whether they take one line or several. The code
        // after them does.
        assert_eq!(fires(file, "use b::Ordering::Acquire;"), []);
        let two = "use b::{\n    Acquire,\n};\na.load(Acquire);";
        assert_eq!(fires(file, two), [(4, "ordering")]);
        // Orderings in tests need no reasons.
        assert_eq!(fires(file, "#[cfg(test)]\nmod tests {\na.load(Acquire);\n}"), []);
        assert_eq!(fires("crates/onramp/tests/a.rs", "a.load(Acquire);"), []);
    }

    #[test]
    fn a_qdisc_cites_its_source_and_states_its_invariant() {
        let file = "crates/onramp-core/src/qdisc/red.rs";
        let kind = "pub(super) const KIND: Kind = Kind {};";
        let whole = format!("//! RED.\n//!\n//! Source: x.\n//! Invariant: y.\n\n{kind}");
        assert_eq!(fires(file, &whole), []);
        let none = format!("//! RED.\n\n// Source: x. Invariant: y.\n{kind}");
        assert_eq!(fires(file, &none), [(1, "qdisc-header"), (1, "qdisc-header")]);
        let half = format!("//! RED.\n//! Source: x.\n\n{kind}");
        assert_eq!(fires(file, &half), [(1, "qdisc-header")]);
        assert_eq!(fires(file, "//! A part of one.\n"), []);
    }

    #[test]
    fn links_lead_to_files() {
        assert_eq!(fires("README.md", "[a](docs/json.md) [b](docs/json.md#udp)"), []);
        assert_eq!(fires("docs/a.md", "[a](json.md) [b](../docs/json.md) [c](#here)"), []);
        assert_eq!(fires("README.md", "[a](https://example.org/x) [b](mailto:a@b)"), []);
        assert_eq!(fires("README.md", "x\n[a](docs/gone.md)"), [(2, "link")]);
        assert_eq!(fires("docs/a.md", "[a](docs/json.md)"), [(1, "link")]);
        assert_eq!(fires("README.md", "[a](../docs/json.md)"), [(1, "link")]);
        assert_eq!(fires("README.md", "[a](/docs/json.md)"), [(1, "link")]);
    }

    #[test]
    fn unfinished_work() {
        for word in UNFINISHED {
            assert_eq!(fires("xtask/src/a.rs", &format!("a\n// {word}: b")), [(2, "unfinished")]);
            assert_eq!(fires("README.md", word), [(1, "unfinished")]);
            assert_eq!(fires("README.md", &format!("A{word}")), []);
        }
    }

    #[test]
    fn ignored_tests_do_not_hide() {
        assert_eq!(fires("a/tests/b.rs", "#[test]\n#[ignore]\n"), [(2, "ignored-test")]);
        assert_eq!(fires("a/tests/b.rs", "#[ignore = \"slow\"]"), [(1, "ignored-test")]);
        assert_eq!(fires("a/tests/b.rs", "// #[ignore]"), []);
    }

    #[test]
    fn foreign_licences() {
        for mark in FOREIGN {
            assert_eq!(fires("crates/a/src/b.rs", &format!("// {mark}")), [(1, "licence")]);
        }
    }

    #[test]
    fn private_paths() {
        for path in PRIVATE {
            assert_eq!(fires("Cargo.toml", &format!("a = \"{path}b\"")), [(1, "private-path")]);
        }
    }
}
