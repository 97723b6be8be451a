//! Tests which device, qdisc or class a command line names, and the errors of wrong lines.

use super::super::*;
use super::{setup, told, with_facts};
use crate::tc::cmd::{Class, Filter, Qdisc as QdiscLine};

#[test]
fn the_first_line_names_the_device() {
    for line in
        ["qdisc add dev d root handle 1: htb", "qdisc add dev d ingress", "qdisc add dev d clsact"]
    {
        let mut tree = setup(&[line]);
        assert_eq!(tree.device(), Some("d"));
        let error = told(&mut tree, "qdisc replace dev e root pfifo");
        let why = "expected d, the only device, as named in an earlier line";
        assert_eq!(error, format!("qdisc: illegal \"dev\" \"e\": {why}"));
    }
    let mut tree = setup(&["qdisc add dev d root handle 1: htb"]);
    let error = told(&mut tree, "class add dev e parent 1: classid 1:1 htb rate 1mbit");
    assert!(error.starts_with("class: illegal \"dev\" \"e\": "), "{error}");
    let error = told(&mut tree, "filter add dev e parent 1: protocol ip matchall classid 1:1");
    assert!(error.starts_with("filter: illegal \"dev\" \"e\": "), "{error}");
    let error = told(&mut tree, "class add parent 1: classid 1:1 htb rate 1mbit");
    assert_eq!(error, "class: \"dev\": expected `dev NAME`");
    // `with_facts` has named the device e before the first command.
    let mut tree = with_facts(Facts::default());
    assert!(
        told(&mut tree, "qdisc add dev f root pfifo")
            .ends_with("expected e, the only device, as named in an earlier line")
    );
}

#[test]
fn lines_may_be_commented_and_shortened() {
    let mut tree = Setup::default();
    for (line, change) in [
        ("", Change::Nothing),
        ("   ", Change::Nothing),
        ("tc", Change::Nothing),
        ("tc q a dev e root handle 1: htb", Change::Qdisc(1)),
        ("cl add dev e classid 1:5 htb rate 1mbit", Change::Class(Handle::new(1, 5))),
        ("qdisc add dev e parent 1:5 handle 2: pfifo", Change::Qdisc(2)),
        ("qdisc change dev e handle 2: pfifo limit 5", Change::Parameters(2)),
        ("qdisc replace dev e handle 2:", Change::Nothing),
        ("qdisc del dev e parent 1:5", Change::Gone(Handle::new(1, 5))),
        (
            "f a dev e parent 1: protocol ip pref 1 matchall classid 1:5",
            Change::Filters(Handle::new(1, 0)),
        ),
        ("filter del dev e parent 1:", Change::Filters(Handle::new(1, 0))),
        ("class del dev e classid 1:5", Change::ClassGone(Handle::new(1, 5))),
        ("qdisc add dev e ingress", Change::Ingress),
        ("qdisc replace dev e ingress", Change::Nothing),
        ("qdisc del dev e ingress", Change::Ingress),
        ("qdisc del dev e root", Change::RootGone),
    ] {
        assert_eq!(tree.change(line), Ok(change), "{line}");
    }
    tree.apply("# all of it").expect("a comment");
    tree.apply("qdisc add dev e root pfifo # here").expect("and a comment behind it");
    assert_eq!(told(&mut tree, "tc tc"), "tc: unexpected \"tc\": expected qdisc, class or filter");
    assert_eq!(told(&mut tree, "qdisc"), "qdisc: expected add, replace, change or delete");
    let lists =
        "class: the line lists, and changes nothing: expected add, replace, change or delete";
    assert_eq!(told(&mut tree, "class show dev e"), lists);
}

/// Each line has a wrong word before the kind, and gives exactly the error beside it.
#[test]
fn heads_say_what_is_wrong_with_them() {
    let mut tree = setup(&["qdisc add dev e root handle 1: htb"]);
    let class = "expected root, a class such as 1:20, hexadecimal, or a qdisc: 1:";
    let place = "expected one place: root, parent CLASS, ingress or clsact";
    let missing = "the value is missing at the end of the line";
    for (line, error, code) in [
        ("qdisc add dev", format!("qdisc: \"dev\": {missing}"), 255),
        ("qdisc add dev e dev f root pfifo", "qdisc: \"dev\": given twice".into(), 255),
        ("qdisc add dev e root root pfifo", format!("qdisc: \"root\": {place}"), 255),
        ("qdisc add dev e root ingress", format!("qdisc: \"ingress\": {place}"), 255),
        ("qdisc add dev e parent 1:1 clsact", format!("qdisc: \"clsact\": {place}"), 255),
        (
            "qdisc add dev e root estimator 1 2",
            "qdisc: \"estimator\": Onramp does not support it".into(),
            1,
        ),
        ("qdisc add dev e root stab", "qdisc: \"stab\": Onramp does not support it".into(), 1),
        (
            "qdisc add dev e ingress_block 1",
            "qdisc: \"ingress_block\": Onramp does not support it".into(),
            1,
        ),
        (
            "qdisc add dev e egress_block 1",
            "qdisc: \"egress_block\": Onramp does not support it".into(),
            1,
        ),
        (
            "qdisc add dev e parent x pfifo",
            format!("qdisc: illegal \"parent\" \"x\": {class}"),
            255,
        ),
        ("class add dev e parent x", format!("class: illegal \"parent\" \"x\": {class}"), 255),
        ("class add dev e classid", format!("class: \"classid\": {missing}"), 255),
        ("class add dev e dev f", "class: \"dev\": given twice".into(), 255),
        ("class add dev e root root", "class: \"root\": given twice".into(), 255),
        ("class add dev e parent 1: parent 1:", "class: \"parent\": given twice".into(), 255),
        ("class add dev e classid 1:1 classid 1:1", "class: \"classid\": given twice".into(), 255),
        (
            "class add dev e estimator 1 2",
            "class: \"estimator\": Onramp does not support it".into(),
            1,
        ),
        (
            "class add dev e handle 1:1",
            "class: \"handle\": expected `classid`, which names a class".into(),
            255,
        ),
        (
            "class link dev e classid 1:1 htb rate 1mbit",
            "class: unexpected \"link\": expected add, replace, change or delete".into(),
            255,
        ),
        (
            "class add dev e classid 1:1 prio",
            "class: unexpected \"prio\": classes can be added only to qdiscs of the kinds htb, \
             drr, qfq, hfsc"
                .into(),
            1,
        ),
        (
            "class add dev e classid 1:1 htb",
            "class htb: \"rate\": it is missing: expected a rate such as 8mbit or 1mbps (bytes), \
             8bit to 8000Tbit"
                .into(),
            1,
        ),
    ] {
        let found = tree.apply(line).expect_err(line);
        assert_eq!((found.to_string(), found.fault.code()), (error, code), "{line}");
    }
}

