//! Writes a case as one text in a compact form. In this form, the packets that came and left take a
//! third of the bytes.
//!
//! The module [`short`](super::short) describes the form and reads it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::files::Files;
use super::short::{DIED, LEFT, PACKETS};
use super::{Arrival, Case, CaseError, Event, Reason, START_NS, figures, read};

/// Returns the case in `text` in its compact form, without the remarks before the first file.
/// [`Case::parse`] reads both forms and gets the same case.
///
/// # Errors
///
/// [`CaseError`]: says which file is wrong, and why.
pub fn compact(name: &str, text: &str) -> Result<String, CaseError> {
    let files = Files::of_text(name, text);
    let case = read::case(name, &files)?;
    Ok(written(&files, &case))
}

/// Does the same as [`compact()`], except that the result contains the outcome of Onramp's run with
/// seed `seed` in place of what the kernel did.
///
/// # Errors
///
/// [`CaseError`]: says which file is wrong, and why.
pub fn ours(name: &str, text: &str, seed: u64) -> Result<String, CaseError> {
    let mut files = Files::of_text(name, text);
    let mut case = read::case(name, &files)?;
    (case.recorded, files) = (case.play(seed), files.with("stats.txt", case.listing(seed)));
    Ok(written(&files, &case))
}

fn written(files: &Files, case: &Case) -> String {
    let mut out = String::new();
    let copy = |out: &mut String, name| {
        if let Ok(text) = files.text(name) {
            let _ = write!(out, "== {name}\n{text}");
        }
    };
    ["opts", "tc.txt", "changes.csv", "flows.csv"].into_iter().for_each(|it| copy(&mut out, it));
    let _ = write!(out, "== {PACKETS}\n{}", packets(case));
    let _ = write!(out, "== {LEFT}\n{}", events(case, &case.recorded.dequeues));
    let _ = write!(out, "== {DIED}\n{}", events(case, &case.recorded.drops));
    copy(&mut out, "stats.txt");
    copy(&mut out, figures::NAME);
    out
}

fn packets(case: &Case) -> String {
    let mut text = String::new();
    let (mut last_ns, mut flows) = (START_NS, BTreeMap::new());
    for arrival in &case.arrivals {
        let Arrival { time_ns, flow, len, priority, ecn, txtime_ns, .. } = arrival;
        let _ = write!(text, "{} {flow}", time_ns - last_ns);
        last_ns = *time_ns;
        let words = [len.to_string(), format!("{priority:x}"), ecn.to_string()];
        let before: Option<[String; 3]> = flows.insert(flow, words.clone());
        let same = |at: &usize| before.as_ref().is_some_and(|before| before[*at] == words[*at]);
        let said = 3 - (0..3).rev().take_while(same).count();
        for word in words.iter().take(said) {
            let _ = write!(text, " {word}");
        }
        if *txtime_ns > 0 {
            let _ = write!(text, " @{}", txtime_ns.cast_signed() - time_ns.cast_signed());
        }
        text.push('\n');
    }
    text
}

fn events(case: &Case, events: &[Event]) -> String {
    let mut text = String::new();
    let (mut last_ns, mut next) = (START_NS, 0);
    for Event { time_ns, packet, ecn, reason } in events {
        let _ = write!(text, "{}", time_ns - last_ns);
        let number = i64::try_from(*packet).unwrap_or(i64::MAX);
        if number != next {
            let _ = write!(text, " {}", number - next + 1);
        }
        (last_ns, next) = (*time_ns, number + 1);
        if case.arrivals.get(*packet).is_none_or(|arrival| arrival.ecn & 3 != *ecn) {
            let _ = write!(text, " ={ecn}");
        }
        match reason {
            None | Some(Reason::Unsaid) => {}
            Some(reason) => {
                let _ = write!(text, " {}", reason.word());
            }
        }
        text.push('\n');
    }
    text
}
