//! Changes of a link at given times, and the files that describe them.

use std::sync::Arc;
use std::time::Duration;

use onramp_core::{Instant, Setup};

use crate::Schedule;
use crate::change::Change;
use crate::trace_error::TraceError;

/// Least time after which steps may begin anew: shorter laps would keep the wire's thread busy with
/// changes alone.
const LEAST_LAP: Duration = Duration::from_millis(1);

/// Changes of one direction, each at a time from the beginning.
#[derive(Clone, Debug, Default)]
pub struct Steps {
    steps: Arc<Vec<Step>>,
    repeat: Option<Duration>,
}

#[derive(Clone, Debug)]
struct Step {
    at: Duration,
    changes: Vec<Change>,
    /// Number of the step's line, from 1.
    line: usize,
}

impl Steps {
    /// Returns the steps of these changes, each with its time. With `repeat`, the steps begin anew
    /// at this time, for ever.
    ///
    /// # Errors
    ///
    /// [`TraceError`] names the number of the step, from 1, whose time is less than that of the
    /// step before; or the one behind the last, if the time of `repeat` is, or is less than one
    /// millisecond.
    pub fn new(
        steps: impl IntoIterator<Item = (Duration, Vec<Change>)>,
        repeat: Option<Duration>,
    ) -> Result<Self, TraceError> {
        let steps = (1..).zip(steps).map(|(line, (at, changes))| Step { at, changes, line });
        let steps: Vec<_> = steps.collect();
        let times = steps.iter().map(|step| step.at).chain(repeat);
        let mut before = Duration::ZERO;
        for (number, at) in (1..).zip(times) {
            TraceError::unless_later(number, before, at)?;
            before = at;
        }
        if let Some(at) = repeat {
            repeats_at(steps.len() + 1, at)?;
        }
        Ok(Self { steps: Arc::new(steps), repeat })
    }
}

/// Checks that steps may begin anew at this time.
fn repeats_at(line: usize, at: Duration) -> Result<(), TraceError> {
    if at >= LEAST_LAP {
        return Ok(());
    }
    let (at, least) = (at.as_secs_f64(), LEAST_LAP.as_secs_f64());
    let why = format!("the steps would repeat every {at} s: repeat them at {least} s or later");
    Err(TraceError::at(line, why))
}

/// What a link does over time: steps, or a schedule of chances.
#[derive(Clone, Debug)]
pub enum Trace {
    /// Changes at given times.
    Steps(Steps),
    /// A recorded capacity.
    Schedule(Schedule),
}

/// A direction of a wire, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
    /// Both directions.
    Both,
}

impl Which {
    /// Reads `up`, `down` or `both`.
    #[must_use]
    pub fn read(word: &str) -> Option<Self> {
        [("up", Self::Up), ("down", Self::Down), ("both", Self::Both)]
            .into_iter()
            .find_map(|(name, which)| (name == word).then_some(which))
    }

    /// Whether these are, in this order, up and down.
    #[must_use]
    pub fn each(self) -> [bool; 2] {
        [self != Self::Down, self != Self::Up]
    }
}

impl Trace {
    /// Reads a trace for one direction or both. Returns the trace of each direction, first up. `#`
    /// begins a comment.
    ///
    /// If the first line is a single number, the text is a [`Schedule`] in the format of Mahimahi.
    /// Otherwise each line is a step:
    ///
    /// ```text
    /// # seconds  [up | down | both]  what changes
    /// 0    rate 10mbit delay 20ms loss 1%
    /// 5    down rate 1mbit
    /// 7    link down
    /// 9    link up
    /// 12   qdisc cake bandwidth 2mbit then netem delay 50ms
    /// 20   repeat
    /// ```
    ///
    /// Without `up` or `down`, a step is for all directions of the trace. `repeat`, as the last
    /// line, begins anew, one millisecond after the beginning or later.
    ///
    /// # Errors
    ///
    /// [`TraceError`] names the line, and says what is wrong with it.
    pub fn read(text: &str, which: Which) -> Result<[Option<Self>; 2], TraceError> {
        let lines = (1..).zip(text.lines()).filter_map(|(number, line)| {
            let words: Vec<_> = line.split('#').next()?.split_ascii_whitespace().collect();
            (!words.is_empty()).then_some((number, words))
        });
        let lines: Vec<(usize, Vec<&str>)> = lines.collect();
        let Some((_, first)) = lines.first() else {
            return Err(TraceError::at(1, "the trace is empty".to_owned()));
        };
        if first.len() == 1 && first[0].bytes().all(|byte| byte.is_ascii_digit()) {
            let schedule = Self::Schedule(schedule(&lines)?);
            return Ok(which.each().map(|is_its| is_its.then(|| schedule.clone())));
        }
        let both = steps(&lines, which)?;
        let each = which.each().into_iter().zip(both);
        let mut each = each.map(|(is_its, steps)| is_its.then_some(Self::Steps(steps)));
        Ok([each.next().flatten(), each.next().flatten()])
    }

