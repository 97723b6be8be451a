//! Tests the mutants of each operator on a small source, the places that get no mutants, and a weak
//! test that does not find a mutant.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::build::{Mutants, Place, build};
use super::find::find;
use super::judge::{Bounds, Fate, judge};
use super::plan::{Mutant, Plan, area};
use super::record::record;
use super::render::{Numbered, render};
use super::report::{Report, Tally};
use super::{EQUIVALENT, equivalent, libraries, read_list};

/// Returns the mutants of `fn f() -> T { CODE }`, each described as `replaced X by Y`, without the
/// place.
fn changes(code: &str) -> Vec<String> {
    let source = format!("fn f() -> T {{ {code} }}");
    of(&source).into_iter().map(|(what, _)| what).collect()
}

/// Returns the mutants of a source, each with its description and the new text.
fn of(source: &str) -> Vec<(String, String)> {
    let sites = find(source).expect("it is Rust").sites;
    let changes = sites.into_iter().flat_map(|site| site.changes);
    let words = |what: &str| what.split(" in `").next().unwrap_or("").to_owned();
    changes.map(|change| (words(&change.what), change.text)).collect()
}

/// Returns the source rewritten with all its mutants, in which white space is reduced to single
/// spaces.
fn rewritten(source: &str) -> String {
    let found = find(source).expect("it is Rust");
    let mut base = 0;
    let number = |site: super::find::Site| {
        let viable = vec![true; site.changes.len()];
        let numbered = Numbered { site, base, viable };
        base = numbered.ids().end;
        numbered
    };
    let sites: Vec<Numbered> = found.sites.into_iter().map(number).collect();
    let text = render(source, &sites, &found.functions).text;
    syn::parse_file(&text).expect("it is Rust again");
    text.replace("::mutant_switch::at", "at").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn operators_of_comparison_have_a_boundary_and_a_negation() {
    assert_eq!(changes("a < b"), ["replaced < by <=", "replaced < by >="]);
    assert_eq!(changes("a <= b"), ["replaced <= by <", "replaced <= by >"]);
    assert_eq!(changes("a > b"), ["replaced > by >=", "replaced > by <="]);
    assert_eq!(changes("a >= b"), ["replaced >= by >", "replaced >= by <"]);
    assert_eq!(changes("a == b"), ["replaced == by !="]);
    assert_eq!(changes("a != b"), ["replaced != by =="]);
}

#[test]
fn operators_of_logic_and_arithmetic() {
    let pairs = [
        ("&&", "||"),
        ("+", "-"),
        ("*", "/"),
        ("<<", ">>"),
        ("&", "|"),
        ("+=", "-="),
        ("*=", "/="),
        ("<<=", ">>="),
        ("&=", "|="),
    ];
    for (one, other) in pairs {
        for (old, new) in [(one, other), (other, one)] {
            let first = changes(&format!("a {old} b")).swap_remove(0);
            assert_eq!(first, format!("replaced {old} by {new}"));
        }
    }
    assert_eq!(changes("a % b"), ["replaced % by /"]);
    assert_eq!(changes("a ^ b"), ["replaced ^ by |"]);
    assert_eq!(changes("!a"), ["deleted !"]);
    assert_eq!(changes("-a"), ["deleted -"]);
    assert_eq!(changes("*a"), [""; 0], "a dereference is no arithmetic");
}

#[test]
fn a_new_operator_binds_as_the_old_one_did() {
    let text = |code: &str| of(&format!("fn f() -> T {{ {code} }}")).swap_remove(0).1;
    assert_eq!(text("a ^ b | c"), "(a ^ b) & (c)");
    assert_eq!(text("x as u64 >> y"), "(x as u64) << (y)");
    assert_eq!(text("self.a[0] += b + c"), "self.a[0] -= b + c");
}

#[test]
fn literals_constants_and_methods() {
    assert_eq!(changes("0"), ["replaced 0 by 1"]);
    assert_eq!(changes("1_u8"), ["replaced 1_u8 by 0u8"]);
    assert_eq!(changes("0xff"), ["replaced 0xff by 256"]);
    assert_eq!(changes("0.0"), ["replaced 0.0 by 1.0"]);
    assert_eq!(changes("1.5f32"), ["replaced 1.5f32 by 3.0f32"]);
    assert_eq!(changes("true"), ["replaced true by false"]);
    assert_eq!(changes("\"text\""), [""; 0]);
    assert_eq!(changes("TICK_NS"), ["doubled TICK_NS"]);
    assert_eq!(of("fn f() -> T { TICK_NS }")[0].1, "(TICK_NS + TICK_NS)");
    assert_eq!(changes("u64::MAX"), [""; 0], "twice the most only overflows");
    assert_eq!(changes("KIND(a)"), [""; 0], "a call of it is no number");
    assert_eq!(changes("a.min(b)"), ["replaced min by max"]);
    assert_eq!(changes("a.saturating_sub(b)"), ["replaced saturating_sub by saturating_add"]);
    assert_eq!(changes("a.min()"), [""; 0], "that is the least of an iterator");
}

#[test]
fn statements_and_conditions() {
    assert_eq!(changes("g(a);"), ["deleted `g(a);`"]);
    assert_eq!(changes("a.g()?;"), ["deleted `a.g()?;`"]);
    assert_eq!(changes("a = b;"), ["deleted the assignment"]);
    assert_eq!(changes("a += b;"), ["replaced += by -=", "deleted the assignment"]);
    assert_eq!(changes("let a; a = b;"), [""; 0], "without it nothing is assigned");
    assert_eq!(changes("if a.g() { b } else { c }"), ["negated"]);
    assert_eq!(changes("while a { b }"), ["negated"]);
    assert_eq!(changes("matches!(a, B | C)"), ["negated"]);
    assert_eq!(changes("if let A = b && c {}"), [""; 0], "a pattern stands nowhere else");
    assert_eq!(changes("if let A = b && c != d {}"), ["replaced != by =="]);
}

#[test]
fn fields_get_their_defaults() {
    assert_eq!(
        changes("A { b: c.d, e: f(g), h: i.j() }"),
        ["defaulted b", "defaulted e", "defaulted h"]
    );
    assert_eq!(changes("A { b, c: d, e: Vec::new() }"), [""; 0], "that is the default");
}

#[test]
fn arms_of_a_match() {
    let guard = ["replaced the guard by true", "replaced the guard by false"];
    assert_eq!(changes("match a { b if g => c, _ => d }"), guard);
    assert_eq!(changes("match a { B => c, C => d }"), [""; 0], "no arm takes what is left");
    let deleted = ["deleted the match arm `B | C`"];
    assert_eq!(changes("match a { B | C => d, _ => e }"), deleted);
}

#[test]
fn bodies_return_at_once() {
    let body = |output: &str| {
        let source = format!("fn f() {output} {{ g }}");
        of(&source).into_iter().map(|(_, text)| text).collect::<Vec<_>>()
    };
    assert_eq!(body(""), ["return"]);
    assert_eq!(body("-> bool"), ["return true", "return false"]);
    assert_eq!(body("-> u64"), ["return 0", "return 1"]);
    assert_eq!(body("-> f64"), ["return 0.0", "return 1.0"]);
    assert_eq!(body("-> Option<u8>"), ["return None"]);
    assert_eq!(body("-> Result<(), E>"), ["return Ok(())"]);
    assert_eq!(body("-> Result<bool>"), ["return Ok(true)", "return Ok(false)"]);
    assert_eq!(body("-> String"), ["return String::new()"]);
    assert_eq!(body("-> Vec<u8>"), ["return Vec::new()"]);
    assert_eq!(body("-> &'static str"), ["return \"\""]);
    assert_eq!(body("-> Duration"), [""; 0]);
    assert_eq!(of("fn f() -> bool { true }")[0].1, "return false", "the other is as it was");
    assert_eq!(of("fn f() {}"), [], "it is empty already");
    assert_eq!(of("fn f() { g(); }").len(), 1, "without its one call it is empty");
}

#[test]
fn what_runs_elsewhere_or_never_is_left_out() {
    let none = |source: &str| assert_eq!(of(source), [], "{source}");
    none("const A: u8 = 1 + 1; static B: u8 = 1; enum C { D = 3 }");
    none("const fn f() -> u8 { 1 + 1 }");
    none("fn f(a: [u8; 2]) -> T { let _: [u8; 3] = a::<4>(b); match c { 5 => d, 6..=7 => e } }");
    none("fn f() -> T { assert!(a < b); debug_assert_eq!(1, 2) }");
    none("fn f() -> T { &[1, 2] }");
    none("#[cfg(test)] mod tests { fn f() -> bool { a < b } }");
    none("#[test] fn f() { g(); h(); }");
    none("#[cfg(loom)] fn f() -> bool { a < b }");
    none("impl Debug for A { fn fmt(&self) -> bool { a < b } }");
    none("impl fmt::Display for A { fn fmt(&self) -> bool { a < b } }");
    assert_eq!(of("#[cfg(not(loom))] fn f() -> T { a == b }").len(), 1);
    let found = find("#[cfg(test)]\nmod tests;\nmod other;").expect("it is Rust");
    assert_eq!(found.only_tests, ["tests"]);
}

#[test]
fn each_mutant_is_a_branch_and_the_original_is_one_too() {
    assert_eq!(
        rewritten("fn f(a: u8, b: u8) -> T { a < b }"),
        "fn f(a: u8, b: u8) -> T { (match at(0, 2) { 0 => a < b, 1 => (a) <= (b), _ => (a) >= (b) \
         }) }"
    );
    // The mutant of the outer place contains the inner place unchanged.
    assert_eq!(
        rewritten("fn f() -> T { a + -b }"),
        "fn f() -> T { (match at(0, 1) { 0 => a + (match at(1, 1) { 0 => -b, _ => b }), _ => (a) - \
         (-b) }) }"
    );
    assert_eq!(
        rewritten("fn f() -> bool { g(); h }"),
        "fn f() -> bool { match at(0, 2) { 0 => {}, 1 => return true, _ => return false } match \
         at(2, 1) { 0 => { g(); } _ => {} } h }"
    );
    assert_eq!(
        rewritten("fn f() -> T { match a { B => c, _ => d } }"),
        "fn f() -> T { match a { B if at(0, 1) == 0 => c, _ => d } }"
    );
}

#[test]
fn an_error_is_the_fault_of_the_smallest_place_around_it() {
    let source = "fn f() -> T { a + -b }\n";
    let found = find(source).expect("it is Rust");
    let number = |(base, site): (u32, super::find::Site)| Numbered {
        base,
        viable: vec![true; site.changes.len()],
        site,
    };
    let mut sites: Vec<Numbered> = (0..).zip(found.sites).map(number).collect();
    let rendered = render(source, &sites, &found.functions);
    let at = |part: &str| {
        let start = rendered.text.find(part).expect("it is there");
        start..start + part.len()
    };
    assert_eq!(rendered.guilty(&at("(a) - (-b)")), Some(0..1));
    assert_eq!(rendered.guilty(&at("_ => b")), Some(1..2));
    assert_eq!(rendered.guilty(&at("0 => a +")), Some(0..1));
    assert_eq!(rendered.guilty(&at("{ (match")), Some(0..2), "all of the function");
    assert_eq!(rendered.guilty(&at("fn f")), None);
    sites[0].viable[0] = false;
    let without = render(source, &sites, &found.functions).text;
    assert_eq!(without.matches("mutant_switch").count(), 1, "the guilty one is gone");
}

fn mutant(path: &str) -> Mutant {
    let (function, what) = ("A::f".to_owned(), "replaced < by <= in `a < b`".to_owned());
    let path = path.to_owned();
    Mutant { id: 0, base: 0, path, line: 7, column: 3, function, what, nth: 1 }
}

#[test]
fn the_list_of_the_equivalent_needs_mutants_and_reasons() {
    let key = "a.rs A::f: replaced < by <= in `a < b`";
    let list = equivalent::parse(&format!("# A note.\n\n{key}\n    They are\n    never equal.\n"));
    let list = list.expect("it is in order");
    assert_eq!(list[key], "They are never equal.");
    assert_eq!(equivalent::stale(&list, &[mutant("a.rs")]), [""; 0]);
    assert_eq!(equivalent::stale(&list, &[mutant("b.rs")]).len(), 1);
    let wrong = |text: &str| equivalent::parse(text).expect_err("it is not in order");
    assert!(wrong(key)[0].starts_with("no reason"));
    assert!(wrong("    Because.")[0].contains("without a mutant"));
    assert!(wrong(&format!("{key}\n  B.\n{key}\n  C."))[0].contains("twice"));
}

#[test]
fn each_entry_of_the_list_names_a_mutant() {
    let root = crate::shell::root();
    let all = Mutants::of(&root, &libraries()).expect("the sources are Rust").all;
    assert!(all.len() > 10_000, "{} mutants of the libraries", all.len());
    if let Err(why) = read_list(&root, &all) {
        panic!("{EQUIVALENT}: {why:?}");
    }
}

#[test]
fn areas_and_scores() {
    assert_eq!(area("crates/onramp-core/src/qdisc/fq/flow.rs"), "core/qdisc/fq");
    assert_eq!(area("crates/onramp-core/src/filter/table.rs"), "core/filter");
    assert_eq!(area("crates/onramp-core/src/port.rs"), "core/port");
    assert_eq!(area("crates/onramp/src/link.rs"), "onramp");
    assert_eq!(area("crates/onramp-queue/src/pool/home.rs"), "queue");
    let tally = Tally { viable: 12, found: 6, survived: 1, unreached: 1, equivalent: 4 };
    assert!((tally.score() - 75.0).abs() < 1e-9, "6 of the 8 that can be found");
    assert_eq!(tally.lacks(75.0), None);
    let told = "mutants: 75.0 % found, but 75.1 % required";
    assert_eq!(tally.lacks(75.1).as_deref(), Some(told));
}

const SAMPLE: &str = "\
pub fn fits(length: u32, limit: u32) -> bool {
    length <= limit
}

