//! Writes a case as one text in a compact form: the packets that came and left take a third of the
//! bytes.
//!
//! A line of the part `packets` is `AFTER FLOW BYTES PRIORITY TOS @WAIT`. `AFTER` is the time since
//! the packet before came, in nanoseconds. `PRIORITY` is in hexadecimal digits. The line may end
//! after any of the numbers from `FLOW` on; missing numbers are the same as those of the flow's
//! packet before. `@WAIT` stands only after packets that have a departure time: that time is `WAIT`
//! nanoseconds after the packet came.
//!
//! A line of the part `left` is `AFTER STEP =ECN`. `AFTER` is the time since the packet before
//! left, in nanoseconds. `STEP` is how much the packet's number is greater than that of the packet
//! before; a step of 1 is left out. `=ECN` stands only after packets that left with other ECN bits
//! than they came with. A line of the part `died`, for dropped packets, has the same form and ends
//! with the kernel's drop reason, unless that is `GENERIC`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::read::{self, Files};
use super::{Arrival, Case, CaseError, Event, Outcome, Reason, START_NS, figures};

/// The names of the parts of the text.
pub(super) const PACKETS: &str = "packets";
pub(super) const LEFT: &str = "left";
const DIED: &str = "died";

/// Returns the case in `text` in its compact form, without remarks. [`Case::parse`] reads the same
/// case from both forms.
///
/// # Errors
///
/// [`CaseError`]: says which file is wrong, and why.
pub fn compact(name: &str, text: &str) -> Result<String, CaseError> {
    let files = Files::of_text(name, text);
    let case = read::case(name, &files)?;
    Ok(written(&files, &case))
}

/// Returns the case in `text` in its compact form, as [`compact()`] does, but with the outcome of
/// Onramp's run of seed `seed` instead of what the kernel did.
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

/// Reads the lines of a part. The function `line` reads one line from its words.
fn lines<'t, T>(
    files: &'t Files,
    name: &str,
    mut line: impl FnMut(&mut Vec<&'t str>) -> Option<T>,
) -> Result<Vec<T>, CaseError> {
    let mut read = |(at, text): (usize, &'t str)| {
        let mut words: Vec<&str> = text.split(' ').rev().collect();
        let why = || format!("{text}: expected numbers as `compact` writes them");
        let whole = line(&mut words).filter(|_| words.is_empty());
        whole.ok_or_else(|| CaseError::Broken {
            at: format!("{}:{}", files.at(name), at + 1),
            why: why(),
        })
    };
    files.text(name)?.lines().enumerate().map(&mut read).collect()
}

/// Takes the next word and returns it without `mark`; `None` if the next word does not begin with
/// `mark`.
fn marked<'t>(words: &mut Vec<&'t str>, mark: char) -> Option<&'t str> {
    let rest = words.last()?.strip_prefix(mark)?;
    words.pop();
    Some(rest)
}

/// Reads the part that [`packets`] wrote.
pub(super) fn arrivals(files: &Files) -> Result<Vec<Arrival>, CaseError> {
    let (mut time_ns, mut flows) = (START_NS, BTreeMap::new());
    lines(files, PACKETS, |words| {
        time_ns += words.pop()?.parse::<u64>().ok()?;
        let flow = words.pop()?.parse().ok()?;
        let mut said = flows.remove(&flow).unwrap_or(["", "", ""]);
        let mut place = said.iter_mut();
        while let Some(word) = words.pop_if(|word| !word.starts_with('@')) {
            *place.next()? = word;
        }
        let wait: Option<i64> = match marked(words, '@') {
            Some(wait) => Some(wait.parse().ok()?),
            None => None,
        };
        flows.insert(flow, said);
        Some(Arrival {
            time_ns,
            flow,
            len: said[0].parse().ok()?,
            priority: u32::from_str_radix(said[1], 16).ok()?,
            ecn: said[2].parse().ok()?,
            txtime_ns: wait.map_or(0, |wait| time_ns.saturating_add_signed(wait)),
            pacing_rate: 0,
        })
    })
}

/// Reads the parts that [`events`] wrote.
pub(super) fn outcome(files: &Files, arrivals: &[Arrival]) -> Result<Outcome, CaseError> {
    let part = |name: &str, died: bool| {
        let (mut time_ns, mut last) = (START_NS, -1);
        lines(files, name, |words| {
            time_ns += words.pop()?.parse::<u64>().ok()?;
            let is_step =
                |word: &mut &str| word.starts_with(|c: char| c == '-' || c.is_ascii_digit());
            last += match words.pop_if(is_step) {
                Some(step) => step.parse::<i64>().ok()?,
                None => 1,
            };
            let packet = usize::try_from(last).ok()?;
            let ecn = match marked(words, '=') {
                Some(ecn) => ecn.parse().ok()?,
                None => arrivals.get(packet)?.ecn & 3,
            };
            let reason = match (died, words.pop()) {
                (true, word) => Some(Reason::read(word.unwrap_or("GENERIC"))?),
                (false, None) => None,
                (false, Some(_)) => return None,
            };
            Some(Event { time_ns, packet, ecn, reason })
        })
    };
    let mut outcome = Outcome { dequeues: part(LEFT, false)?, drops: part(DIED, true)? };
    outcome.drops.sort();
    Ok(outcome)
}
