//! Keeps small cases on which the kernel and we agree: those that reach most.

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

/// A case that reaches less than this part of what the kind's cases reach is not worth its bytes.
const WORTH: f64 = 0.002;
/// For each case that is to be kept, so many are put to the kernel at most.
const TRIES: usize = 4;
/// A case that takes longer, twice, is none for a test.
const SLOW: Duration = Duration::from_millis(60);

/// Chooses cases, and writes them.
#[derive(Debug)]
pub struct Keeper<'a> {
    /// Who is asked.
    pub oracle: &'a dyn Kernel,
    /// Where cases are written.
    pub folder: &'a Path,
    /// Where those are written that differ.
    pub found: &'a Path,
    /// How many of each kind at most.
    pub each: usize,
    /// Those in which chance shows, and no others.
    pub chance: bool,
}

/// A case that may be kept.
struct Candidate {
    plan: Plan,
    reached: Reached,
    /// Chance has a part in it.
    drawn: bool,
}

impl Keeper<'_> {
    /// Draws the cases of these numbers of each kind, and keeps those that are worth it. True: none
    /// that was put to the kernel differs.
    ///
    /// # Errors
    ///
    /// [`Silent`]: the kernel cannot be asked, or this program counts nothing.
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
                // Those with chance have to be drawn again as they are, whatever our qdiscs do.
                it.drawn == self.chance && (!it.drawn || it.plan.changes.is_empty())
            };
            (*kind, plans.filter_map(candidate).filter(fits).collect::<Vec<_>>())
        };
        // One after the other, for the counters are those of the whole program.
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

    /// Keeps the best of a kind, those that `ask` takes, which gives their size, or says how they
    /// differ; gives how many differ.
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
            "{}: {kept} kept, {bytes} bytes; they reach {:.1} % of what all reach; {differ} differ",
            kind.id,
            100.0 * known.len() as f64 / all.len().max(1) as f64
        );
        differ
    }

    fn put(&self, plan: &Plan, text: &str) -> Result<(), String> {
        let at = self.folder.join(format!("{}.txt", name(plan)));
        fs::write(&at, text).map_err(|error| format!("{}: {error}", at.display()))
    }

    /// Puts a case to the kernel, and writes it if both agree; gives its size.
    fn ask(&self, plan: &Plan) -> Result<Option<usize>, String> {
        let name = name(plan);
        let draws = if plan.compared() == Compared::Hash { HASH_DRAWS } else { 1 };
        match exactly(plan, self.oracle, draws) {
            Err(why) => Err(format!("{name}: no answer: {why}")),
            Ok(Exactly::Nothing) => Ok(None),
            Ok(Exactly::Same(text)) => {
                let text = compact(&name, &text).map_err(|error| error.to_string())?;
                self.put(plan, &text)?;
                Ok(Some(text.len()))
            }
            // Chance has a part in it all the same.
            Ok(Exactly::Differs(..)) if plan.compared() == Compared::Chance => Ok(None),
            Ok(Exactly::Differs(why, text)) => {
                let at = self.found.join(format!("{name}.txt"));
                fs::write(&at, &text).map_err(|error| format!("{}: {error}", at.display()))?;
                Err(format!("{name}: DIFFERS: {}; {}", why.join("; "), at.display()))
            }
        }
    }
}

/// What a case is called.
fn name(plan: &Plan) -> String {
    format!("{}-{}", plan.lines.first().map_or("", |line| line.kind), plan.seed)
}

/// A case that reaches something, and that takes no time: a `cbs` may
/// ask again each nanosecond for hours.
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
