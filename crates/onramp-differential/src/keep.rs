//! Selects small cases on which the kernel and Onramp agree, and writes them to files as regression
//! tests. Prefers cases that reach the most code.

mod draws;

use std::collections::HashSet;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use onramp_sim::recording::{Case, compact};

use crate::generate::{Size, sized};
use crate::judge::{Exactly, HASH_DRAWS, exactly};
use crate::kinds::Kind;
use crate::oracle::{Kernel, Silent};
use crate::plan::{Compared, Plan};
use crate::reach::{Reached, counts, reached};

/// A case is not worth a file if it reaches less than this fraction of new code: places that no
/// kept case reaches, out of all places that the cases of its kind reach.
const WORTH: f64 = 0.002;
/// The largest number of cases that are run on the kernel for each case that is to be kept.
const TRIES: usize = 4;
/// A case is too slow for a regression test if running it twice on our qdiscs takes longer than
/// this.
const SLOW: Duration = Duration::from_millis(60);

/// Selects cases and writes them to files.
#[derive(Debug)]
pub struct Keeper<'a> {
    /// The kernel that runs the cases.
    pub oracle: &'a dyn Kernel,
    /// The folder for the cases that are kept.
    pub folder: &'a Path,
    /// The folder for cases on which the kernel and Onramp differ.
    pub found: &'a Path,
    /// The largest number of cases to keep for each kind of qdisc.
    pub each: usize,
    /// If true, keep only cases whose result depends on random choices. If false, keep only the
    /// other cases.
    pub chance: bool,
}

/// A case that may be kept as a regression test.
struct Candidate {
    plan: Plan,
    reached: Reached,
    /// Whether the result of the case depends on random choices.
    drawn: bool,
}

