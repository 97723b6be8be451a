//! The engine: processors with their clocks, threads, run queues, and events in the order of time.
//!
//! A thread runs until it reaches an access to shared memory at which another processor's clock is
//! earlier. Then it suspends itself, and the engine continues the processor with the earliest
//! clock. A processor has at most one valid event, which says when it continues; a newer event
//! replaces an older one ([`Cpu::generation`]).

mod measure;
mod queues;
mod threads;
mod work;

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::mem;
use std::ops::Range;
use std::rc::Rc;

use crate::fiber::Fiber;
use crate::locals::Locals;
use crate::machine::Machine;
use crate::memory::{CORES_MAX, Memory};
use crate::report::{Report, Times};

/// How far a processor may run ahead of others, picoseconds, as long as it works and touches only
/// memory that no other core has ever touched.
pub(crate) const AHEAD: u64 = 1_000_000;
/// After this time, picoseconds, a thread that spins looks again even if nobody has written the
/// line that it read last, because it may wait for another line as well.
const SPIN_LOOK: u64 = 2_000_000;

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// What to simulate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The machine.
    pub machine: Machine,
    /// Simulated time, in nanoseconds, after which the simulation fails if threads still run.
    pub limit_ns: u64,
    /// When the measurement begins and when it ends, nanoseconds.
    pub measure_ns: Range<u64>,
}

/// Why a simulation did not come to its end.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failed {
    /// Threads wait for one another, or for an event that never comes. Names the threads.
    Stuck(Vec<String>),
    /// Threads still ran at the limit of the simulated time. Names the threads.
    Late(Vec<String>),
    /// The machine has more cores than the engine can simulate.
    TooManyCores(u16),
    /// The system gave no memory for the stack of a thread.
    NoStack(std::io::Error),
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stuck(names) => write!(f, "threads wait for ever: {}", names.join(", ")),
            Self::Late(names) => {
                write!(
                    f,
                    "threads still run at the limit of the simulated time: {}",
                    names.join(", ")
                )
            }
            Self::TooManyCores(cores) => {
                write!(f, "the machine has {cores} cores; at most {CORES_MAX} can be simulated")
            }
            Self::NoStack(error) => write!(f, "no memory for a thread's stack: {error}"),
        }
    }
}

impl std::error::Error for Failed {}

/// Runs `main` as the first thread of a simulated machine, until all threads have ended. Returns
/// the result of `main`, and what happened in the time of the measurement.
///
/// # Errors
///
/// [`Failed`] says why the simulation did not come to its end. The memory of threads that still
/// waited is then never freed.
///
/// # Panics
///
/// Panics when a simulated thread panics, or when a simulation already runs in the calling thread.
pub fn simulate<R: 'static>(
    setup: &Setup,
    main: impl FnOnce() -> R + 'static,
) -> Result<(R, Report), Failed> {
    let cores = setup.machine.topology.all_cores();
    if cores > CORES_MAX {
        return Err(Failed::TooManyCores(cores));
    }
    let world = World::new(setup);
    let place = Rc::new(Cell::new(None));
    let result = place.clone();
    let main = move || result.set(Some(main()));
    WORLD.with_borrow_mut(|place| {
        assert!(place.is_none(), "one simulation at a time in a thread");
        let world = place.insert(world);
        let Range { start, end } = setup.measure_ns;
        world.push(start.saturating_mul(1_000), Event::Measure);
        world.push(end.saturating_mul(1_000), Event::Report);
        world.spawn("main".into(), None, Box::new(main));
    });
    let mut fibers = Fibers::default();
    fibers.run()?;
    let report = engine(|world| mem::take(&mut world.report));
    let result = place.take().unwrap_or_else(|| unreachable!("the first thread has ended"));
    Ok((result, report))
}

/// The fibers of all threads, by the thread's number; `None` where the thread has ended.
#[derive(Default)]
struct Fibers(Vec<Option<Fiber>>);

