//! Threads with the interface of `std::thread`. Inside a simulation, they are threads of the
//! simulated machine; outside, threads of the real one.

use std::io;
use std::num::NonZero;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::fiber::suspend;
use crate::world::inside;

pub use std::thread::Result;

/// The number of a thread, real or simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadId(Id);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Id {
    Real(std::thread::ThreadId),
    Simulated(usize),
}

/// A thread, real or simulated.
#[derive(Clone, Debug)]
pub struct Thread(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Real(std::thread::Thread),
    Simulated(usize),
}

impl Thread {
    /// As in std.
    #[must_use]
    pub fn id(&self) -> ThreadId {
        ThreadId(match &self.0 {
            Kind::Real(thread) => Id::Real(thread.id()),
            Kind::Simulated(number) => Id::Simulated(*number),
        })
    }

    /// As in std.
    pub fn unpark(&self) {
        match self.0 {
            Kind::Real(ref thread) => thread.unpark(),
            Kind::Simulated(number) => {
                let _ = inside(|world| world.tell(number));
            }
        }
    }
}

/// As in std.
#[must_use]
pub fn current() -> Thread {
    let simulated = inside(|world| Thread(Kind::Simulated(world.me())));
    simulated.unwrap_or_else(|| Thread(Kind::Real(std::thread::current())))
}

/// Converts a duration to picoseconds.
pub(crate) fn picoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().saturating_mul(1_000)).unwrap_or(u64::MAX)
}

/// As in std.
pub fn park() {
    if !parked(None) {
        std::thread::park();
    }
}

/// As in std.
pub fn park_timeout(timeout: Duration) {
    if !parked(Some(timeout)) {
        std::thread::park_timeout(timeout);
    }
}

/// Parks the calling simulated thread. Returns false outside a simulation.
fn parked(timeout: Option<Duration>) -> bool {
    let sleeps = inside(|world| {
        let until = timeout.map(|timeout| world.clock().saturating_add(picoseconds(timeout)));
        world.park(until)
    });
    if sleeps == Some(true) {
        suspend();
        let _ = inside(|world| world.goes_on());
    }
    sleeps.is_some()
}

/// As in std.
pub fn sleep(duration: Duration) {
    let sleeps = inside(|world| {
        let until = world.clock().saturating_add(picoseconds(duration));
        world.block(Some(until));
    });
    match sleeps {
        Some(()) => suspend(),
        None => std::thread::sleep(duration),
    }
}

/// As in std.
pub fn yield_now() {
    match inside(|world| world.yield_now()) {
        Some(true) => suspend(),
        Some(false) => {}
        None => std::thread::yield_now(),
    }
}

/// As in std.
///
/// # Errors
///
/// As in std.
pub fn available_parallelism() -> io::Result<NonZero<usize>> {
    match inside(|world| world.machine().topology.processors()) {
        Some(processors) => {
            NonZero::new(processors.into()).ok_or_else(|| io::Error::other("no processors"))
        }
        None => std::thread::available_parallelism(),
    }
}

/// Moves the calling simulated thread to a processor, where it then stays. Returns false outside a
/// simulation, or if the machine has no such processor.
pub fn pin(processor: usize) -> bool {
    let moves = inside(|world| {
        let processor = u16::try_from(processor).ok()?;
        (processor < world.machine().topology.processors()).then(|| world.pin(processor))
    });
    if moves == Some(Some(true)) {
        suspend();
    }
    matches!(moves, Some(Some(_)))
}

/// The handle of a thread, real or simulated.
#[derive(Debug)]
pub struct JoinHandle<T>(Handle<T>);

#[derive(Debug)]
enum Handle<T> {
    Real(std::thread::JoinHandle<T>),
    Simulated { number: usize, result: Arc<Mutex<Option<T>>> },
}

/// As in std.
///
/// # Panics
///
/// As in std.
pub fn spawn<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().spawn(f).expect("the system starts a thread")
}

/// Makes threads with a name and, inside a simulation, on a processor.
#[derive(Debug, Default)]
pub struct Builder {
    name: Option<String>,
    processor: Option<u16>,
}

impl Builder {
    /// As in std.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// As in std.
    #[must_use]
    pub fn name(self, name: String) -> Self {
        Self { name: Some(name), ..self }
    }

    /// Pins the thread to a processor. Outside a simulation, this does nothing.
    #[must_use]
    pub fn on(self, processor: u16) -> Self {
        Self { processor: Some(processor), ..self }
    }

    /// As in std.
    ///
    /// # Errors
    ///
    /// As in std.
    pub fn spawn<T: Send + 'static>(
        self,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let Self { name, processor } = self;
        if inside(|_| ()).is_none() {
            let builder = name
                .into_iter()
                .fold(std::thread::Builder::new(), |builder, name| builder.name(name));
            return Ok(JoinHandle(Handle::Real(builder.spawn(f)?)));
        }
        let result = Arc::new(Mutex::new(None));
        let place = result.clone();
        let main = Box::new(move || {
            let value = f();
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        });
        let name = name.unwrap_or_else(|| "thread".to_owned());
        let number = inside(|world| world.spawn(name, processor, main));
        let number = number.ok_or_else(|| io::Error::other("the simulation is over"))?;
        Ok(JoinHandle(Handle::Simulated { number, result }))
    }
}

impl<T> JoinHandle<T> {
    /// As in std.
    #[must_use]
    pub fn thread(&self) -> Thread {
        Thread(match &self.0 {
            Handle::Real(handle) => Kind::Real(handle.thread().clone()),
            Handle::Simulated { number, .. } => Kind::Simulated(*number),
        })
    }

    /// As in std.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        match &self.0 {
            Handle::Real(handle) => handle.is_finished(),
            Handle::Simulated { number, .. } => {
                inside(|world| world.has_ended(*number)).unwrap_or(true)
            }
        }
    }

    /// As in std. A panic of a simulated thread ends the simulation, so this returns no error
    /// there.
    ///
    /// # Errors
    ///
    /// As in std.
    pub fn join(self) -> Result<T> {
        match self.0 {
            Handle::Real(handle) => handle.join(),
            Handle::Simulated { number, result } => {
                while inside(|world| world.join(number)) == Some(true) {
                    suspend();
                }
                let value = result.lock().unwrap_or_else(PoisonError::into_inner).take();
                value.ok_or_else(|| Box::new("the simulated thread has not ended") as _)
            }
        }
    }
}
