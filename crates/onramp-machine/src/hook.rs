//! What simulated code calls to be charged. The types of [`sync`](crate::sync) call these functions
//! for the code; code that touches shared memory in another way calls them itself.
//!
//! Outside a simulation, all functions do nothing.

use std::panic::Location;

use crate::fiber::suspend;
use crate::memory::Access;
use crate::report::{Report, Site};
use crate::world::{AHEAD, Plain, World, inside};

/// Lets processors that are earlier go first, then charges, by `charge`, an access to these bytes.
#[inline]
fn in_turn(address: usize, bytes: usize, charge: impl Fn(&mut World)) {
    let done = || {
        inside(|world| {
            let ahead = world.ahead(address, bytes);
            let goes = !world.gives_way(ahead);
            if goes {
                charge(world);
            }
            goes
        })
    };
    while done() == Some(false) {
        suspend();
    }
}

/// Suspends the calling thread as long as other processors are earlier than its own by more than
/// `ahead` picoseconds.
#[inline]
fn give_way(ahead: u64) {
    while inside(|world| world.gives_way(ahead)) == Some(true) {
        suspend();
    }
}

/// Charges an atomic access.
#[inline]
fn access(address: usize, access: Access, site: Site) {
    in_turn(address, 1, |world| world.access(address, access, site));
    // The access happens when the line is there, so earlier accesses of others come first. A store
    // waits in the store buffer, and others see it when they get the line.
    if access != Access::Store {
        give_way(0);
    }
}

/// Charges an atomic load.
#[inline]
#[track_caller]
pub fn load<T: ?Sized>(at: *const T) {
    access(at.addr(), Access::Load, Location::caller());
}

/// Charges an atomic store.
#[inline]
#[track_caller]
pub fn store<T: ?Sized>(at: *const T) {
    access(at.addr(), Access::Store, Location::caller());
}

/// Charges an atomic read-modify-write, also one that changes nothing.
#[inline]
#[track_caller]
pub fn update<T: ?Sized>(at: *const T) {
    access(at.addr(), Access::Update, Location::caller());
}

/// Charges the reading of ordinary memory. Only transfers of lines cost something: what hits cost
/// is part of the local work.
#[inline]
#[track_caller]
pub fn read<T>(at: *const T, bytes: usize) {
    plain(at.addr(), bytes, Plain::Read, Location::caller());
}

/// Charges the writing of ordinary memory that is not read before. The lines are fetched in the
/// background, so this costs nothing until the next atomic operation.
#[inline]
#[track_caller]
pub fn write<T>(at: *const T, bytes: usize) {
    plain(at.addr(), bytes, Plain::Write, Location::caller());
}

/// Charges the reading and writing of ordinary memory, as [`read`] does.
#[inline]
#[track_caller]
pub fn change<T>(at: *const T, bytes: usize) {
    plain(at.addr(), bytes, Plain::Change, Location::caller());
}

#[inline]
fn plain(address: usize, bytes: usize, kind: Plain, site: Site) {
    in_turn(address, bytes, |world| world.plain(address, bytes, kind, site));
}

/// Fetches the line at an address for reading, without waiting for it.
#[inline]
#[track_caller]
pub fn prefetch<T>(at: *const T) {
    fetch(at.addr(), Access::Load, Location::caller());
}

/// Fetches the line at an address for writing, without waiting for it.
#[inline]
#[track_caller]
pub fn prefetch_write<T>(at: *const T) {
    fetch(at.addr(), Access::Store, Location::caller());
}

fn fetch(address: usize, access: Access, site: Site) {
    // A prefetch of address 0 is allowed, and fetches nothing.
    if address != 0 {
        in_turn(address, 1, |world| world.prefetch(address, access, site));
    }
}

/// Charges a full fence.
#[inline]
pub fn fence() {
    let _ = inside(|world| world.fence());
}

/// Spins once. The thread then spins on until another processor has written the line that this
/// processor loaded last, or until it is time to look again.
pub fn spin_loop() {
    if inside(|world| world.spin()) == Some(true) {
        suspend();
    }
    give_way(0);
}

/// Charges local work of `ns` nanoseconds.
#[inline]
pub fn work(ns: u64) {
    work_ps(ns * 1_000);
}

/// Charges local work of `ps` picoseconds.
#[inline]
pub fn work_ps(ps: u64) {
    give_way(AHEAD);
    let _ = inside(|world| world.work(ps));
}

/// Reads the clock, and charges that. Returns nanoseconds; `None` outside a simulation.
#[inline]
#[must_use]
pub fn clock() -> Option<u64> {
    inside(|world| {
        let cost = world.machine().costs.clock;
        world.work(cost);
        world.clock() / 1_000
    })
}

/// Returns the time in picoseconds, and charges nothing: for measurements that the simulated
/// program does not make itself. `None` outside a simulation.
#[inline]
#[must_use]
pub fn time_ps() -> Option<u64> {
    inside(|world| world.clock())
}

/// Returns how long the calling thread has waited for a processor, in all, after its time slice had
/// ended or it had yielded its processor, picoseconds; charges nothing. `None` outside a
/// simulation.
#[inline]
#[must_use]
pub fn displaced_ps() -> Option<u64> {
    inside(|world| world.displaced())
}

/// Returns the number of the processor on which the calling thread runs; `None` outside a
/// simulation.
#[must_use]
pub fn processor() -> Option<u16> {
    inside(|world| world.processor())
}

/// Returns the number of processors of the machine; `None` outside a simulation.
#[must_use]
pub fn processors() -> Option<u16> {
    inside(|world| world.machine().topology.processors())
}

/// Returns the number of the cluster to which a processor belongs, counted over the whole machine;
/// `None` outside a simulation, or if the machine has no such processor.
#[must_use]
pub fn cluster(processor: u16) -> Option<u16> {
    let topology = inside(|world| world.machine().topology)?;
    let exists = processor < topology.processors();
    exists.then(|| topology.cluster(topology.core(processor)))
}

/// Begins a measurement now, instead of at the time that the simulation was given.
pub fn measure() {
    let _ = inside(|world| world.measure(world.clock()));
}

/// Returns what happened since the measurement [began](measure), and forgets it. Outside a
/// simulation, nothing did.
#[must_use]
pub fn report() -> Report {
    inside(|world| world.measured(world.clock())).unwrap_or_default()
}
