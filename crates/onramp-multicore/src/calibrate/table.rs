//! The table of costs: which measurement gives which parameter.

use std::rc::Rc;

use onramp_machine::{Costs, Machine};

use super::chase::{Chain, evict};
use super::games::{Game, fit};
use super::rounds::{NotMeasured, Quantity, ROUNDS, Round, Values, measure, on};
use super::shape::{Distance, Shape};
use super::steps::{Beside, Step, smt_round, switch_round, wake_round};
use super::system::{read, short};
use crate::machines::Description;
use crate::parameter::{Draw, Parameter};

/// The most processors, and the most pairs of processors at each distance, that take turns.
const CPUS_MAX: usize = 4;
const PAIRS_MAX: usize = 12;
/// Number of loads in a round: so few that another program seldom comes between.
const LOADS: usize = 5_000;
/// The same in memory which no cache holds.
const FRESH: usize = 2_000;
/// The machine whose interval an interrupt's cost gets.
const INTERRUPT_OF: &str = "xeon-6985p";
/// Time between two ticks of the kernel in its usual configuration, milliseconds.
const TICK_MS: f64 = 4.0;

/// Measures this machine: how its processors are arranged, and what each step costs. Calls
/// `progress` with what it does. Takes some seconds, in which other programs should rest.
///
/// Only the processors that the program may use are measured and described.
///
/// # Errors
///
/// [`NotMeasured`] says what keeps the machine from being measured.
pub fn calibrate(progress: &mut dyn FnMut(&str)) -> Result<Description, NotMeasured> {
    calibrate_beside(Vec::new(), progress).map(|(description, _)| description)
}

/// Measures this machine, and other quantities in the same rounds: a processor's clock changes
/// within seconds, and then everything takes longer.
pub(super) fn calibrate_beside(
    others: Vec<Quantity<'_>>,
    progress: &mut dyn FnMut(&str),
) -> Result<(Description, Values), NotMeasured> {
    let shape = Shape::ask(&read);
    progress("fills and empties the caches");
    let mut quantities = quantities(&shape)?;
    quantities.extend(others);
    let values = measure(&mut quantities, progress)?;
    progress("chooses the costs of transfers");
    let description = Table { shape: &shape, values: &values }.description()?;
    Ok((description, values))
}

/// The names of the values of a game of throws and of a walk at each distance.
fn game_names(distance: Distance) -> [&'static [&'static str]; 2] {
    match distance {
        Distance::Sibling => [&["sibling"], &["sibling walk"]],
        Distance::Near => [&["near"], &["near walk"]],
        Distance::Far => [&["far"], &["far walk"]],
        Distance::Remote => [&["remote"], &["remote walk"]],
    }
}

fn quantities(shape: &Shape) -> Result<Vec<Quantity<'static>>, NotMeasured> {
    let cpus = shape.some_cpus(CPUS_MAX);
    let here = cpus[0];
    let cpus: Rc<[usize]> = cpus.into();
    let cpu = || {
        let cpus = cpus.clone();
        move |round: usize| cpus[round % cpus.len()]
    };
    let mut quantities = Vec::new();
    for (name, step) in [
        (&["atomic"] as &[_], Step::Atomic),
        (&["fence"], Step::Fence),
        (&["pause"], Step::Hint),
        (&["clock"], Step::Clock),
    ] {
        let cpu = cpu();
        quantities.push(Quantity::new(name, move |round| step.round(cpu(round))));
    }
    let turns = cpu();
    quantities.push(Quantity::new(&["switch"], move |round| switch_round(turns(round))));
    for distance in Distance::ALL {
        let pairs = shape.pairs(distance, PAIRS_MAX);
        if !pairs.is_empty() {
            let games = [Game::Stores, Game::Walk];
            for (names, game) in game_names(distance).into_iter().zip(games) {
                let pairs = pairs.clone();
                quantities.push(Quantity::new(names, move |round| {
                    let each = game.real(pairs[round % pairs.len()], round)?;
                    Ok(each.map(|each| vec![each]))
                }));
            }
        }
    }
    // Wake-ups go to another core, if there is one.
    let others = [Distance::Near, Distance::Far, Distance::Remote, Distance::Sibling];
    let pairs = others.map(|distance| shape.pairs(distance, PAIRS_MAX));
    if let Some(pairs) = pairs.into_iter().find(|pairs| !pairs.is_empty()) {
        let wakes = move |round| wake_round(pairs[round / 2 % pairs.len()], round);
        quantities.push(Quantity::new(&["wake", "call"], wakes));
    }
    let siblings = shape.pairs(Distance::Sibling, PAIRS_MAX);
    if !siblings.is_empty() {
        let pair = move |round: usize| siblings[round % siblings.len()];
        let (work, hint) = (pair.clone(), pair);
        let names: [&[_]; 2] = [&["smt"], &["smt_spin"]];
        quantities.push(Quantity::new(names[0], move |n| smt_round(work(n), Beside::Work)));
        quantities.push(Quantity::new(names[1], move |n| smt_round(hint(n), Beside::Hint)));
    }
    let levels = Levels::of(shape);
    for (name, bytes) in
        [(&["l1"] as &[_], levels.l1), (&["l2"], levels.l2), (&["llc"], levels.llc)]
    {
        let (mut chain, cpu) = (Chain::new(bytes), cpu());
        quantities.push(Quantity::new(name, move |round| chase(cpu(round), &mut chain)));
    }
    quantities.push(fresh(&["memory"], here, here, &levels, false)?);
    if let Some(&[other, near]) = shape.pairs(Distance::Remote, 1).first() {
        quantities.push(fresh(&["memory_remote"], other, near, &levels, false)?);
        quantities.push(fresh(&["remote_clean"], other, near, &levels, true)?);
    }
    Ok(quantities)
}

