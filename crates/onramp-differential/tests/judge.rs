//! Tests of the judge: it accepts a kernel that behaves as our qdiscs do, and reports a kernel that
//! does not. Our own qdiscs play the kernel, with other seeds and with deliberate errors.

use onramp_differential::generate;
use onramp_differential::judge::{How, Verdict, judge};
use onramp_differential::kinds;
use onramp_differential::oracle::{Answer, Kernel, Said, Silent};
use onramp_differential::plan::{Compared, Line, Opt, Plan, Row};
use onramp_differential::shrink::shrink;
use onramp_sim::recording::Case;

/// A substitute for the kernel that runs cases on our own qdiscs, with deliberate errors.
#[derive(Debug, Default)]
struct Played {
    /// A piece of text in the `tc` lines, and the text by which the substitute replaces it.
    reads: Option<(&'static str, &'static str)>,
    /// By how many nanoseconds the last packet leaves too late.
    late_ns: u64,
    /// The substitute refuses lines that contain this word.
    refuses: Option<&'static str>,
    /// From this run number on, all runs use the same random numbers.
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
        // A real kernel makes a change shortly after the planned time. Here the delay is 10 us.
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

/// Makes a case of one qdisc: `packets` packets of four flows, one every half millisecond.
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

/// The judge knows when `tc` started and ended, but not when in between the kernel made the change.
/// The judge must still report every difference, except for packets that leave while `tc` runs.
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
    // A packet leaves every two thirds of a millisecond: one at 50.0 ms, the next at 50.67 ms. So
    // no packet leaves while the change of 50.1 ms is made.
    let quiet = changed(50_100_000, 200);
    let same = verdict(&quiet, &Played::default());
    assert_eq!((same.how, same.differences.len()), (How::Exactly, 0), "{:?}", same.differences);
    let told = verdict(&quiet, &late);
    assert_eq!((told.how, told.differences.len()), (How::Exactly, 1));
    let ignored = Played { reads: Some(("limit 20", "limit 21")), ..Played::default() };
    assert!(!verdict(&quiet, &ignored).differences.is_empty());
    // The tenth and last packet leaves at 6 ms, while the change of 5.99 ms is made.
    let busy = changed(5_990_000, 10);
    let told = verdict(&busy, &late);
    assert_eq!((told.how, told.differences.len()), (How::Disturbed, 0));
    // Even if a packet leaves during a change, the judge must compare the packets that left before
    // the change, and report differences between the kernel's and ours.
    let before = Played { reads: Some(("limit 20", "limit 2")), ..Played::default() };
    let told = verdict(&changed(5_990_000, 200), &before);
    assert_eq!(told.how, How::Disturbed);
    assert!(!told.differences.is_empty());
    assert_eq!(verdict(&busy, &Played::default()).how, How::Exactly);
}

/// It is a difference if only the kernel or only Onramp refuses a line. If both refuse it, it is
/// none.
#[test]
fn refusals_are_compared() {
    let deaf = Played { refuses: Some("limit"), ..Played::default() };
    let told = verdict(&plan("pfifo", &["limit 20"], 20), &deaf);
    assert_eq!(told.how, How::Refused);
    assert!(told.differences[0].contains("Linux refuses it (2): Error: no."), "{told:?}");
    let mut both = plan("pfifo", &[], 20);
    both.lines[0].options =
        vec![Opt { text: "limit many".into(), needed: true, compared: Compared::Exact }];
    let told = verdict(&both, &Both);
    assert_eq!((told.how, told.differences.len()), (How::Refused, 0));

    let taken = verdict(&plan("pfifo", &[], 20), &Both);
    assert!(taken.differences[0].contains("Onramp accepts it"), "{taken:?}");
}

/// A substitute for the kernel that refuses all lines.
#[derive(Debug)]
struct Both;

impl Kernel for Both {
    fn ask(&self, plan: &Plan, _: u64) -> Result<Answer, Silent> {
        let said = |_: &Line| Said { status: 1, text: String::new() };
        let lines = plan.lines.iter().map(said).collect();
        Ok(Answer { lines, kernel: "event,time_ns,idx,ecn,reason\n".into(), ..Answer::default() })
    }
}

/// Our own qdiscs with other seeds, in place of the kernel, pass: the judge does not take other
/// random numbers for a difference.
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

/// The judge reports a kernel that loses 8 % more packets, and a kernel that delays packets by 8 %
/// more.
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

/// If all runs of the kernel use the same random numbers, a comparison by distribution says
/// nothing. When the judge reports a difference from such runs, it adds a remark that the runs are
/// all equal.
#[test]
fn draws_that_are_none_are_told_of() {
    let told = |percent| {
        let plan = plan("netem", &[&format!("loss {percent}%")], 1_000);
        verdict(&plan, &Played { stuck: Some(0), ..Played::default() }).differences.pop()
    };
    let told: Vec<_> = (10..30).filter_map(told).collect();
    assert!(!told.is_empty(), "one of twenty draws is far from the mean");
    assert!(told.iter().all(|last| last.contains("did they draw different numbers")), "{told:?}");
}

/// If no random choice affects the result of a case, our result has to agree exactly, even if the
/// kind of qdisc can make random choices.
#[test]
fn without_chance_there_is_no_tolerance() {
    let plan = plan("netem", &["delay 5ms", "limit 30"], 500);
    let wrong = Played { reads: Some(("delay 5ms", "delay 5001us")), ..Played::default() };
    let told = verdict(&plan, &wrong);
    assert_eq!(told.how, How::Exactly);
    assert!(!told.differences.is_empty());
}

/// Shrinking a case leaves only the options, lines and packets that are needed to show the
/// difference.
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

/// The same seed makes the same case, and another seed makes another case.
#[test]
fn cases_come_from_their_numbers() {
    for kind in kinds::KINDS {
        assert_eq!(generate::plan(7, kind), generate::plan(7, kind), "{}", kind.id);
        assert_ne!(generate::plan(7, kind), generate::plan(8, kind), "{}", kind.id);
    }
}