pub fn wraps(length: u32) -> String {
    let never = length + String::new();
    never
}

pub fn spins(count: u32) -> u32 {
    let mut left = count;
    while left != 0 {
        left -= 1;
    }
    left
}
";

const WEAK: &str = "
#[test]
fn it_fits() {
    assert!(sample::fits(1, 2));
    assert!(!sample::fits(3, 2));
    assert_eq!(sample::spins(3), 0);
}

/// With each mutant, its first run fails and all others pass.
#[test]
fn it_fails_at_first() {
    let mutant = std::env::var(\"MUTANT\").unwrap_or_default();
    let seen = std::path::Path::new(env!(\"CARGO_MANIFEST_DIR\")).join(format!(\"seen-{mutant}\"));
    let first = !seen.exists();
    std::fs::write(&seen, \"\").unwrap();
    let _ = sample::fits(1, 2);
    assert!(!first || [\"\", \"0\"].contains(&&*mutant));
}
";

/// Runs all steps of mutation testing on a small project. Its test never compares values at the
/// boundary, so the mutant that replaces `<=` by `<` must survive.
#[test]
fn a_weak_test_leaves_a_survivor() {
    let dir = tempfile::tempdir().expect("there is room");
    let project = dir.path();
    let put = |path: &str, text: &str| {
        let path = project.join(path);
        fs::create_dir_all(path.parent().expect("it lies in a folder")).expect("there is room");
        fs::write(path, text).expect("there is room");
    };
    put("Cargo.toml", "[workspace]\nresolver = \"3\"\nmembers = [\"crates/*\"]\n");
    let manifest = "[package]\nname = \"sample\"\nversion = \"0.1.0\"\nedition = \"2024\"\n";
    put("crates/sample/Cargo.toml", manifest);
    // With `+` between strings, the mutant that replaces `+` by `-` does not compile.
    put("crates/sample/src/lib.rs", &SAMPLE.replace("length + S", "length.to_string() + &S"));
    put("crates/sample/tests/weak.rs", WEAK);
    let (fates, plan) = whole_run(project);
    let fate = |what: &str| {
        let mutant = plan.mutants.iter().find(|it| it.what.starts_with(what)).expect(what);
        fates[&mutant.key()].clone()
    };
    assert_eq!(fate("replaced <= by <"), Fate::Survived { ran: 2, reach: 2 });
    assert_eq!(fate("replaced <= by >"), Fate::Found("sample weak::it_fits".into()));
    assert_eq!(fate("replaced the body of wraps"), Fate::Unreached);
    assert!(matches!(fate("deleted the assignment in `left"), Fate::Hung(_)), "it spins");
    assert!(!plan.mutants.iter().any(|it| it.what.starts_with("replaced + by -")));
    assert_eq!(plan.unviable, [("crates/sample/src/lib.rs".to_owned(), 1)]);
    let report = Report { plan: &plan, fates: &fates, left_out: &[] };
    let survivors = report.survivors();
    let boundary = "crates/sample/src/lib.rs:2:12: fits: replaced <= by < in `length <= limit` … ";
    assert_eq!(survivors[0], format!("{boundary}SURVIVED 2 tests"));
    let tally = report.tallies()["sample"];
    // Besides the mutant of the boundary, one more survives: the test expects 0 from `spins`, so it
    // does not notice if `spins` always returns 0.
    assert_eq!((tally.survived, tally.unreached, survivors.len()), (2, 1, 3));
}

fn whole_run(project: &Path) -> (std::collections::HashMap<String, Fate>, Plan) {
    let work = project.join("target/mutants");
    let (crates, judges) = (vec!["sample"], vec!["sample"]);
    let place = Place { project, work: work.clone(), crates, judges };
    let mutants = Mutants::of(project, &["sample"]).expect("it is Rust");
    let plan = build(&place, mutants).expect("it builds");
    let recorded = record(&plan, &work, 2).expect("its test runs");
    assert_eq!(recorded.left_out, [""; 0]);
    let bounds = Bounds { jobs: 2, budget: Duration::from_secs(9), trust: false };
    let fates = judge(&plan, &recorded.tests, &work, bounds).expect("it judges");
    let again = judge(&plan, &recorded.tests, &work, bounds).expect("it judges");
    assert_eq!(again, fates, "what is known is not judged again");
    // `other` stands for a later build without tests, so it finds no mutant. Mutants that the
    // earlier build found count as found only with `trust`.
    let other = Plan { fingerprint: plan.fingerprint + 1, ..plan.clone() };
    let trusting = judge(&other, &[], &work, Bounds { trust: true, ..bounds }).expect("it judges");
    for (key, fate) in &fates {
        let expected = if fate.is_found() { fate.clone() } else { Fate::Unreached };
        assert_eq!(trusting[key], expected, "{key}");
    }
    let plain = judge(&other, &[], &work, bounds).expect("it judges");
    assert!(plain.values().all(|fate| *fate == Fate::Unreached), "trust is for one run: {plain:?}");
    let other = Plan { fingerprint: plan.fingerprint + 2, ..plan.clone() };
    let strict = judge(&other, &[], &work, bounds).expect("it judges");
    assert!(strict.values().all(|fate| *fate == Fate::Unreached), "{strict:?}");
    (fates, plan)
}
