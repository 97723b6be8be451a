//! The recording of our run in a case's file is replaced only if the judge finds no difference from
//! the kernel.

use std::fs;
use std::path::Path;

use onramp_differential::generate::{Size, sized};
use onramp_differential::keep::Keeper;
use onramp_differential::kinds;
use onramp_differential::oracle::{Answer, Kernel, Said, Silent};
use onramp_differential::plan::Plan;
use onramp_sim::recording::Case;

/// A substitute for the kernel that runs cases on our own qdiscs with other seeds. If the string is
/// not empty, `netem` loses this percentage of packets instead of the percentage in the case.
#[derive(Debug)]
struct Loses(&'static str);

impl Kernel for Loses {
    fn ask(&self, plan: &Plan, draw: u64) -> Result<Answer, Silent> {
        let text = plan.text(&tree(plan, self.0), &[], "event,time_ns,idx,ecn,reason\n");
        let case = Case::parse("played", &text).map_err(|error| Silent(error.to_string()))?;
        let kernel = case.play(1_000_000 + draw).csv();
        let stats = case.listing(1_000_000 + draw);
        let lines = plan.lines.iter().map(|_| Said::default()).collect();
        Ok(Answer { lines, kernel, stats, ..Answer::default() })
    }
}

/// Returns the lines of the case's tree. If `share` is not empty, it replaces the percentage that
/// `netem` loses.
fn tree(plan: &Plan, share: &str) -> String {
    let line = |line: &dyn ToString| {
        let mut words: Vec<String> = line.to_string().split(' ').map(str::to_owned).collect();
        if let Some(at) = words.iter().position(|word| word == "loss").filter(|_| !share.is_empty())
        {
            words[at + 1] = share.to_owned();
        }
        words.join(" ") + "\n"
    };
    plan.lines.iter().map(|it| line(it)).collect()
}

/// Returns the seed of a case that has the option `loss SHARE`, no changes, and no qdisc below
/// `netem`.
fn seed() -> u64 {
    let netem = kinds::kind("netem").expect("a kind");
    let fits = |seed: &u64| {
        let plan = sized(*seed, netem, &Size::SMALL);
        let loses = |text: &str| text.starts_with("loss ") && text.split(' ').count() == 2;
        let loses = plan.lines[0].options.iter().any(|option| loses(&option.text));
        loses && plan.changes.is_empty() && plan.lines.len() == 1 && plan.rows.len() > 150
    };
    (1..2_000).find(fits).expect("a case")
}

fn renew(folder: &Path, oracle: &dyn Kernel) -> bool {
    let keeper = Keeper { oracle, folder, found: folder, each: 1, chance: true };
    keeper.renew().expect("a folder")
}

#[test]
fn only_what_agrees_is_renewed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(format!("netem-{}.txt", seed()));
    fs::write(&path, "as it was").expect("a file");
    assert!(!renew(folder.path(), &Loses("95%")));
    assert_eq!(fs::read_to_string(&path).expect("a file"), "as it was");
    assert!(renew(folder.path(), &Loses("")));
    let text = fs::read_to_string(&path).expect("a file");
    let case = Case::parse("renewed", &text).expect("a case");
    assert!(case.exact(1).is_empty(), "the record is ours");
    assert!(text.contains("== figures\n") && case.unlike(1..9).is_empty());
    assert!(renew(folder.path(), &Loses("")), "again");
    assert_eq!(fs::read_to_string(&path).expect("a file"), text, "nothing has changed");
    // If the name of a file is not that of a case, the file is reported and not changed.
    fs::write(folder.path().join("notes.txt"), "").expect("a file");
    assert!(!renew(folder.path(), &Loses("")));
}
