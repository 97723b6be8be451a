//! Compares Onramp with what Linux 7.2 did in small random cases: which packets were sent and
//! dropped at which nanosecond, and what `tc -s -d` showed at the end. Onramp must do the same.
//!
//! `cargo xtask differential --keep DIR` chose these cases; `docs/conformance.md` says how.

use std::fs;
use std::path::{Path, PathBuf};

use onramp_sim::recording::{Case, compact};

/// Makes one test for each kind of qdisc. A test that fails names its kind, and the tests run in
/// parallel.
macro_rules! kinds {
    ($($kind:ident)*) => {
        const KINDS: &[&str] = &[$(stringify!($kind)),*];
        $(
            #[test]
            fn $kind() {
                as_the_kernel(stringify!($kind));
            }
        )*
    };
}

kinds! {
    bfifo blackhole cake cbs choke codel drr dualpi2 etf ets fq fq_codel fq_pie hfsc htb netem pfifo
    pfifo_fast pfifo_head_drop pie plug prio qfq red sfq skbprio tbf
}

/// Returns the files of all cases, each with the kind of its root qdisc.
fn files() -> Vec<(String, PathBuf)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernel_cases");
    let entries = fs::read_dir(folder).expect("a folder of cases");
    let mut files: Vec<_> =
        entries.map(|entry| entry.expect("an entry").path()).map(named).collect();
    files.sort();
    files
}

/// Takes the kind from the name of a case's file, `KIND-NUMBER.txt`, and returns it with the path.
fn named(path: PathBuf) -> (String, PathBuf) {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let (kind, _) = stem.rsplit_once('-').expect("a kind and a number");
    (kind.to_owned(), path)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Reads a case, and returns the differences between the kernel's run and Onramp's run.
fn told(path: &Path, text: &str) -> Vec<String> {
    let name = path.display().to_string();
    Case::parse(&name, text).unwrap_or_else(|error| panic!("{error}")).exact(1)
}

fn as_the_kernel(kind: &str) {
    let mut seen = 0;
    for (_, path) in files().into_iter().filter(|(of, _)| of == kind) {
        let told = told(&path, &read(&path));
        assert!(told.is_empty(), "{}: {told:#?}", path.display());
        seen += 1;
    }
    assert!(seen > 0, "{kind}: no case");
}

#[test]
fn every_case_is_replayed() {
    for (kind, path) in files() {
        assert!(KINDS.contains(&&*kind), "{}: no test replays it", path.display());
    }
}

/// Returns the text of a case with `htb` at the root, in which packets are dropped, and in which
/// the output of `tc` also contains a drop count of zero.
fn sample() -> String {
    let all = files().into_iter().filter(|(kind, _)| kind == "htb").map(|(_, path)| read(&path));
    let fits = |text: &String| {
        let part = |name| text.split_once(name).map_or("", |(_, rest)| rest);
        part("\n== died\n").starts_with(|c: char| c.is_ascii_digit())
            && text.contains("(dropped 0,")
    };
    all.into_iter().find(fits).expect("a case with drops")
}

/// Returns the text in which the first number after `mark` is greater by one.
fn one_more(text: &str, mark: &str) -> String {
    let (before, rest) = text.split_once(mark).expect(mark);
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let number: u64 = rest[..digits].parse().expect("a number");
    format!("{before}{mark}{}{}", number + 1, &rest[digits..])
}

/// The comparison of the two runs must find differences: if the test increases one number of a
/// case, or removes one line or one packet, the comparison must report at least one difference.
#[test]
fn what_differs_is_told() {
    let (path, text) = (Path::new("sample"), sample());
    assert_eq!(told(path, &text), [""; 0]);
    for mark in [
        "\n== left\n",
        "\n== died\n",
        " Sent ",
        " bytes ",
        "(dropped ",
        "overlimits ",
        "requeues ",
        " lended: ",
    ] {
        let wrong = one_more(&text, mark);
        assert!(!told(path, &wrong).is_empty(), "{mark}");
    }
    let line = |begin: &str| text.lines().find(|line| line.starts_with(begin)).expect(begin);
    for begin in [" Sent ", " backlog ", " lended: ", "qdisc ", "class "] {
        let less = text.replacen(&format!("{}\n", line(begin)), "", 1);
        assert!(!told(path, &less).is_empty(), "without {begin}");
    }
    let (before, left) = text.split_once("\n== left\n").expect("a part");
    let (gone, rest) = left.split_once('\n').expect("a line");
    let less = format!("{before}\n== left\n{rest}");
    assert!(!told(path, &less).is_empty(), "without `{gone}`");
    // If a case does not contain the output of `tc`, only the packets are compared, and their
    // differences are still found.
    let packets = text.split_once("== stats.txt").expect("a part").0;
    assert!(told(path, packets).is_empty());
    assert!(!told(path, &one_more(packets, "\n== left\n")).is_empty());
}

/// The file of each case must contain the case in its compact form, exactly as `compact` writes it.
#[test]
fn cases_are_compact() {
    for (_, path) in files() {
        let text = read(&path);
        let again = compact("again", &text).expect("a case");
        assert!(again == text, "{} is not as `compact` writes it", path.display());
    }
}

#[test]
fn broken_cases_say_where() {
    let text = sample();
    for (wrong, at) in [
        (text.replacen("\n== packets\n", "\n== packets\n1 2 3 4 5 6\n", 1), "packets:1"),
        (text.replacen("\n== packets\n", "\n== packets\n7\n", 1), "packets:1"),
        (text.replacen("\n== left\n", "\n== left\nsoon\n", 1), "left:1"),
        (text.replacen("\n== left\n", "\n== left\n0 1 OVERLIMIT\n", 1), "left:1"),
        (text.replacen("\n== left\n", "\n== left\n0 999999\n", 1), "left:1"),
        (text.replacen("\n== died\n", "\n== died\n0 1 RUST\n", 1), "died:1"),
        (text.replacen("\n== died\n", "\n== dead\n", 1), "died"),
    ] {
        let error = Case::parse("case", &wrong).expect_err(at).to_string();
        assert!(error.starts_with(&format!("case:{at}: ")), "{error}");
    }
}
