//! The judge is judged: kernels that do as we do pass, kernels that do not are told of. They are
//! played by our own qdiscs, with other seeds, and with what is wrong on purpose.

use onramp_differential::generate;
use onramp_differential::judge::{How, Verdict, judge};
use onramp_differential::kinds;
use onramp_differential::oracle::{Answer, Kernel, Said, Silent};
use onramp_differential::plan::{Compared, Line, Opt, Plan, Row};
use onramp_differential::shrink::shrink;
use onramp_sim::recording::Case;

/// Plays the kernel.
#[derive(Debug, Default)]
struct Played {
    /// The word of the tree that it reads as another.
    reads: Option<(&'static str, &'static str)>,
    /// What leaves as the last leaves so much later.
    late_ns: u64,
    /// It refuses lines with this word.
    refuses: Option<&'static str>,
    /// Its draws have the same numbers from this one on.
    stuck: Option<u64>,
}

impl Kernel for Played {
    fn ask(&self, plan: &Plan, draw: u64) -> Result<Answer, Silent> {
        let mut tc: String = plan.lines.iter().map(|line| format!("{line}\n")).collect();
        if let Some((word, other)) = self.reads {
            assert!(tc.contains(word), "{tc}");
            tc = tc.replace(word, other);
        }
        let refused =
            |line: &Line| self.refuses.is_some_and(|word| line.to_string().contains(word));
        // It makes changes some time after it has woken up for them.
        let made: Vec<_> = plan.changes.iter().map(|(at, _)| (at + 10_000, at + 10_000)).collect();
        let text = plan.text(&tc, &made, "event,time_ns,idx,ecn,reason\n");
        let case = Case::parse("played", &text).map_err(|error| Silent(error.to_string()))?;
        let drawn = self.stuck.map_or(draw, |last| draw.min(last));
        let mut kernel = case.play(1_000_000 + drawn).csv();
        if self.late_ns > 0 {
            let row = kernel.lines().rfind(|line| line.starts_with("deq")).expect("one left");
            let mut fields: Vec<String> = row.split(',').map(str::to_owned).collect();
            let time_ns: u64 = fields[1].parse().expect("a time");
            fields[1] = (time_ns + self.late_ns).to_string();
            kernel = kernel.replace(row, &fields.join(","));
        }
        let said = |line: &Line| match refused(line) {
            true => Said { status: 2, text: "Error: no.".into() },
            false => Said::default(),
        };
        let lines = plan.lines.iter().map(said).collect();
        let ran = |(at, line): &(u64, Line)| (*at, at + 30_000, said(line));
        Ok(Answer {
            lines,
            changes: plan.changes.iter().map(ran).collect(),
            kernel,
            ..Answer::default()
        })
    }
}

/// A case of one qdisc: so many packets of four flows, every half a millisecond.
fn plan(kind: &str, options: &[&str], packets: u64) -> Plan {
    let row = kinds::kind(kind).expect("a kind");
    let compared = if kind == "netem" { Compared::Chance } else { row.compared };
    let option = |text: &&str| Opt { text: (*text).to_owned(), needed: false, compared };
    let head = format!("tc qdisc add dev dut0 root handle 1: {kind}");
    let options = options.iter().map(option).collect();
    let at = |n: u64| Row {
        time_ns: n * 500_000,
        flow: n % 4,
        bytes: 1_000,
        priority: 0,
        tos: 2,
        txtime_ns: None,
    };
    Plan {
        seed: 1,
        link_bps: if kind == "netem" { 24_000_000 } else { 12_000_000 },
        bypass: false,
        tai: false,
        lines: vec![Line { head, kind: row.id, compared, options }],
        changes: Vec::new(),
        rows: (0..packets).map(at).collect(),
        pacing: Default::default(),
    }
}

#[track_caller]
fn verdict(plan: &Plan, kernel: &dyn Kernel) -> Verdict {
    judge(plan, kernel).expect("an answer")
}

#[test]
fn a_nanosecond_is_told_of() {
    let plan = plan("pfifo", &["limit 20"], 200);
    let same = verdict(&plan, &Played::default());
    assert_eq!((same.how, same.differences.len()), (How::Exactly, 0));
    let late = verdict(&plan, &Played { late_ns: 1, ..Played::default() });
    assert_eq!((late.how, late.differences.len()), (How::Exactly, 1), "{:?}", late.differences);
    let longer = Played { reads: Some(("limit 20", "limit 21")), ..Played::default() };
    assert!(!verdict(&plan, &longer).differences.is_empty());
}

/// A change is made at some instant of which only the bounds are known. That is no tolerance, but
/// for a packet that leaves between them.
#[test]
fn changes_are_judged_where_nothing_happens() {
    let changed = |at_ns, last: usize| {
        let mut plan = plan("pfifo", &["limit 20"], 200);
        let mut line = plan.lines[0].clone();
        line.head = line.head.replace("add", "change");
        line.options[0].text = "limit 5".into();
        plan.changes.push((at_ns, line));
        plan.rows.truncate(last);
        plan
    };
    let late = Played { late_ns: 441, ..Played::default() };
    // A packet takes two thirds of a millisecond, and leaves when the one before has.
    let quiet = changed(50_100_000, 200);
    let same = verdict(&quiet, &Played::default());
    assert_eq!((same.how, same.differences.len()), (How::Exactly, 0), "{:?}", same.differences);
    let told = verdict(&quiet, &late);
    assert_eq!((told.how, told.differences.len()), (How::Exactly, 1));
    let ignored = Played { reads: Some(("limit 20", "limit 21")), ..Played::default() };
    assert!(!verdict(&quiet, &ignored).differences.is_empty());
    // The tenth and last leaves at 6 ms.
    let busy = changed(5_990_000, 10);
    let told = verdict(&busy, &late);
    assert_eq!((told.how, told.differences.len()), (How::Disturbed, 0));
    // What was before the change has to be the same.
    let before = Played { reads: Some(("limit 20", "limit 2")), ..Played::default() };
    let told = verdict(&changed(5_990_000, 200), &before);
    assert_eq!(told.how, How::Disturbed);
    assert!(!told.differences.is_empty());
    assert_eq!(verdict(&busy, &Played::default()).how, How::Exactly);
}