/// Sizes of the buffers that lie well inside a level of the caches, and of the memory that empties
/// all caches.
struct Levels {
    l1: u64,
    l2: u64,
    llc: u64,
    all: u64,
}

impl Levels {
    fn of(shape: &Shape) -> Self {
        let Shape { l1_bytes, l2_bytes, .. } = *shape;
        let last = shape.llc_bytes.unwrap_or(0).max(l2_bytes);
        // Twice the second level, so that it holds little of use; and not more, because a virtual
        // machine may have only a part of the last level.
        let llc = if last > 2 * l2_bytes { 2 * l2_bytes } else { l2_bytes / 4 };
        let l2 = (l2_bytes / 4).max((4 * l1_bytes).min(l2_bytes / 2));
        Self { l1: l1_bytes / 4, l2, llc, all: (2 * last).min(free_memory() / 4) }
    }
}

/// Returns how much memory programs can have, bytes; 1 GiB if the system does not tell it.
fn free_memory() -> u64 {
    let text = read("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(1 << 20) << 10
}

/// Follows a chain that is in the caches of a processor.
fn chase(cpu: usize, chain: &mut Chain) -> Round {
    let each = on(cpu, move || {
        // Caches keep lines that are used again, so once around is not enough.
        (0..3).for_each(|_| chain.warm());
        chain.time(LOADS)
    })?;
    Ok(each.map(|each| vec![each]))
}

/// Makes a quantity that follows, on the processor `cpu`, a part of a chain that no cache of its
/// own socket holds. The memory is of the socket of the processor `owner`, whose caches hold it if
/// `cached`.
fn fresh<'a>(
    name: &'static [&'static str],
    owner: usize,
    cpu: usize,
    levels: &Levels,
    cached: bool,
) -> Result<Quantity<'a>, NotMeasured> {
    let bytes = (4 * ROUNDS * FRESH * 128) as u64;
    let bytes = if cached { bytes.min(levels.llc) } else { bytes };
    let all = levels.all;
    let mut chain = on(owner, || {
        let mut chain = Chain::new(bytes);
        evict(all);
        if cached {
            chain.warm();
        }
        Ok(chain)
    })?;
    let loads = if cached { chain.nodes() / (4 * ROUNDS) } else { FRESH };
    let round = move |_| Ok(on(cpu, || chain.time(loads))?.map(|each| vec![each]));
    Ok(Quantity::new(name, round))
}

/// What was measured, and where.
struct Table<'a> {
    shape: &'a Shape,
    values: &'a Values,
}