    /// Checks that a direction with the qdiscs `setup` can do all that the trace says. `mtu` is the
    /// largest packet in bytes, Ethernet header included.
    ///
    /// # Errors
    ///
    /// [`TraceError`] names the line of the first step that cannot be done.
    pub fn check(&self, setup: &Setup, mtu: u32) -> Result<(), TraceError> {
        self.check_after(&[], setup, mtu)
    }

    /// Does the same for a direction in which `changes` are made before the trace begins. A change
    /// that cannot be made is left out: the call that makes it returns its error.
    ///
    /// # Errors
    ///
    /// As those of [`check`](Self::check).
    pub fn check_after(
        &self,
        changes: &[Change],
        setup: &Setup,
        mtu: u32,
    ) -> Result<(), TraceError> {
        let Self::Steps(steps) = self else { return Ok(()) };
        let mut setup = setup.clone();
        for change in changes {
            if let Ok(Some(changed)) = change.apply(&setup, mtu, false) {
                setup = changed;
            }
        }
        // A lap begins with what the one before has left. The third does what the second does.
        for _ in 0..if steps.repeat.is_some() { 2 } else { 1 } {
            for step in &*steps.steps {
                for change in &step.changes {
                    let changed = change.apply(&setup, mtu, false);
                    let changed = changed.map_err(|error| TraceError::at(step.line, error.0))?;
                    setup = changed.unwrap_or(setup);
                }
            }
        }
        Ok(())
    }
}

fn schedule(lines: &[(usize, Vec<&str>)]) -> Result<Schedule, TraceError> {
    let time = |(number, words): &(usize, Vec<&str>)| match words[..] {
        [word] => word.parse::<u64>().map_err(|_| {
            let why = format!("`{word}`: expected a whole number of milliseconds");
            TraceError::at(*number, why)
        }),
        _ => Err(TraceError::at(*number, "expected one number, of milliseconds".to_owned())),
    };
    let times = lines.iter().map(time).collect::<Result<Vec<_>, _>>()?;
    Schedule::new(times).map_err(|error| {
        let line = lines.get(error.line - 1).map_or(error.line, |(number, _)| *number);
        TraceError { line, ..error }
    })
}

fn steps(lines: &[(usize, Vec<&str>)], which: Which) -> Result<[Steps; 2], TraceError> {
    let mut each = [Vec::new(), Vec::new()];
    let (mut repeat, mut before) = (None, Duration::ZERO);
    for (number, words) in lines {
        let wrong = |why: String| TraceError::at(*number, why);
        if repeat.is_some() {
            return Err(wrong("there is a line behind `repeat`".to_owned()));
        }
        let seconds = words[0].parse().ok().and_then(|own| Duration::try_from_secs_f64(own).ok());
        let at = seconds.ok_or_else(|| {
            wrong(format!("`{}`: expected a time in seconds, such as 1.5", words[0]))
        })?;
        TraceError::unless_later(*number, before, at)?;
        before = at;
        let (own, rest) = match words.get(1).and_then(|word| Which::read(word)) {
            Some(own) => (own, &words[2..]),
            None => (which, &words[1..]),
        };
        if which != Which::Both && own == Which::Both {
            let only = if which == Which::Up { "up" } else { "down" };
            return Err(wrong(format!("leave `both` out: this trace is for {only} only")));
        }
        if which != Which::Both && own != which {
            return Err(wrong(format!("`{}`: the trace is for the other direction", words[1])));
        }
        if rest == ["repeat"] && rest.len() + 1 == words.len() {
            repeats_at(*number, at)?;
            repeat = Some(at);
            continue;
        }
        let changes = Change::read(rest).map_err(|why| match rest {
            [] if own != Which::Both => wrong(format!("{why}; `link {}` cuts it", "down")),
            _ => wrong(why.0),
        })?;
        for (steps, _) in each.iter_mut().zip(own.each()).filter(|(_, is_its)| *is_its) {
            steps.push(Step { at, changes: changes.clone(), line: *number });
        }
    }
    Ok(each.map(|steps| Steps { steps: Arc::new(steps), repeat }))
}

