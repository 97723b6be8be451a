use super::*;

/// Returns the findings for a crate that consists of these files: file, line, and the two
/// modules.
fn wrong(files: &[(&str, &str)], layers: Option<&[&str]>) -> Vec<(String, usize, String)> {
    let read = |path: &Path| {
        let name = path.to_str().and_then(|path| path.strip_prefix("a/src/"));
        files.iter().find(|(file, _)| Some(*file) == name).map(|(_, text)| (*text).to_owned())
    };
    let all: Vec<PathBuf> = files.iter().map(|(file, _)| Path::new("a/src").join(file)).collect();
    let wrong = check(Path::new("a"), layers, &all, &read).into_iter();
    let short =
        |what: &str| what.split('`').skip(1).step_by(2).take(2).collect::<Vec<_>>().join(" ");
    wrong.map(|w| (w.file.display().to_string(), w.line, short(&w.what))).collect()
}

fn at(file: &str, line: usize, what: &str) -> (String, usize, String) {
    (format!("a/src/{file}"), line, what.to_owned())
}

#[test]
fn siblings_that_use_each_other_are_a_circle() {
    let files = [
        ("lib.rs", "mod one;\nmod two;\n"),
        ("one.rs", "\nuse crate::two::Two;\npub struct One(Two);"),
        ("two.rs", "pub struct Two;\nfn f() { crate::one::g(); }"),
    ];
    assert_eq!(wrong(&files, None), [at("one.rs", 2, "one two"), at("two.rs", 2, "two one")]);
    let straight = [files[0], files[1], ("two.rs", "pub struct Two;")];
    assert_eq!(wrong(&straight, None), []);
    let main = [("main.rs", files[0].1), files[1], files[2]];
    assert_eq!(wrong(&main, None).len(), 2);
}

#[test]
fn a_circle_may_run_through_others_and_names_that_are_handed_on() {
    let files = [
        ("lib.rs", "mod one;\nmod two;\nmod three;\npub use one::One;"),
        ("one.rs", "mod deep;\npub struct One;"),
        ("one/deep.rs", "use crate::two;\nfn f() { two::f() }"),
        ("two.rs", "pub fn f() { vec![crate::three::g()]; }"),
        ("three.rs", "pub fn g(_: crate::One) {}"),
    ];
    let circle = [
        at("one/deep.rs", 1, "one two"),
        at("two.rs", 1, "two three"),
        at("three.rs", 1, "three one"),
    ];
    assert_eq!(wrong(&files, None), circle);
}

#[test]
fn parents_children_and_tests_are_free() {
    let files = [
        ("lib.rs", "mod one;\nmod two;"),
        ("one.rs", "mod deep;\nuse self::deep::f;\npub struct One;"),
        ("one/deep.rs", "use super::One;\nuse crate::two::Two;\npub fn f() {}"),
        ("two.rs", "pub struct Two;\n#[cfg(test)]\nmod tests { use crate::one::One; }"),
    ];
    assert_eq!(wrong(&files, None), []);
    // Sibling modules inside other modules are compared as well.
    let files = [
        ("lib.rs", "mod one;"),
        ("one.rs", "mod x;\nmod y;"),
        ("one/x.rs", "pub fn f() { super::y::f() }"),
        ("one/y.rs", "use super::x::f as g;\npub fn f() { g() }"),
    ];
    assert_eq!(wrong(&files, None), [at("one/x.rs", 1, "x y"), at("one/y.rs", 1, "y x")]);
}

#[test]
fn no_import_runs_up_the_layers() {
    let files = [
        ("lib.rs", "mod low;\nmod high;\npub mod facade { pub use crate::high::f; }"),
        ("low.rs", "pub fn f() {}\nfn g() { crate::high::f() }"),
        ("high.rs", "pub fn f() {}"),
    ];
    assert_eq!(wrong(&files, None), []);
    assert_eq!(wrong(&files, Some(&["low", "high"])), [at("low.rs", 2, "low high")]);
    assert_eq!(wrong(&files, Some(&["high", "low"])), []);
    let outside = at("low.rs", 1, "low");
    assert_eq!(wrong(&files, Some(&["high"])), [outside], "each module is in a layer");
}

#[test]
fn uses_are_found_behind_globs() {
    let files = [
        ("lib.rs", "mod low;\nmod high;\npub use high::f;\npub use low::*;"),
        ("low.rs", "use crate::*;\nfn g() { f() }\nfn h() { vec![f()] }"),
        ("high.rs", "pub fn f() {}"),
    ];
    let layers: Option<&[&str]> = Some(&["low", "high"]);
    assert_eq!(wrong(&files, layers), [at("low.rs", 2, "low high")]);
    let module = [files[0], ("low.rs", "use crate::*;\nfn g() { high::f() }"), files[2]];
    assert_eq!(wrong(&module, layers), [at("low.rs", 2, "low high")]);
    let macros = [files[0], ("low.rs", "use crate::*;\n\nfn h() { vec![f()] }"), files[2]];
    assert_eq!(wrong(&macros, layers), [at("low.rs", 3, "low high")]);
    // A variable may have the name of a module.
    let variable = [files[0], ("low.rs", "use crate::*;\nfn g(high: u8) -> u8 { high }"), files[2]];
    assert_eq!(wrong(&variable, layers), []);
}

