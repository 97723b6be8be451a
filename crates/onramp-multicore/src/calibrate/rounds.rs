//! Measurements in rounds: short, again and again in changing order, so that a disturbance meets
//! some rounds of each quantity and not all rounds of one.

use std::collections::BTreeMap;
use std::{fmt, io, thread};

use nix::sys::resource::{UsageWho, getrusage};
use real_link::Clock as _;
use real_link::dev::{MonotonicClock, pin_thread};

/// Number of rounds of each quantity.
pub(super) const ROUNDS: usize = 60;
/// Least number of rounds that a result needs.
const ROUNDS_MIN: usize = 20;
/// Time after which the measurement ends, however many rounds counted, nanoseconds.
const LIMIT_NS: u64 = 30_000_000_000;

/// Why this machine could not be measured.
#[derive(Debug)]
#[non_exhaustive]
pub enum NotMeasured {
    /// The system refused something that a measurement needs.
    System(io::Error),
    /// Other programs took the processor away in too many rounds of this quantity.
    Crowded(&'static str),
    /// The simulated machine, which tells what is charged already, failed.
    Simulation(String),
}

impl fmt::Display for NotMeasured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(error) => write!(f, "the system refuses to be measured: {error}"),
            Self::Crowded(name) => {
                write!(f, "other programs disturb the measurement of {name}: let them end first")
            }
            Self::Simulation(why) => write!(f, "the simulated machine fails: {why}"),
        }
    }
}

impl std::error::Error for NotMeasured {}

impl From<io::Error> for NotMeasured {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// The result of a round: a value for each name of the quantity. `None` if it does not count.
pub(super) type Round = Result<Option<Vec<f64>>, NotMeasured>;

/// Something that is measured in rounds, and gives one or several values in each.
pub(super) struct Quantity<'a> {
    names: &'static [&'static str],
    round: Box<dyn FnMut(usize) -> Round + 'a>,
}

impl<'a> Quantity<'a> {
    /// `round` gets the number of the round.
    pub(super) fn new(
        names: &'static [&'static str],
        round: impl FnMut(usize) -> Round + 'a,
    ) -> Self {
        Self { names, round: Box::new(round) }
    }
}

/// The values of all rounds, by name.
#[derive(Debug, Default)]
pub(super) struct Values(BTreeMap<&'static str, Vec<f64>>);

impl Values {
    /// Returns the value below which a part of all rounds lies; `None` if nothing was measured.
    pub(super) fn at(&self, name: &str, part: f64) -> Option<f64> {
        let mut values = self.0.get(name)?.clone();
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a place in a short list"
        )]
        let place = (last as f64 * part).round() as usize;
        values.get(place.min(last)).copied()
    }

    /// Returns the 10th and the 90th percentile.
    pub(super) fn ends(&self, name: &str) -> Option<[f64; 2]> {
        Some([self.at(name, 0.1)?, self.at(name, 0.9)?])
    }
}

/// Measures all quantities. Each round begins with another one.
pub(super) fn measure(
    quantities: &mut [Quantity<'_>],
    progress: &mut dyn FnMut(&str),
) -> Result<Values, NotMeasured> {
    measure_until(now() + LIMIT_NS, quantities, progress)
}

fn measure_until(
    until: u64,
    quantities: &mut [Quantity<'_>],
    progress: &mut dyn FnMut(&str),
) -> Result<Values, NotMeasured> {
    let mut values = Values::default();
    let count = |values: &Values, quantity: &Quantity<'_>| {
        values.0.get(quantity.names[0]).map_or(0, Vec::len)
    };
    for round in 0.. {
        let least = quantities.iter().map(|quantity| count(&values, quantity)).min();
        let Some(least) = least.filter(|least| *least < ROUNDS && now() < until) else { break };
        progress(&format!("round {} of {ROUNDS}", least + 1));
        quantities.rotate_left(usize::from(round > 0));
        for quantity in &mut *quantities {
            if count(&values, quantity) >= ROUNDS {
                continue;
            }
            for (name, value) in
                quantity.names.iter().zip((quantity.round)(round)?.into_iter().flatten())
            {
                values.0.entry(name).or_default().push(value);
            }
        }
    }
    match quantities.iter().find(|quantity| count(&values, quantity) < ROUNDS_MIN) {
        Some(quantity) => Err(NotMeasured::Crowded(quantity.names[0])),
        None => Ok(values),
    }
}

/// Runs `f` in a thread of its own on a processor.
pub(super) fn on<R: Send>(
    cpu: usize,
    f: impl FnOnce() -> Result<R, NotMeasured> + Send,
) -> Result<R, NotMeasured> {
    let [result] = together([cpu], [f])?;
    Ok(result)
}

/// Runs each function in a thread of its own on its processor, at the same time.
pub(super) fn together<R: Send, F: FnOnce() -> Result<R, NotMeasured> + Send, const N: usize>(
    cpus: [usize; N],
    functions: [F; N],
) -> Result<[R; N], NotMeasured> {
    // A thread that cannot be pinned must not let the others wait for it.
    for cpu in cpus {
        thread::scope(|scope| scope.spawn(move || pin_thread(cpu)).join())
            .map_err(|_| io::Error::other("a thread panicked"))??;
    }
    thread::scope(|scope| {
        let mut cpus = cpus.into_iter();
        let threads = functions.map(|function| {
            let cpu = cpus.next().unwrap_or_default();
            scope.spawn(move || {
                pin_thread(cpu)?;
                function()
            })
        });
        let results = threads.map(|thread| {
            thread.join().map_err(|_| io::Error::other("a thread panicked").into()).flatten()
        });
        let mut failed = None;
        let values = results.map(|result| result.map_err(|error| failed = Some(error)).ok());
        let all: Option<Vec<R>> = values.into_iter().collect();
        match (all.and_then(|all| all.try_into().ok()), failed) {
            (Some(all), None) => Ok(all),
            (_, failed) => {
                Err(failed.unwrap_or_else(|| io::Error::other("a thread is missing").into()))
            }
        }
    })
}

/// How often the calling thread has lost its processor to another thread.
pub(super) fn losses() -> Result<i64, NotMeasured> {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).map_err(io::Error::from)?;
    Ok(usage.involuntary_context_switches())
}