/// Steps that run.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    steps: Steps,
    /// The instant that is the time 0 of the present lap.
    lap: Instant,
    /// Index of the next step of the lap; may be the number of steps.
    next: usize,
}

impl Running {
    pub(crate) const fn new(steps: Steps, origin: Instant) -> Self {
        Self { steps, lap: origin, next: 0 }
    }

    /// Returns the instant of the next step, or `None` if there is none.
    pub(crate) fn next(&self) -> Option<Instant> {
        let first = self.steps.steps.first()?;
        match self.steps.steps.get(self.next) {
            Some(step) => Some(self.lap + step.at),
            None => Some(self.lap + self.steps.repeat? + first.at),
        }
    }

    /// Leaves out the laps that have not begun and are over by `now`, except the last of them: a
    /// lap does the same as the one before it. After a suspend, there may be very many.
    pub(crate) fn skip(&mut self, now: Instant) {
        let Some(repeat) = self.steps.repeat.filter(|_| self.next == self.steps.steps.len()) else {
            return;
        };
        let repeat_ns = u64::try_from(repeat.as_nanos()).unwrap_or(u64::MAX);
        // One of the laps that are over is the present one, and one is the last.
        let skipped = (now.since(self.lap) / repeat_ns).saturating_sub(2);
        self.lap = self.lap.after(skipped * repeat_ns);
    }

