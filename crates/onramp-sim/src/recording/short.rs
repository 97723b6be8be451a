//! Reads the short form of the packets that came to the tree and of those that left it.
//!
//! A line of the part `packets` is `AFTER FLOW BYTES PRIORITY TOS @WAIT`. `AFTER` is the time since
//! the previous packet came, in nanoseconds. `PRIORITY` is in hexadecimal digits. The numbers after
//! `FLOW` may be left out from the end; a number that is left out is the same as in the previous
//! packet of the flow. `@WAIT` stands only after packets that have a departure time, which is
//! `WAIT` nanoseconds after the packet came.
//!
//! A line of the part `left` is `AFTER STEP =ECN`. `AFTER` is the time since the previous packet
//! left, in nanoseconds. `STEP` is the difference between the number of this packet and that of the
//! previous one; a step of 1 is left out. `=ECN` stands only after packets that left with other ECN
//! bits than they came with. A line of the part `died`, for dropped packets, has the same form and
//! ends with the kernel's drop reason, unless that is `GENERIC`.

use std::collections::BTreeMap;

use super::files::Files;
use super::{Arrival, CaseError, Event, Outcome, Reason, START_NS};

/// The names of the parts in the text of a case.
pub(super) const PACKETS: &str = "packets";
pub(super) const LEFT: &str = "left";
pub(super) const DIED: &str = "died";

/// Reads the lines of the part `name`. The function `line` gets the words of a line and returns
/// what they mean; `None` if the line is wrong.
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

/// If the next word begins with `mark`, takes the word and returns it without `mark`; otherwise
/// returns `None` and leaves the word.
fn marked<'t>(words: &mut Vec<&'t str>, mark: char) -> Option<&'t str> {
    let rest = words.last()?.strip_prefix(mark)?;
    words.pop();
    Some(rest)
}

/// Reads the packets that came, from the part that [`compact`](super::compact()) wrote.
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

/// Reads the packets that left and those that were dropped, from the parts that
/// [`compact`](super::compact()) wrote.
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