/// The time in nanoseconds.
pub(super) fn now() -> u64 {
    MonotonicClock.now().0
}

/// Returns how many nanoseconds each of `count` steps of `work` took; `None` if the thread lost its
/// processor meanwhile.
pub(super) fn timed(count: u32, work: impl FnOnce()) -> Result<Option<f64>, NotMeasured> {
    let before = losses()?;
    let from = now();
    work();
    let took = now() - from;
    #[expect(clippy::cast_precision_loss, reason = "rounds are short")]
    let each = took as f64 / f64::from(count);
    Ok((losses()? == before).then_some(each))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_quantity_gets_its_rounds_in_changing_order() {
        let order = std::cell::RefCell::new(Vec::new());
        let quantity = |name: &'static [&'static str]| {
            let order = &order;
            Quantity::new(name, move |round| {
                order.borrow_mut().push((round, name[0]));
                // Every third round of `b` does not count.
                let counts = name[0] != "b" || !round.is_multiple_of(3);
                #[expect(clippy::cast_precision_loss, reason = "a small number")]
                let value = round as f64;
                Ok(counts.then(|| vec![value; name.len()]))
            })
        };
        let mut told = Vec::new();
        let mut all = [quantity(&["a", "a2"]), quantity(&["b"]), quantity(&["c"])];
        let values = measure(&mut all, &mut |text| told.push(text.to_owned())).expect("measured");
        assert_eq!(values.0["a"], values.0["a2"]);
        assert!(values.0.values().all(|values| values.len() == ROUNDS));
        assert_eq!(&told[..2], ["round 1 of 60"; 2], "b did not count");
        drop(all);
        let firsts: Vec<_> = (0..4)
            .filter_map(|at| order.borrow().iter().find(|(round, _)| *round == at).copied())
            .collect();
        assert_eq!(firsts, [(0, "a"), (1, "b"), (2, "c"), (3, "a")]);
    }

    #[test]
    fn a_quantity_that_never_counts_is_named() {
        let mut all = [Quantity::new(&["a"], |_| Ok(None))];
        let why = measure_until(now(), &mut all, &mut |_| ()).expect_err("nothing was measured");
        assert!(why.to_string().contains("measurement of a"), "{why}");
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_rounds() {
        let mut values = Values::default();
        values.0.insert("x", (0..=10).rev().map(f64::from).collect());
        assert_eq!((values.ends("x"), values.at("x", 0.5)), (Some([1.0, 9.0]), Some(5.0)));
        assert_eq!(values.ends("y"), None);
    }

    #[test]
    fn threads_run_where_they_are_told() {
        let here = || Ok(real_link::dev::current_cpu());
        let first = allowed_cpu();
        assert_eq!(together([first; 2], [here; 2]).expect("pinned"), [Some(first); 2]);
        assert!(matches!(on(usize::MAX, here), Err(NotMeasured::System(_))));
    }

    /// A processor that the test may use.
    fn allowed_cpu() -> usize {
        real_link::dev::current_cpu().expect("the kernel tells it")
    }
}