impl Table<'_> {
    fn source(&self) -> String {
        format!("measured by `onramp sim calibrate` on {}", self.shape.processor)
    }

    fn parameter(&self, [low, high]: [f64; 2], note: &str) -> Parameter {
        let note = format!("{note} The ends are the 10th and the 90th percentile of the rounds.");
        let [low, high] = [low.min(high), high.max(low)].map(short);
        let how = "measured".into();
        Parameter { low, high, unit: None, source: self.source(), how, note }
    }

    fn measured(&self, name: &'static str, note: &str) -> Result<Parameter, NotMeasured> {
        let ends = self.values.ends(name).ok_or(NotMeasured::Crowded(name))?;
        Ok(self.parameter(ends, note))
    }

    /// A value beyond that of other steps, which are part of what was measured.
    fn beyond(&self, name: &'static str, less: f64, note: &str) -> Result<Parameter, NotMeasured> {
        let ends = self.values.ends(name).ok_or(NotMeasured::Crowded(name))?;
        Ok(self.parameter(ends.map(|end| (end - less).max(0.0)), note))
    }

    fn middle(&self, name: &str) -> f64 {
        self.values.at(name, 0.5).unwrap_or(0.0)
    }

    /// The value of another parameter, because this machine has nothing of its own here.
    fn neutral(other: &Parameter, same: &str, why: &str) -> Parameter {
        Parameter {
            source: format!("same as {same}"),
            how: "derived".into(),
            note: format!("{why}: neutral value."),
            ..other.clone()
        }
    }

    /// Loads, by where the line is: l1, l2, llc, memory, memory_remote, remote_clean.
    fn loads(&self) -> Result<[Parameter; 6], NotMeasured> {
        let (shape, values) = (self.shape, self.values);
        let chase = |size: &str| format!("A load that needs the result of the one before, {size}.");
        let l1 = self.measured("l1", &chase("in a quarter of the first-level cache"))?;
        let l2 = self.measured("l2", &chase("in a quarter of the second-level cache"))?;
        let llc = match shape.llc_bytes {
            Some(_) => {
                let note = "in a buffer of twice the second-level cache";
                self.measured("llc", &chase(note))?
            }
            None => Self::neutral(&l2, "l2", "The system tells of no third level"),
        };
        let note = "in memory that was written before twice the last-level cache of other memory";
        let memory = self.measured("memory", &chase(note))?;
        let if_measured = |name, other: &Parameter, same: &str, note: &str| match values.ends(name)
        {
            Some(ends) => self.parameter(ends, note),
            None => Self::neutral(other, same, "Only one socket"),
        };
        let memory_remote =
            if_measured("memory_remote", &memory, "memory", "As memory, of another socket.");
        let remote_clean =
            if_measured("remote_clean", &llc, "llc", "Read last by a core of another socket.");
        Ok([l1, l2, llc, memory, memory_remote, remote_clean])
    }

    fn description(&self) -> Result<Description, NotMeasured> {
        let (shape, values) = (self.shape, self.values);
        let [l1, l2, llc, memory, memory_remote, remote_clean] = self.loads()?;
        let note = "One way of a ball that two hardware threads of a core throw by stores.";
        let sibling = match values.ends("sibling") {
            Some(ends) => self.parameter(ends, note),
            None => Self::neutral(&l1, "l1", "One thread a core"),
        };
        let note = "An addition to a number in the own first-level cache, less a load (`l1`).";
        let atomic = self.beyond("atomic", self.middle("l1"), note)?;
        let fence = self.measured("fence", "A fence (SeqCst) without a store before it.")?;
        let pause = self.measured("pause", "One `spin_loop` hint.")?;
        let clock = self.measured("clock", "One reading of the monotonic clock.")?;
        let context_switch = self.context_switch()?;
        let [wake, wake_call] = self.wakes(&context_switch)?;
        let one = |note: &str| Parameter {
            source: "one thread per core".into(),
            how: "derived".into(),
            ..self.parameter([1.0; 2], note)
        };
        let ratio = |name: &'static str, beside: &str| match values.ends(name) {
            Some(ends) => self.parameter(ends.map(|end| end.max(1.0)), beside),
            None => one("Neutral value."),
        };
        let lines = |bytes: u64| u32::try_from(bytes / shape.line_bytes).unwrap_or(u32::MAX);
        let mut title = format!("this machine ({})", shape.processor);
        shape.remarks.iter().for_each(|remark| title.extend(["; ", remark]));
        let near = l1.clone(); // Replaced below, as are the other two.
        let mut this = Description {
            name: "calibrated".into(),
            title,
            sockets: shape.sockets,
            clusters: shape.clusters,
            cores: shape.cores,
            threads: shape.threads,
            l1_lines: lines(shape.l1_bytes),
            l2_lines: lines(shape.l2_bytes),
            llc_lines: lines(shape.llc_bytes.unwrap_or(shape.l2_bytes)),
            line_bytes: u32::try_from(shape.line_bytes).unwrap_or(64),
            l1,
            l2,
            sibling,
            llc,
            far: near.clone(),
            remote: near.clone(),
            near,
            remote_clean,
            memory,
            memory_remote,
            atomic,
            fence,
            pause,
            clock,
            context_switch,
            wake,
            wake_call,
            interrupt: interrupt()?,
            smt: ratio("smt", "Times that work takes longer beside a working thread."),
            smt_spin: ratio("smt_spin", "Times that work takes longer beside spinning hints."),
            slice_ms: self.slice(),
        };
        self.transfers(&mut this)?;
        Ok(this)
    }

    /// Chooses the costs of transfers such that the simulated game takes as long as the real one.
    fn transfers(&self, this: &mut Description) -> Result<(), NotMeasured> {
        let base = this.draw(&mut Draw::new(0));
        let mut found: [Option<Parameter>; 3] = [const { None }; 3];
        let distances = [Distance::Near, Distance::Far, Distance::Remote];
        for (found, distance) in found.iter_mut().zip(distances) {
            let [name, walk] = game_names(distance).map(|names| names[0]);
            let (Some(ends), Some(cpus)) = (self.values.ends(name), players(this, distance)) else {
                continue;
            };
            let with = |cost| {
                let mut machine: Machine = base;
                *transfer(&mut machine.costs, distance) = cost;
                machine
            };
            let [low, high] = ends.map(|end| fit(end, &with, cpus));
            let [fast, slow] = ends.map(short);
            let walk = short(self.middle(walk));
            let note = format!(
                "Two threads throw a ball by loads and stores: one way takes {fast} ns \
                 (10th percentile) to {slow} ns (90th). The cost of a transfer is the one with \
                 which the same threads take as long on the simulated machine. For comparison: a \
                 load of a line that the other core has written took {walk} ns."
            );
            *found = Some(self.parameter([low?, high?], &note));
        }
        // The nearest kind that exists stands for those that do not.
        let [near, far, remote] = &found;
        let neutral = |why: &str| match near.as_ref().or(far.as_ref()).or(remote.as_ref()) {
            Some(other) => Self::neutral(other, "the nearest other core", why),
            None => Self::neutral(&this.llc, "llc", "One core"),
        };
        let [near, far, remote] = [
            near.clone().unwrap_or_else(|| neutral("One core in each cluster")),
            far.clone().unwrap_or_else(|| neutral("One cluster in each socket")),
            remote.clone().unwrap_or_else(|| {
                let farthest = far.as_ref().or(near.as_ref());
                let same = "the farthest other core";
                let neutral = farthest.map(|far| Self::neutral(far, same, "One socket"));
                neutral.unwrap_or_else(|| Self::neutral(&this.llc, "llc", "One core"))
            }),
        ];
        (this.near, this.far, this.remote) = (near, far, remote);
        Ok(())
    }

    /// A turn of two threads on one processor is a call that wakes and a switch. The call costs
    /// less there than one that wakes another processor, and the simulated machine knows only the
    /// latter, so the switch is all of the turn.
    fn context_switch(&self) -> Result<Parameter, NotMeasured> {
        let note = "Two threads on one processor wake each other in turn and sleep. A turn is a \
                    switch with the calls that make it.";
        self.measured("switch", note)
    }

    /// A simulated thread runs after a wake-up and a switch.
    fn wakes(&self, switch: &Parameter) -> Result<[Parameter; 2], NotMeasured> {
        if self.values.ends("wake").is_none() {
            let none = |same| Self::neutral(switch, same, "One processor");
            return Ok([none("context_switch"), none("context_switch")]);
        }
        let note = "From a call of `unpark` until the woken thread runs on another processor, less \
                    a switch. The thread slept for 0.03 ms in half of the rounds, else 0.5 ms.";
        let wake = self.beyond("wake", self.middle("switch"), note)?;
        let note = "A call of `unpark` for a thread that sleeps on another processor.";
        Ok([wake, self.measured("call", note)?])
    }

    fn slice(&self) -> Parameter {
        let base = read("/sys/kernel/debug/sched/base_slice_ns");
        let base = base.or_else(|| read("/sys/kernel/debug/sched/min_granularity_ns"));
        let cpus = self.shape.places.len().min(8);
        let told = base.and_then(|ns| ns.trim().parse::<f64>().ok());
        let (slice, source) = match told {
            Some(ns) => (ns / 1e6, "the kernel's own setting in /sys/kernel/debug/sched".into()),
            None => {
                let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
                let slice = default_slice_ms(&release) * f64::from(1 + cpus.ilog2());
                (slice, format!("default of Linux {release}, because the setting is not readable"))
            }
        };
        Parameter {
            low: short(slice),
            high: short((slice / TICK_MS).ceil() * TICK_MS),
            unit: None,
            source,
            how: "read".into(),
            note: "The upper end is the next tick of a kernel with 250 ticks a second.".into(),
        }
    }
}

