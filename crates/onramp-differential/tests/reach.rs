//! The generator of cases uses every kind and every option in the table of kinds, except those that
//! `LEFT_OUT` lists with a reason.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use onramp_core::Setup;
use onramp_core::params::{Param, Unit};
use onramp_core::qdisc::{ClassKind, KINDS};
use onramp_differential::generate;
use onramp_differential::kinds::{self, ALL, LEFT_OUT};
use onramp_differential::plan::{Line, Plan};

/// Number of cases of each kind, and how many of these cases may have changes during the run. Cases
/// with changes take longer to generate.
const CASES: u64 = 90;
const CHANGING: u64 = 8;

fn plans() -> &'static [Plan] {
    static PLANS: LazyLock<Vec<Plan>> = LazyLock::new(|| {
        let all = kinds::KINDS.iter().flat_map(|kind| (0..CASES).map(move |seed| (kind, seed)));
        let plan = |(kind, seed)| match seed < CHANGING {
            true => generate::plan(seed, kind),
            false => generate::still(seed, kind),
        };
        all.map(plan).collect()
    });
    &PLANS
}

/// Returns the words of a `tc` line that can stand for an option: its name, its other names, and
/// its values if these are words.
fn words(param: &Param) -> Vec<&'static str> {
    let mut words = vec![param.key];
    words.extend(param.aliases);
    if let Unit::Words(names) = param.unit {
        words.extend(names);
    }
    words
}

#[test]
fn every_kind_and_option_is_reached() {
    let plans = plans();
    let lines: Vec<&Line> = plans
        .iter()
        .flat_map(|plan| plan.lines.iter().chain(plan.changes.iter().map(|c| &c.1)))
        .collect();
    let mut used = BTreeSet::new();
    for line in &lines {
        let object = line.head.split_whitespace().nth(1).unwrap_or("");
        used.insert((object, line.kind, ""));
        for word in line.options.iter().flat_map(|option| option.text.split_whitespace()) {
            used.insert((object, line.kind, word));
        }
    }
    let left_out = |kind: &str, param: &Param| {
        let rows = LEFT_OUT.iter().filter(|(id, ..)| *id == kind);
        rows.flat_map(|(_, keys, _)| keys.iter())
            .any(|key| *key == ALL || words(param).contains(key))
    };
    let mut missed = Vec::new();
    for kind in KINDS {
        if LEFT_OUT.iter().any(|(id, keys, _)| *id == kind.id && keys.is_empty()) {
            assert!(kinds::kind(kind.id).is_none(), "{} is left out, and is not", kind.id);
            continue;
        }
        let used = |object, word| used.contains(&(object, kind.id, word));
        if !used("qdisc", "") {
            missed.push(kind.id.to_owned());
        }
        let classes = match kind.classes {
            ClassKind::Added { params, .. } => params,
            _ => &[],
        };
        for (object, params) in [("qdisc", kind.params), ("class", classes)] {
            for param in params {
                let reached = words(param).iter().any(|word| used(object, *word));
                if reached == left_out(kind.id, param) {
                    missed.push(format!("{object} {} {}: reached: {reached}", kind.id, param.key));
                }
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

/// Onramp accepts the lines of nearly all generated cases. Some trees are deep, some change during
/// the run, and flows send in all ways that the generator knows.
#[test]
fn cases_are_valid_and_varied() {
    let (mut refused, mut lines, mut deepest) = (Vec::new(), 0, 0);
    let plans = plans();
    for plan in plans {
        let mut setup = Setup::default();
        let changes = plan.changes.iter().map(|(_, line)| line);
        let mut depth = BTreeMap::<String, usize>::new();
        for line in plan.lines.iter().chain(changes) {
            let line = line.to_string();
            lines += 1;
            refused.extend(setup.apply(&line).err().map(|error| format!("{line}: {error}")));
            let words: Vec<&str> = line.split_whitespace().collect();
            if let ["tc", "class", "add", _, _, "parent", parent, "classid", id, ..] = &words[..] {
                let above = depth.get(*parent).copied().unwrap_or(0);
                depth.insert((*id).to_owned(), above + 1);
                deepest = deepest.max(above + 1);
            }
        }
        assert!(plan.rows.is_sorted_by_key(|row| row.time_ns), "{}", plan.seed);
        assert!(plan.rows.iter().all(|row| (60..=1514).contains(&row.bytes)));
    }
    assert!(refused.len() * 200 < lines, "of {lines} lines: {refused:#?}");
    assert!(deepest >= 7, "classes are {deepest} deep");
    let some = |what: &str, is: &dyn Fn(&&Plan) -> bool| {
        assert!(plans.iter().filter(is).count() >= 10, "{what}");
    };
    some("changes", &|plan| !plan.changes.is_empty());
    some("an infinitely fast wire", &|plan| plan.link_bps == 0);
    some("packets that pass by", &|plan| plan.bypass);
    some("many flows", &|plan| plan.rows.iter().any(|row| row.flow > 200));
    some("ECN", &|plan| plan.rows.iter().any(|row| row.tos & 3 > 0));
    some("classes", &|plan| plan.rows.iter().any(|row| row.priority > 0xFFFF));
    some("departure times", &|plan| plan.rows.iter().any(|row| row.txtime_ns.is_some()));
    some("pacing rates", &|plan| !plan.pacing.is_empty());
    some("filters", &|plan| plan.lines.iter().any(|line| line.kind == "filter"));
    let drops = |line: &Line| line.head.contains(" egress ") && line.to_string().contains("drop");
    some("filters in front", &|plan| plan.lines.iter().any(drops));
    some("bursts", &|plan| plan.rows.windows(3).any(|rows| rows[0].time_ns == rows[2].time_ns));
}