impl Fibers {
    fn run(&mut self) -> Result<(), Failed> {
        loop {
            for main in engine(|world| mem::take(&mut world.born)) {
                self.0.push(Some(Fiber::new(main).map_err(Failed::NoStack)?));
            }
            let Some(thread) = engine(World::next)? else { return Ok(()) };
            let fiber = &mut self.0[thread];
            if fiber.as_mut().is_some_and(Fiber::resume) {
                *fiber = None;
                engine(|world| world.end(thread));
            }
        }
    }
}

impl Drop for Fibers {
    /// Ends the simulation. Fibers that are left are forgotten: their destructors would call an
    /// engine that is gone.
    fn drop(&mut self) {
        self.0.drain(..).for_each(mem::forget);
        drop(WORLD.take());
    }
}

/// Calls `f` with the engine, from outside of all fibers.
fn engine<R>(f: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with_borrow_mut(|world| f(world.as_mut().expect("a simulation runs")))
}

/// Calls `f` with the engine, for the simulated thread that calls. Returns `None` outside a
/// simulation.
#[inline]
pub(crate) fn inside<R>(f: impl FnOnce(&mut World) -> R) -> Option<R> {
    WORLD
        .try_with(|world| {
            let mut world = world.try_borrow_mut().ok()?;
            world.as_mut().filter(|world| world.on.is_some()).map(f)
        })
        .ok()
        .flatten()
}

/// What ordinary code does with some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plain {
    Read,
    Write,
    Change,
}

/// What a processor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Nothing,
    Work,
    /// Spins until this line is written.
    Spin(u32),
}

struct Cpu {
    clock: u64,
    /// The thread that has the processor, and those that wait for it.
    thread: Option<usize>,
    queue: VecDeque<usize>,
    doing: Doing,
    /// The number of the only valid event of this processor.
    generation: u64,
    slice_end: u64,
    /// When all stores have reached their lines.
    stored: u64,
    /// The line that was loaded last, and how often it had been written.
    loaded: Option<(u32, u64)>,
    times: Times,
}

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Has a processor or waits in the queue of one.
    Runs,
    /// Sleeps until it is [told](World::tell) to go on.
    Parked,
    /// Sleeps until it is [released](World::release).
    Blocked,
    Ended,
}

struct Thread {
    name: String,
    state: State,
    /// The processor that the thread must use, if any, and the one that it used last.
    pinned: Option<u16>,
    cpu: u16,
    /// Whether the thread was told to go on while it was awake.
    told: bool,
    /// The number of the thread's latest sleep, by which a timer finds out that it is too late.
    sleep: u64,
    /// Threads that wait for the end of this one.
    joiners: Vec<usize>,
    /// When the thread, which could have gone on, had to leave its processor to another one; `None`
    /// while it has a processor or sleeps.
    displaced_at: Option<u64>,
    /// How long the thread has waited for a processor after it was displaced, in all.
    displaced: u64,
    /// The values that the thread has for itself.
    locals: Locals,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The processor continues.
    Continue { cpu: u16, generation: u64 },
    /// The sleep of a thread ends.
    Timer { thread: usize, sleep: u64 },
    /// The measurement begins.
    Measure,
    /// The measurement ends.
    Report,
}

/// The main function of a thread.
type Main = Box<dyn FnOnce()>;

pub(crate) struct World {
    machine: Machine,
    limit: u64,
    memory: Memory,
    cpus: Vec<Cpu>,
    threads: Vec<Thread>,
    /// Threads that have no fiber yet, in the order of their numbers.
    born: Vec<Main>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Number of events so far: events of the same time come in the order in which they were made.
    made: u64,
    /// The processor whose thread runs now; `None` while the engine itself runs.
    on: Option<u16>,
    /// When the measurement began, what was counted since, and in the end the result.
    since: u64,
    report: Report,
    switches: u64,
    migrations: u64,
    wakeups: u64,
    timers: u64,
}

impl World {
    fn new(setup: &Setup) -> Self {
        let cpu = |_| Cpu {
            clock: 0,
            thread: None,
            queue: VecDeque::new(),
            doing: Doing::Nothing,
            generation: 0,
            slice_end: 0,
            stored: 0,
            loaded: None,
            times: Times::default(),
        };
        Self {
            machine: setup.machine,
            limit: setup.limit_ns.saturating_mul(1_000),
            memory: Memory::new(&setup.machine),
            cpus: (0..setup.machine.topology.processors()).map(cpu).collect(),
            threads: Vec::new(),
            born: Vec::new(),
            events: BinaryHeap::new(),
            made: 0,
            on: None,
            since: 0,
            report: Report::default(),
            switches: 0,
            migrations: 0,
            wakeups: 0,
            timers: 0,
        }
    }

