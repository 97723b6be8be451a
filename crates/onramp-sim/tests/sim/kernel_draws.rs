//! Small random cases in which qdiscs draw random numbers. Onramp's run with one seed must be the
//! same as its recorded run, and its runs with several seeds must have figures like those of five
//! runs of Linux 7.2.
//!
//! The recorded outcome of each case (the parts `left`, `died` and `stats.txt`) is one of Onramp
//! itself. It was accepted because `cargo xtask differential` found Onramp's behaviour within the
//! kernel's distribution. If you change which random numbers are drawn, or when, check the
//! behaviour again and record the outcome anew with `cargo xtask differential --renew
//! crates/onramp-sim/tests/kernel_draws`, which refuses a case in which Onramp's behaviour differs
//! from the kernel's.

use std::fs;
use std::path::{Path, PathBuf};

use onramp_sim::recording::Case;

/// The seeds of Onramp's runs whose mean is compared with the mean of the kernel's runs.
const SEEDS: std::ops::Range<u64> = 1..9;

macro_rules! kinds {
    ($($kind:ident)*) => {
        const KINDS: &[&str] = &[$(stringify!($kind)),*];
        $(
            #[test]
            fn $kind() {
                as_recorded(stringify!($kind));
            }
        )*
    };
}

kinds! { cake choke dualpi2 fq_pie netem pie red sfq }

fn files() -> Vec<(String, PathBuf)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernel_draws");
    let entries = fs::read_dir(folder).expect("a folder of cases");
    let kind = |path: PathBuf| {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        (stem.rsplit_once('-').expect("a kind and a number").0.to_owned(), path)
    };
    let mut files: Vec<_> = entries.map(|entry| kind(entry.expect("an entry").path())).collect();
    files.sort();
    files
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn case(text: &str) -> Case {
    Case::parse("case", text).expect("a case")
}

fn as_recorded(kind: &str) {
    let mut seen = 0;
    for (_, path) in files().into_iter().filter(|(of, _)| of == kind) {
        let case = case(&read(&path));
        let told = case.exact(1);
        let path = path.display();
        assert!(
            told.is_empty(),
            "{path}: {told:#?}; if that is meant: cargo xtask differential --renew \
             crates/onramp-sim/tests/kernel_draws"
        );
        let unlike = case.unlike(SEEDS);
        assert!(unlike.is_empty(), "{path}: unlike the kernel: {unlike:#?}");
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

/// The comparison must find differences. The test multiplies one of the kernel's figures by 1.5 and
/// adds 40,000, more than the tolerance: the comparison must report that figure, whichever it is.
/// It must also report a packet that leaves a nanosecond later than recorded.
#[test]
fn what_differs_is_told() {
    let (_, path) = files().into_iter().find(|(kind, _)| kind == "red").expect("a case");
    let text = read(&path);
    let (head, figures) = text.split_once("== figures\n").expect("figures");
    let mut told = 0;
    for line in figures.lines() {
        let (name, values) = line.rsplit_once(':').expect(line);
        let values: Vec<f64> =
            values.split_whitespace().map(|it| it.parse().expect(line)).collect();
        let more: String =
            values.iter().map(|value| format!(" {}", value * 1.5 + 40_000.0)).collect();
        let wrong = format!("{head}== figures\n{name}:{more}\n");
        assert_eq!(case(&wrong).unlike(SEEDS).len(), 1, "{line}");
        told += 1;
    }
    assert!(told > 10, "{told} figures");
    let none = format!("{head}== figures\nmade up: 1 2 3\n");
    assert_eq!(case(&none).unlike(SEEDS), ["made up: ours has none"]);
    let (before, left) = text.split_once("\n== left\n").expect("a part");
    let (first, rest) = left.split_once('\n').expect("a line");
    let digits = first.bytes().take_while(u8::is_ascii_digit).count();
    let later: u64 = first[..digits].parse::<u64>().expect("a time") + 1;
    let wrong = format!("{before}\n== left\n{later}{}\n{rest}", &first[digits..]);
    assert!(!case(&wrong).exact(1).is_empty());
}