#[test]
fn uses_are_found_behind_names_that_a_glob_hands_on() {
    let files = [
        ("lib.rs", "mod one;\nmod two;\nmod three;"),
        ("one.rs", "pub struct One(crate::two::Three);"),
        ("two.rs", "pub use crate::three::*;"),
        ("three.rs", "pub struct Three;\nfn f(_: crate::one::One) {}"),
    ];
    let found = wrong(&files, None);
    assert!(found.contains(&at("one.rs", 1, "one three")), "{found:?}");
    assert!(found.contains(&at("three.rs", 2, "three one")), "{found:?}");
    // Globs that lead to each other end.
    let files = [
        ("lib.rs", "mod one;\nmod two;"),
        ("one.rs", "pub use crate::two::*;\nfn f() { nothing() }"),
        ("two.rs", "pub use crate::one::*;"),
    ];
    assert_eq!(wrong(&files, None).len(), 2);
}

#[test]
fn uses_are_found_in_macros_and_in_their_paths() {
    let layers: Option<&[&str]> = Some(&["low", "high"]);
    let root = ("lib.rs", "mod low;\nmod high;");
    let high = "macro_rules! m { () => {} }\npub(crate) use m;\npub fn f() {}";
    for code in [
        "crate::high::m!();",
        "fn g() { vec![super::high::f()] }",
        "fn g() { vec![[crate::high::f()]] }",
        "macro_rules! own { () => { $crate::high::f() } }",
    ] {
        let files = [root, ("low.rs", code), ("high.rs", high)];
        assert_eq!(wrong(&files, layers), [at("low.rs", 1, "low high")], "{code}");
    }
    let exported = "#[macro_export]\nmacro_rules! m { () => {} }";
    let files = [root, ("low.rs", "crate::m!();"), ("high.rs", exported)];
    assert_eq!(wrong(&files, layers), [at("low.rs", 1, "low high")]);
    let files = [("lib.rs", "mod low;\n#[macro_use]\nmod high;"), ("low.rs", ""), ("high.rs", "")];
    assert_eq!(wrong(&files, layers), [at("lib.rs", 2, "macro_use high")]);
}

#[test]
fn a_feature_may_choose_another_file() {
    let layers: Option<&[&str]> = Some(&["low", "high"]);
    let root = "#[cfg(feature = \"low\")]\nmod low;\n#[cfg(not(feature = \"low\"))]\n\
                #[path = \"no_low.rs\"]\nmod low;\nmod high;";
    let good = [("lib.rs", root), ("low.rs", ""), ("no_low.rs", ""), ("high.rs", "pub fn f() {}")];
    assert_eq!(wrong(&good, layers), []);
    for bad in [1, 2] {
        let mut files = good;
        files[bad].1 = "fn g() { crate::high::f() }";
        assert_eq!(wrong(&files, layers), [at(files[bad].0, 1, "low high")]);
    }
    // A file that `path` names, in a folder: its own child module is beside it.
    let deep = [
        ("lib.rs", "mod low;\nmod high;"),
        ("low.rs", "#[path = \"low/other.rs\"]\nmod chosen;"),
        ("low/other.rs", "mod child;"),
        ("low/child.rs", "fn g() { crate::high::f() }"),
        ("high.rs", "pub fn f() {}"),
    ];
    assert_eq!(wrong(&deep, layers), [at("low/child.rs", 1, "low high")]);
}

#[test]
fn nothing_is_skipped() {
    let missing = [("lib.rs", "mod one;")];
    assert_eq!(wrong(&missing, None), [at("lib.rs", 1, "one")]);
    let broken = [("lib.rs", "mod one;"), ("one.rs", "\nfn {")];
    let found = wrong(&broken, None);
    assert_eq!((found.len(), found[0].0.as_str(), found[0].1), (1, "a/src/one.rs", 2));
    assert_eq!(wrong(&[], None).len(), 1, "a crate has a root");
    let files = [("lib.rs", "mod low;\nmod high;"), ("low.rs", ""), ("high.rs", "")];
    let layers: Option<&[&str]> = Some(&["low", "hihg", "high"]);
    assert_eq!(wrong(&files, layers), [at("lib.rs", 1, "LAYERS hihg")]);
    let read = |path: &Path| path.ends_with("src/lib.rs").then(String::new);
    let found = check_all(&["crates/a".into()], &[("crates/b", &[])], &[], &read);
    assert_eq!(found.len(), 1);
    assert!(found[0].what.contains("crates/b"), "{found:?}");
}