impl Keeper<'_> {
    /// Generates the cases with these seeds for each kind, and keeps those that are worth it.
    /// Returns false if a case that was run on the kernel differs.
    ///
    /// # Errors
    ///
    /// Fails with [`Silent`] if the kernel cannot be asked, or if this program was built without
    /// coverage counters.
    pub fn keep(&self, kinds: &[&'static Kind], seeds: Range<u64>) -> Result<bool, Silent> {
        if !counts() {
            let why = "built without counters: run `cargo xtask differential --keep DIR`";
            return Err(Silent(why.into()));
        }
        for folder in [self.folder, self.found] {
            fs::create_dir_all(folder)
                .map_err(|error| Silent(format!("{}: {error}", folder.display())))?;
        }
        let draw = |kind: &&'static Kind| {
            let plans = seeds.clone().map(|seed| sized(seed, kind, &Size::SMALL));
            let fits = |it: &Candidate| {
                // The file of a case with random choices has only its seed, from which the case is
                // generated again later. The times of changes depend on how our qdiscs behave, so a
                // case with changes could come out differently then.
                it.drawn == self.chance && (!it.drawn || it.plan.changes.is_empty())
            };
            (*kind, plans.filter_map(candidate).filter(fits).collect::<Vec<_>>())
        };
        // Run the cases one after the other, because the coverage counters count for the whole
        // process.
        let drawn: Vec<_> = kinds.iter().map(draw).collect();
        let state = Mutex::new((drawn, 0));
        let lock = || state.lock().unwrap_or_else(|broken| broken.into_inner());
        let jobs = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        std::thread::scope(|scope| {
            for _ in 0..jobs {
                scope.spawn(|| {
                    let take = || lock().0.pop();
                    while let Some((kind, candidates)) = take() {
                        let told = match self.chance {
                            true => self.choose_draws(kind, candidates),
                            false => self.best(kind, candidates, |plan| self.ask(plan)),
                        };
                        lock().1 += told;
                    }
                });
            }
        });
        let differ = lock().1;
        Ok(differ == 0)
    }

    /// Keeps the best cases of a kind: those that reach the most code that no kept case reaches.
    /// Calls `ask` with the best case that is left, again and again. `ask` returns the size of the
    /// case's file in bytes, `None` if the case cannot be kept, or an error that says how the case
    /// differs from the kernel. Returns the number of cases that differ.
    fn best(
        &self,
        kind: &Kind,
        mut candidates: Vec<Candidate>,
        ask: impl Fn(&Plan) -> Result<Option<usize>, String>,
    ) -> usize {
        let all: HashSet<u32> = candidates.iter().flat_map(|it| &it.reached).copied().collect();
        let (mut known, mut kept, mut differ, mut bytes) = (HashSet::new(), 0, 0, 0);
        for _ in 0..self.each * TRIES {
            let news = |it: &Candidate| it.reached.iter().filter(|at| !known.contains(*at)).count();
            let best = candidates.iter().enumerate().max_by_key(|(_, it)| news(it));
            let Some((at, best)) = best else { break };
            if kept == self.each || (news(best) as f64) < WORTH * all.len() as f64 {
                break;
            }
            let Candidate { plan, reached, .. } = candidates.swap_remove(at);
            match ask(&plan) {
                Ok(Some(size)) => {
                    known.extend(reached);
                    kept += 1;
                    bytes += size;
                }
                Ok(None) => {}
                Err(why) => {
                    println!("{why}");
                    differ += 1;
                }
            }
        }
        println!(
            "{}: {kept} kept, {bytes} bytes; these reach {:.1} % of the code that all cases reach; \
             {differ} differ",
            kind.id,
            100.0 * known.len() as f64 / all.len().max(1) as f64
        );
        differ
    }

    fn put(&self, plan: &Plan, text: &str) -> Result<(), String> {
        let at = self.folder.join(format!("{}.txt", name(plan)));
        fs::write(&at, text).map_err(|error| format!("{}: {error}", at.display()))
    }

    /// Runs a case on the kernel, and writes the case to a file if the kernel and Onramp agree.
    /// Returns the size of the file in bytes.
    fn ask(&self, plan: &Plan) -> Result<Option<usize>, String> {
        let name = name(plan);
        let draws = if plan.compared() == Compared::Hash { HASH_DRAWS } else { 1 };
        match exactly(plan, self.oracle, draws) {
            Err(why) => Err(format!("{name}: no answer from the kernel: {why}")),
            Ok(Exactly::Nothing) => Ok(None),
            Ok(Exactly::Same(text)) => {
                let text = compact(&name, &text).map_err(|error| error.to_string())?;
                self.put(plan, &text)?;
                Ok(Some(text.len()))
            }
            // The case has an option that makes random choices, although two of our runs with
            // different seeds gave the same result. So the difference from the kernel may be
            // chance.
            Ok(Exactly::Differs(..)) if plan.compared() == Compared::Chance => Ok(None),
            Ok(Exactly::Differs(why, text)) => {
                let at = self.found.join(format!("{name}.txt"));
                fs::write(&at, &text).map_err(|error| format!("{}: {error}", at.display()))?;
                Err(format!("{name}: DIFFERS: {}; {}", why.join("; "), at.display()))
            }
        }
    }
}

/// Returns the name of a case: the kind of its root qdisc and its seed.
fn name(plan: &Plan) -> String {
    format!("{}-{}", plan.lines.first().map_or("", |line| line.kind), plan.seed)
}

/// Runs a case on our qdiscs, and returns it with the code that it reaches. Returns `None` if the
/// case reaches no code or is too slow: a `cbs` may ask to be called again each nanosecond for
/// hours of virtual time.
fn candidate(plan: Plan) -> Option<Candidate> {
    let tc: String = plan.lines.iter().map(|line| format!("{line}\n")).collect();
    let made: Vec<_> = plan.changes.iter().map(|(at, _)| (*at, *at)).collect();
    let text = plan.text(&tc, &made, "event,time_ns,idx,ecn,reason\n");
    let play = || {
        let case = Case::parse("planned", &text).ok()?;
        Some((case.play(1), case.listing(1)))
    };
    #[expect(clippy::disallowed_methods, reason = "a tool that chooses tests may look at a clock")]
    let begun = Instant::now();
    let (first, reached) = reached(play);
    let (run, _) = first.filter(|_| begun.elapsed() < SLOW)?;
    let case = Case::parse("planned", &text).ok()?;
    let drawn = plan.compared() == Compared::Chance && (2..6).any(|seed| case.play(seed) != run);
    Some(Candidate { plan, reached, drawn })
}