/// A line that one side alone refuses is a difference; one that both refuse is none.
#[test]
fn refusals_are_compared() {
    let deaf = Played { refuses: Some("limit"), ..Played::default() };
    let told = verdict(&plan("pfifo", &["limit 20"], 20), &deaf);
    assert_eq!(told.how, How::Refused);
    assert!(told.differences[0].contains("Linux refuses (2): Error: no."), "{told:?}");
    let mut both = plan("pfifo", &[], 20);
    both.lines[0].options =
        vec![Opt { text: "limit many".into(), needed: true, compared: Compared::Exact }];
    let told = verdict(&both, &Both);
    assert_eq!((told.how, told.differences.len()), (How::Refused, 0));

    let taken = verdict(&plan("pfifo", &[], 20), &Both);
    assert!(taken.differences[0].contains("here it is taken"), "{taken:?}");
}

/// It reads no tree, and refuses all lines.
#[derive(Debug)]
struct Both;

impl Kernel for Both {
    fn ask(&self, plan: &Plan, _: u64) -> Result<Answer, Silent> {
        let said = |_: &Line| Said { status: 1, text: String::new() };
        let lines = plan.lines.iter().map(said).collect();
        Ok(Answer { lines, kernel: "event,time_ns,idx,ecn,reason\n".into(), ..Answer::default() })
    }
}

/// Our own qdiscs with other seeds are no other kernel.
#[test]
fn other_draws_pass() {
    for loss in ["loss 3%", "loss 10%", "loss 40% 20%", "delay 5ms 4ms"] {
        for packets in [300, 1_000, 2_000] {
            let told = verdict(&plan("netem", &[loss], packets), &Played::default());
            assert_eq!(told.how, How::Distribution, "{loss}");
            assert!(told.differences.is_empty(), "{loss}: {:?}", told.differences);
            assert!(told.scores.iter().any(|score| score.z != 0.0), "chance has a part in it");
        }
    }
}

/// One that loses 8 % more is told of, and one that delays 8 % longer.
#[test]
fn eight_percent_are_told_of() {
    for (ours, theirs, what) in [
        ("loss 25%", "loss 27%", "drops"),
        ("loss 25%", "loss 23%", "drops"),
        ("delay 10ms 2ms", "delay 10800us 2ms", "mean sojourn"),
    ] {
        let plan = plan("netem", &[ours], 3_000);
        let told = verdict(&plan, &Played { reads: Some((ours, theirs)), ..Played::default() });
        assert!(
            told.differences.iter().any(|told| told.starts_with(what)),
            "{theirs}: {:?} {:?}",
            told.differences,
            told.scores
        );
    }
}

/// Draws that are all the same tell nothing of a distribution. A kernel that is asked so that they
/// are is not told of as one that differs, without a word of that.
#[test]
fn draws_that_are_none_are_told_of() {
    let told = |percent| {
        let plan = plan("netem", &[&format!("loss {percent}%")], 1_000);
        verdict(&plan, &Played { stuck: Some(0), ..Played::default() }).differences.pop()
    };
    let told: Vec<_> = (10..30).filter_map(told).collect();
    assert!(!told.is_empty(), "one of twenty draws is far from the mean");
    assert!(told.iter().all(|last| last.contains("the same in all draws")), "{told:?}");
}

/// A qdisc that draws no numbers in this case has to be exact, of whatever kind it is.
#[test]
fn without_chance_there_is_no_tolerance() {
    let plan = plan("netem", &["delay 5ms", "limit 30"], 500);
    let wrong = Played { reads: Some(("delay 5ms", "delay 5001us")), ..Played::default() };
    let told = verdict(&plan, &wrong);
    assert_eq!(told.how, How::Exactly);
    assert!(!told.differences.is_empty());
}

/// What is left of a case that differs is what it takes.
#[test]
fn a_case_gets_small() {
    let plan = plan("pfifo_head_drop", &["limit 5"], 400);
    let longer = Played { reads: Some(("limit 5", "limit 6")), ..Played::default() };
    let mut asked = 0;
    let small = shrink(plan, 60, |plan| {
        asked += 1;
        plan.lines[0].to_string().contains("limit 5")
            && judge(plan, &longer).is_ok_and(|told| !told.differences.is_empty())
    });
    assert!(asked <= 60);
    assert!(small.rows.len() <= 40, "{} packets are left", small.rows.len());
    assert!(judge(&small, &longer).is_ok_and(|told| !told.differences.is_empty()));
}

/// The same number makes the same case; another, another.
#[test]
fn cases_come_from_their_numbers() {
    for kind in kinds::KINDS {
        assert_eq!(generate::plan(7, kind), generate::plan(7, kind), "{}", kind.id);
        assert_ne!(generate::plan(7, kind), generate::plan(8, kind), "{}", kind.id);
    }
}