/// Returns the time slice of a kernel with one processor, milliseconds: 0.75 up to Linux 6.14, 0.7
/// since then.
fn default_slice_ms(release: &str) -> f64 {
    let mut numbers = release.split(|char: char| !char.is_ascii_digit());
    let mut number = || numbers.next().and_then(|word| word.parse::<u32>().ok()).unwrap_or(0);
    if (number(), number()) >= (6, 15) { 0.7 } else { 0.75 }
}

/// The cost of an interrupt, which no program can measure.
fn interrupt() -> Result<Parameter, NotMeasured> {
    let other = Description::named(INTERRUPT_OF);
    let other = other.map_err(|why| NotMeasured::Simulation(why.to_string()))?;
    Ok(Parameter {
        how: "derived".into(),
        note: format!("No program can measure it: the interval of {INTERRUPT_OF}."),
        ..other.interrupt
    })
}

/// Two processors of the described machine at a distance; `None` if it has none.
fn players(machine: &Description, distance: Distance) -> Option<[u16; 2]> {
    let Description { sockets, clusters, cores, threads, .. } = *machine;
    let (other, exists) = match distance {
        Distance::Sibling => (cores * clusters * sockets, threads > 1),
        Distance::Near => (1, cores > 1),
        Distance::Far => (cores, clusters > 1),
        Distance::Remote => (cores * clusters, sockets > 1),
    };
    exists.then_some([0, other])
}