/// As with `tc` and Linux, the words of a line are checked first, then the device, and then the
/// values of options.
#[test]
fn who_says_no_first() {
    let code = |line: &str| {
        let error = Setup::default().apply(line).expect_err(line);
        (error.fault.code(), error.key)
    };
    // `tc` itself refuses a `tbf` without a limit (exit status 1). A `prio` with two bands whose
    // map names a third band is refused only by the kernel. So if the line also lacks the device,
    // the error names the missing device (exit status 2).
    assert_eq!(code("qdisc add root tbf rate 1mbit burst 5k").0, 1);
    assert_eq!(code("qdisc add root handle 1: prio bands 2"), (2, "dev".to_owned()));
    assert_eq!(code("qdisc add dev e root handle 1: prio bands 2"), (2, "priomap".to_owned()));
    assert_eq!(code("qdisc add dev e parent 1:1 prio bands 2"), (2, "parent".to_owned()));
}

/// The command lines that Rust programs build are those that a user would type.
#[test]
fn commands_are_lines_of_tc() {
    let class = Handle::new(1, 0x20);
    for (line, text) in [
        (QdiscLine::add("fq").root().handle(0x1f).on("e"), "qdisc add dev e root handle 1f: fq"),
        (QdiscLine::replace("fq").parent(class).on("e"), "qdisc replace dev e parent 1:20 fq"),
        (
            QdiscLine::change("fq").root().option("limit", 7_u32).flag("pacing").on("e"),
            "qdisc change dev e root fq limit 7 pacing",
        ),
        (QdiscLine::delete().parent(class).on("e"), "qdisc del dev e parent 1:20"),
        (
            Class::add("htb", class).parent(Handle::new(1, 0)).option("rate", "8mbit").on("e"),
            "class add dev e classid 1:20 parent 1: htb rate 8mbit",
        ),
        (Class::replace("drr", class).on("e"), "class replace dev e classid 1:20 drr"),
        (Class::change("drr", class).on("e"), "class change dev e classid 1:20 drr"),
        (Class::delete(class).on("e"), "class del dev e classid 1:20"),
        (
            Filter::add("fw").pref(9).protocol("ip").option("classid", class).on("e"),
            "filter add dev e pref 9 protocol ip fw classid 1:20",
        ),
        (Filter::replace("fw").parent(class.qdisc()).on("e"), "filter replace dev e parent 1: fw"),
        (Filter::delete().pref(9).flag("").on("e"), "filter del dev e pref 9"),
    ] {
        assert_eq!(line, text);
    }
}

/// Names of options are shortened as far as `tc` 6.1 allows it, and not further.
#[test]
fn options_are_shortened_as_in_tc() {
    const TBF: &str = "tbf rate 1mbit limit 5000";
    let lists = |kind: &str, rest: &str, words: &str| -> Vec<String> {
        words.split(' ').map(|word| format!("{kind} {word}{rest}")).collect()
    };
    let taken = [
        lists("hfsc", " 5", "d de def default"),
        lists("htb", " 5", "d de def deb debu debug r dir direct_"),
        lists(TBF, " 5000", "b bu burst buffer maxburst"),
        lists("etf clockid TAI", "", "d de deadline skip_sock_check"),
        lists("etf clockid TAI", " 5", "del delta"),
        lists("netem", " 5ms", "de dela la lat"),
        lists("netem", " 5%", "lo dr drop"),
    ];
    for line in taken.concat() {
        line.parse::<Spec>().unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    let refused = [
        lists(TBF, " 5000", "m max buf buffe maxbur mt min"),
        lists("etf clockid TAI", "", "s skip skip_sock"),
        lists("prio", " 3", "b ban"),
    ];
    for line in refused.concat() {
        line.parse::<Spec>().expect_err(&line);
    }
    let etf = "etf clockid TAI d".parse::<Spec>().expect("a kind");
    assert!(etf.to_string().contains("deadline_mode"), "{etf}");
}