#[test]
fn the_root_of_layers_holds_no_code() {
    let layers: Option<&[&str]> = Some(&["low", "high"]);
    let found = |root: &str| {
        let files = [("lib.rs", root), ("low.rs", "use crate::f;"), ("high.rs", "pub fn f() {}")];
        wrong(&files, layers).into_iter().map(|(file, line, _)| (file, line)).collect::<Vec<_>>()
    };
    assert_eq!(found("mod low;\nmod high;"), []);
    for code in ["pub fn f() { high::f() }", "mod glue { fn f() { crate::high::f() } }"] {
        assert_eq!(found(&format!("mod low;\nmod high;\n{code}")), [("a/src/lib.rs".into(), 3)]);
    }
    assert_eq!(found("mod low;\nmod high;\npub mod facade { pub use crate::low::*; }"), []);
}

#[test]
fn names_are_read_in_every_form() {
    let layers: Option<&[&str]> = Some(&["low", "high"]);
    for code in [
        "fn f() { crate::r#high::f() }",
        "pass! { use crate::{high::f}; }",
        "pass! { crate::{low, high} }",
        "#[cfg(test_support)] fn f() { crate::high::f() }",
        "#[cfg(all(test_support, unix))] fn f() { crate::high::f() }",
    ] {
        let files =
            [("lib.rs", "mod low;\nmod high;"), ("low.rs", code), ("high.rs", "pub fn f() {}")];
        assert_eq!(wrong(&files, layers), [at("low.rs", 1, "low high")], "{code}");
    }
    for code in
        ["#[cfg(test)] const C: u8 = crate::high::C;", "#[cfg(test)] struct S(crate::high::T);"]
    {
        let files =
            [("lib.rs", "mod low;\nmod high;"), ("low.rs", code), ("high.rs", "pub fn f() {}")];
        assert_eq!(wrong(&files, layers), [], "{code}");
    }
}

/// A file that this check does not read could hold anything.
#[test]
fn each_file_is_read_or_belongs_to_tests() {
    let root =
        "mod one;\n#[cfg(test)]\nmod tests;\n#[cfg(test)]\n#[path = \"other.rs\"]\nmod more;";
    let files = [
        ("lib.rs", root),
        ("one.rs", ""),
        ("tests.rs", "mod deep;"),
        ("tests/deep.rs", ""),
        ("other.rs", ""),
    ];
    assert_eq!(wrong(&files, None), []);
    let lost = [("lib.rs", "pass! { mod one; }"), ("one.rs", "")];
    assert_eq!(wrong(&lost, None), [at("one.rs", 1, "mod")]);
}

#[test]
fn examples_and_targets_of_fuzzing_have_no_circles() {
    let lines = |files: &[(&str, &str)]| {
        let read = |path: &Path| {
            let named = files.iter().find(|(file, _)| Path::new(file) == path);
            named.map(|(_, text)| (*text).to_owned())
        };
        let all: Vec<PathBuf> = files.iter().map(|(file, _)| PathBuf::from(file)).collect();
        let wrong = check_all(&[], &[], &all, &read).into_iter();
        wrong.map(|wrong| (wrong.file.display().to_string(), wrong.line)).collect::<Vec<_>>()
    };
    for (root, dir) in [
        ("crates/a/examples/e/main.rs", "crates/a/examples/e"),
        ("crates/a/examples/e.rs", "crates/a/examples"),
        ("fuzz/fuzz_targets/e.rs", "fuzz/fuzz_targets"),
    ] {
        let [one, two, lost] = ["one", "two", "d/lost"].map(|name| format!("{dir}/{name}.rs"));
        let circle = [
            (root, "mod one;\nmod two;\nfn main() {}"),
            (&one, "use crate::two::f;"),
            (&two, "\nfn f() { crate::one::g() }"),
        ];
        assert_eq!(lines(&circle), [(one.clone(), 1), (two.clone(), 2)], "{root}");
        assert_eq!(lines(&[circle[0], circle[1], (&two, "")]), [], "{root}");
        assert_eq!(lines(&[(root, "fn main() {}"), (&lost, "")]), [(lost.clone(), 1)], "{root}");
    }
    assert_eq!(lines(&[("crates/a/tests/e.rs", "mod one;")]), [], "tests are free");
    let body = "#[path = \"../a\"]\nmod one {\n#[path = \"b/two.rs\"]\nmod two;\n}";
    let elsewhere = [("fuzz/fuzz_targets/e.rs", body), ("fuzz/fuzz_targets/../a/b/two.rs", "")];
    assert_eq!(lines(&elsewhere[..1]), [("fuzz/fuzz_targets/e.rs".into(), 3)]);
    assert_eq!(lines(&elsewhere), []);
}