    /// Goes on to the step behind the next, and returns the changes of the next and its line.
    pub(crate) fn take(&mut self) -> (Vec<Change>, usize) {
        if self.next == self.steps.steps.len() {
            self.lap = self.lap + self.steps.repeat.unwrap_or_default();
            self.next = 0;
        }
        let step = &self.steps.steps[self.next];
        self.next += 1;
        (step.changes.clone(), step.line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(trace: Option<Trace>, most: usize) -> Vec<(u64, usize)> {
        let Some(Trace::Steps(steps)) = trace else { return Vec::new() };
        let mut running = Running::new(steps, Instant(5_000_000));
        let mut times = Vec::new();
        while let Some(at) = running.next().filter(|_| times.len() < most) {
            times.push((at.0 / 1_000_000 - 5, running.take().1));
        }
        times
    }

    #[test]
    fn steps_come_at_their_times_and_again() {
        let text = "# a walk\n0 rate 1mbit delay 5ms\n\n1.5 up link down # a tunnel\n2 up link up\n\
                    3 repeat\n";
        let [up, down] = Trace::read(text, Which::Both).expect("a trace");
        let seen = times(up, 7);
        assert_eq!(
            seen,
            [(0, 2), (1500, 4), (2000, 5), (3000, 2), (4500, 4), (5000, 5), (6000, 2)]
        );
        assert_eq!(times(down, 3), [(0, 2), (3000, 2), (6000, 2)]);
        let [up, down] = Trace::read("1 link down\n2 link up", Which::Down).expect("a trace");
        assert!(up.is_none());
        assert_eq!(times(down, 9), [(1000, 1), (2000, 2)]);
        let [up, down] = Trace::read("1\n3\n", Which::Up).expect("a trace");
        assert!(matches!(up, Some(Trace::Schedule(_))) && down.is_none());
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, line, why) in [
            ("", 1, "empty"),
            ("0 rate 1mbit\nx rate 1mbit", 2, "seconds"),
            ("-1 rate 1mbit", 1, "seconds"),
            ("2 rate 1mbit\n1 rate 1mbit", 2, "must not fall"),
            ("0 rat 1mbit", 1, "rate, delay"),
            ("0 rate", 1, "expected one value"),
            ("0 down", 1, "link down"),
            ("0 link", 1, "up or down"),
            ("0 qdisc netem delay 5", 1, "unit"),
            ("0 qdisc pfifo then nonsense", 1, "nonsense"),
            ("0 repeat", 1, "at 0.001 s or later"),
            ("0 link up\n0.00001 repeat", 2, "at 0.001 s or later"),
            ("0 link up\n0.000999 repeat", 2, "at 0.001 s or later"),
            ("1 link up\n2 repeat\n3 link down", 3, "behind"),
            ("\n5\n4", 3, "must not fall"),
            ("5\n\n6 rate 1mbit", 3, "one number"),
            ("0\n0", 2, "greater than 0"),
        ] {
            let error = Trace::read(text, Which::Both).expect_err(text);
            assert!(error.line() == line && error.to_string().contains(why), "{text:?}: {error}");
        }
        let error = Trace::read("0 down link down", Which::Up).expect_err("the other way");
        assert!(error.to_string().contains("other direction"), "{error}");
        for (which, only) in [(Which::Up, "for up only"), (Which::Down, "for down only")] {
            let error = Trace::read("0 both link down", which).expect_err("one way");
            assert!(error.to_string().contains("leave `both` out"), "{error}");
            assert!(error.to_string().contains(only), "{error}");
        }
        for (repeat_ns, is_allowed) in [(0, false), (999_999, false), (1_000_000, true)] {
            let steps = [(Duration::ZERO, vec![Change::Link(true)])];
            let made = Steps::new(steps, Some(Duration::from_nanos(repeat_ns)));
            assert_eq!(
                made.map(drop).map_err(|error| error.line()),
                [Err(2), Ok(())][usize::from(is_allowed)]
            );
        }
        Trace::read("0 link up\n0.001 repeat", Which::Both).expect("a millisecond is allowed");
    }

    /// A lap begins with what the one before has left: a step that only the first lap can make
    /// would break the wire in the middle.
    #[test]
    fn a_later_lap_is_checked_too() {
        let qdisc = "qdisc tbf rate 1mbit burst 5kb peakrate 2mbit mtu 1514 latency 50ms";
        let plain = crate::series(&[crate::PLAIN]).expect("a qdisc");
        let check = |text: &str| {
            let [up, _] = Trace::read(text, Which::Up).expect("a trace");
            up.expect("it is for this direction").check(&plain, 1_514)
        };
        check(&format!("0 rate 5mbit\n1 {qdisc}\n")).expect("one lap");
        let error = check(&format!("0 rate 5mbit\n1 {qdisc}\n2 repeat\n")).expect_err("two");
        assert!(error.line() == 1 && error.to_string().contains("peakrate"), "{error}");
        check("0 rate 5mbit\n1 qdisc cake bandwidth 1mbit\n2 repeat\n").expect("each lap");
    }

    /// After a long pause, the laps that are over are left out, except the last; and then the steps
    /// come at their times again.
    #[test]
    fn laps_that_are_over_are_skipped() {
        let [up, _] = Trace::read("0 link down\n1 link up\n3 repeat", Which::Up).expect("a trace");
        let Some(Trace::Steps(steps)) = up else { panic!("they are steps") };
        const SEC: u64 = 1_000_000_000;
        for begun in [0, 1, 2] {
            let mut running = Running::new(steps.clone(), Instant(7));
            for _ in 0..begun {
                running.take();
            }
            // A million laps and two seconds later, in the middle of a lap.
            let now = Instant(7 + 3_000_002 * SEC);
            let mut times = Vec::new();
            loop {
                running.skip(now);
                let Some(at) = running.next().filter(|at| *at <= now) else { break };
                times.push(((at.0 - 7) / SEC, running.take().1));
                assert!(times.len() < 10, "all laps are replayed: {times:?}");
            }
            let whole = [(2_999_997, 1), (2_999_998, 2), (3_000_000, 1), (3_000_001, 2)];
            assert_eq!(times[2 - begun..], whole, "{begun} steps begun");
            assert_eq!(running.next(), Some(Instant(7 + 3_000_003 * SEC)));
        }
    }
}