    fn cpu(&mut self, cpu: u16) -> &mut Cpu {
        &mut self.cpus[usize::from(cpu)]
    }

    /// Returns the processor whose thread calls.
    fn here(&self) -> u16 {
        self.on.expect("a simulated thread calls")
    }

    /// Returns the number of the thread that calls.
    pub(crate) fn me(&self) -> usize {
        let cpu = &self.cpus[usize::from(self.here())];
        cpu.thread.expect("the processor has a thread")
    }

    /// Returns the number of the processor whose thread calls.
    pub(crate) fn processor(&self) -> u16 {
        self.here()
    }

    pub(crate) fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Returns the time of the calling processor, picoseconds.
    pub(crate) fn clock(&self) -> u64 {
        self.cpus[usize::from(self.here())].clock
    }

    /// Returns how long the calling thread has waited for a processor after it was displaced.
    pub(crate) fn displaced(&self) -> u64 {
        self.threads[self.me()].displaced
    }

    fn push(&mut self, at: u64, event: Event) {
        self.made += 1;
        self.events.push(Reverse((at, self.made, event)));
    }

    /// Makes the processor continue at `at`, and at no other time.
    fn continue_at(&mut self, cpu: u16, at: u64) {
        let this = self.cpu(cpu);
        this.generation += 1;
        let generation = this.generation;
        self.push(at, Event::Continue { cpu, generation });
    }

    /// Returns the next thread to run; `None` when all threads have ended.
    fn next(&mut self) -> Result<Option<usize>, Failed> {
        self.on = None;
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            if at > self.limit && !matches!(event, Event::Measure | Event::Report) {
                return Err(Failed::Late(self.alive()));
            }
            match event {
                Event::Continue { cpu, generation } => {
                    let this = self.cpu(cpu);
                    if this.generation != generation {
                        continue;
                    }
                    let passed = at.saturating_sub(this.clock);
                    match this.doing {
                        Doing::Spin(_) => this.times.spinning += passed,
                        Doing::Work | Doing::Nothing => this.times.scheduling += passed,
                    }
                    (this.clock, this.doing) = (this.clock.max(at), Doing::Work);
                    let thread = this.thread;
                    self.on = Some(cpu);
                    return Ok(thread);
                }
                Event::Measure => self.measure(at),
                Event::Report => self.report = self.measured(at),
                Event::Timer { thread, sleep } => {
                    let this = &self.threads[thread];
                    if matches!(this.state, State::Parked | State::Blocked) && this.sleep == sleep {
                        self.timers += 1;
                        self.ready(thread, at);
                    }
                }
            }
        }
        match self.alive() {
            alive if alive.is_empty() => Ok(None),
            alive => Err(Failed::Stuck(alive)),
        }
    }

    fn alive(&self) -> Vec<String> {
        let alive = self.threads.iter().filter(|thread| thread.state != State::Ended);
        alive.map(|thread| thread.name.clone()).collect()
    }

    /// Whether the calling thread has to suspend itself, because another processor is earlier by
    /// more than `ahead`, or because the thread's time slice is over. If so, the processor will
    /// continue the thread in time.
    pub(crate) fn gives_way(&mut self, ahead: u64) -> bool {
        let here = self.here();
        let this = self.cpu(here);
        let clock = this.clock;
        if clock >= this.slice_end {
            if !this.queue.is_empty() {
                self.rotate(here);
                return true;
            }
            let slice = self.machine.costs.slice;
            self.cpu(here).slice_end = clock + slice;
        }
        let earlier = self.events.peek().is_some_and(|Reverse((at, ..))| at + ahead < clock);
        let gives_way = earlier || clock > self.limit;
        if gives_way {
            self.continue_at(here, clock);
        }
        gives_way
    }
}