/// The cost of a transfer over a distance.
fn transfer(costs: &mut Costs, distance: Distance) -> &mut u64 {
    match distance {
        Distance::Sibling => &mut costs.l1,
        Distance::Near => &mut costs.near,
        Distance::Far => &mut costs.far,
        Distance::Remote => &mut costs.remote,
    }
}

/// A game of two threads, played on this machine and on the simulated one.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// What the threads do.
    pub name: &'static str,
    /// Nanoseconds for a throw or an addition on this machine: the middle of all rounds.
    pub measured: f64,
    /// The same on the simulated machine, with the middle of each interval.
    pub simulated: f64,
}

/// Plays games of two threads on the two nearest cores of this machine and on the simulated machine
/// that `description` describes. The costs were chosen by the first game only.
///
/// # Errors
///
/// [`NotMeasured`] says what keeps the games from being played.
pub fn checks(description: &Description) -> Result<Vec<Check>, NotMeasured> {
    let shape = Shape::ask(&read);
    let machine = description.draw(&mut Draw::new(0));
    let games: [(&[&str; 1], Game); 5] = [
        (&["throws by loads and stores"], Game::Stores),
        (&["throws by loads, hints and stores"], Game::StoresWithHint),
        (&["throws by compare-and-swap"], Game::Swaps),
        (&["additions"], Game::Additions),
        (&["loads of modified lines"], Game::Walk),
    ];
    for distance in [Distance::Near, Distance::Far, Distance::Remote] {
        let pairs = shape.pairs(distance, 1);
        let (Some(&cpus), Some(players)) = (pairs.first(), players(description, distance)) else {
            continue;
        };
        let quantity = |(names, game): (&'static [&'static str; 1], Game)| {
            Quantity::new(names, move |n| Ok(game.real(cpus, n)?.map(|each| vec![each])))
        };
        let values = measure(&mut games.map(quantity), &mut |_| ())?;
        let check = |([name], game): (&[&'static str; 1], Game)| {
            let measured = values.at(name, 0.5).unwrap_or(0.0);
            let simulated = game.simulated(&machine, players)?;
            Ok(Check { name, measured, simulated })
        };
        return games.into_iter().map(check).collect();
    }
    Ok(Vec::new())
}
