//! What became of the datagrams of a link.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onramp::{DropReason, Sender};
use pyo3::prelude::*;

use crate::errors;

/// Most completions that wait for the program. A link with so many accepts no datagram: otherwise a
/// program that never reads them would fill the memory.
const WAITING_MAX: usize = 65_536;

/// What became of a datagram (with ``segment``: of the datagrams of one payload).
#[pyclass(module = "onramp", frozen)]
pub(crate) struct Completion(onramp::Completion);

/// Returns a time in seconds of ``time.monotonic()``.
fn monotonic(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}

#[pymethods]
impl Completion {
    /// The number that was given to ``send``.
    #[getter]
    fn cookie(&self) -> u64 {
        self.0.cookie
    }

    /// The key of the flow, as it was given to ``send`` (its lower 63 bits).
    #[getter]
    fn flow(&self) -> u64 {
        self.key()
    }

    /// The length in bytes, headers included.
    #[getter]
    fn length(&self) -> u32 {
        self.0.len
    }

    /// Why it was dropped, one of ``DROP_REASONS``; None: it was sent.
    #[getter]
    fn drop_reason(&self) -> Option<&'static str> {
        self.0.drop_reason.map(DropReason::name)
    }

    /// When the link accepted it, in seconds of ``time.monotonic()``. Behind ``series``, or
    /// ``netem`` with a qdisc below it: when it came to the last qdisc.
    #[getter]
    fn accepted(&self) -> f64 {
        monotonic(self.0.pushed_ns)
    }

    /// When it left or was dropped, in seconds of ``time.monotonic()``; None: unknown, because its
    /// port died.
    #[getter]
    fn left(&self) -> Option<f64> {
        self.0.left_ns.map(monotonic)
    }

    fn __repr__(&self) -> String {
        let Self(onramp::Completion { cookie, len, pushed_ns, left_ns, drop_reason, .. }) = self;
        let flow = self.key();
        let fate = drop_reason.map_or("sent", DropReason::name);
        let after = left_ns.map_or_else(String::new, |left| {
            format!(" after {:?}", Duration::from_nanos(left.saturating_sub(*pushed_ns)))
        });
        format!("<onramp.Completion cookie={cookie} flow={flow} length={len}: {fate}{after}>")
    }
}

impl Completion {
    /// Returns the key of the flow without the bit that marks keys which programs have chosen.
    fn key(&self) -> u64 {
        self.0.flow & !(1 << 63)
    }
}

/// The completions that the program has not taken yet. The sender's callback adds to them.
pub(crate) struct Completions(Arc<Mutex<VecDeque<onramp::Completion>>>);

impl Completions {
    /// Notes the completions of `sender` from now on.
    pub(crate) fn of(sender: &mut Sender) -> Self {
        let list = Arc::new(Mutex::new(VecDeque::new()));
        let own = Self(list.clone());
        sender.on_complete(move |completion| lock(&list).push_back(completion));
        own
    }

    /// Returns an error if so many completions wait that the link must not accept a datagram.
    pub(crate) fn check(&self) -> PyResult<()> {
        if lock(&self.0).len() < WAITING_MAX {
            return Ok(());
        }
        Err(errors::no_room(format!("{WAITING_MAX} completions wait: take them by completions()")))
    }

    /// Returns the completions that wait, and forgets them.
    pub(crate) fn take(&self) -> Vec<Completion> {
        lock(&self.0).drain(..).map(Completion).collect()
    }
}

/// Locks the list. A panic leaves it whole.
fn lock(
    list: &Mutex<VecDeque<onramp::Completion>>,
) -> MutexGuard<'_, VecDeque<onramp::Completion>> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}
