//! A thread that changes the qdiscs of the link while others send.

use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use onramp::Link;
use onramp_machine::{hook, thread};

use super::{Load, LoadError, Times, now_ns};
use crate::charged::{CHANGES, HELD_MOST};

/// The limits that the command sets in turn, packets: each port may hold more than all senders
/// together have in flight through it.
const LIMITS: [u64; 2] = [9_000, 10_000];
/// The greatest number of changes in a second.
const MOST: u32 = 1_000_000;

/// What a thread saw that changed the qdiscs of all ports again and again.
#[derive(Clone, Debug)]
pub struct Changes {
    /// Number of all changes. Each qdisc was asked at the end, and has made as many.
    pub all: u64,
    /// How long the changes took that began in the measured time, nanoseconds: from the call until
    /// all ports had made the change.
    pub times: Histogram<u64>,
}

impl Changes {
    fn new() -> Self {
        let times = Histogram::new_with_bounds(1, 10_000_000_000, 3).expect("bounds in order");
        Self { all: 0, times }
    }

    /// Returns the limit that the change with this number sets, counted from 0.
    fn limit(number: u64) -> u64 {
        LIMITS[usize::from(number % 2 == 1)]
    }

    /// Checks that the qdisc of each port has made all changes, and has the limit of the last one.
    pub(super) fn check(&self, link: &Link) -> Result<(), LoadError> {
        let Some(last) = self.all.checked_sub(1) else { return Ok(()) };
        let wrong = |what: String| Err(LoadError::Command(what));
        for (port, views) in link.all_views() {
            let views = match views {
                Ok(views) => views,
                Err(why) => return wrong(format!("port {port} cannot be asked: {why}")),
            };
            let figure = |name: &str| {
                let value = views.first().and_then(|root| root.extra.find(name));
                value.and_then(|value| u64::try_from(value).ok())
            };
            let (want, has) =
                ((Some(self.all), Some(Self::limit(last))), (figure(CHANGES), figure(HELD_MOST)));
            if has != want {
                return wrong(format!(
                    "the qdisc of port {port} has made {:?} changes and has the limit {:?}, not \
                     {:?} and {:?}",
                    has.0, has.1, want.0, want.1
                ));
            }
        }
        Ok(())
    }
}

/// Checks how often the qdiscs are to be changed in a second.
pub(super) fn check(changes_per_second: Option<u32>) -> Result<(), String> {
    match changes_per_second {
        Some(changes) if !(1..=MOST).contains(&changes) => {
            Err(format!("changes_per_second: {changes} is not between 1 and {MOST}"))
        }
        _ => Ok(()),
    }
}

impl Load {
    /// Starts the thread that gives commands, if the load has one.
    pub(super) fn commands(
        &self,
        link: &Arc<Link>,
        times: Times,
    ) -> Option<thread::JoinHandle<Result<Changes, LoadError>>> {
        let period_ns = 1_000_000_000 / u64::from(self.changes_per_second?.max(1));
        let (load, link) = (self.clone(), link.clone());
        let spawned = thread::Builder::new()
            .name("command".to_owned())
            .spawn(move || load.command(&link, times, period_ns));
        Some(spawned.expect("simulated threads need no resources"))
    }

    /// Changes the qdiscs of all ports once in each period until the end, by the line that a user
    /// of `tc` would write. If a change takes longer than a period, the next one follows at once.
    fn command(&self, link: &Link, times: Times, period_ns: u64) -> Result<Changes, LoadError> {
        let mut changes = Changes::new();
        let mut due = times.begin;
        loop {
            thread::sleep(Duration::from_nanos(due.saturating_sub(now_ns())));
            let begins = now_ns();
            if begins >= times.until {
                return Ok(changes);
            }
            hook::work_ps(self.software.command_ps);
            let limit = Changes::limit(changes.all);
            let line = format!("qdisc change dev link root charged-{} limit {limit}", self.qdisc);
            link.change(line.as_str())
                .map_err(|why| LoadError::Command(format!("the command failed: {why}")))?;
            changes.all += 1;
            if begins >= times.from {
                changes.times.saturating_record(now_ns() - begins);
            }
            due = due.saturating_add(period_ns).max(begins);
        }
    }
}
