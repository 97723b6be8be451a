//! Alternative designs of Onramp's intake. Each has a single atomic word in front of a value that
//! one thread at a time owns; the designs differ in the word's format.
//!
//! The word holds the name (address or index) of the newest waiting packet, the number of waiting
//! packets, and a flag that says whether a thread owns the value. It is 0 if no packet waits and no
//! thread owns the value. Each packet's `cookie` (a field of the packet's header) holds the value
//! that the word had before the push, and so the name of the next older packet. The cookie lies on
//! the same cache line as the pointer that Onramp's own lists use.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::ptr;

use onramp_queue::Packet;

use super::{Padded, prefetch};
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::sync::atomic::{AtomicU64, AtomicUsize};
use crate::sync::changes;

/// The flag in an intake's word which says that a thread owns the value behind the intake.
pub(super) const OWNED: u64 = 1;

/// The format of an intake's word: how it names a packet and counts the waiting packets.
///
/// # Safety
///
/// If `name` has made a name from an address, `addr` returns that address for every word that
/// contains the name, whatever count and flags the word also contains.
pub(crate) unsafe trait Format: Default + Send + Sync + 'static {
    /// Data that a sender keeps so that `name` is fast.
    type Memo: Default + Send;

    /// Largest number of waiting packets that a word in this format can count.
    const CAP: u64;

    /// Returns a word that holds the name of the packet at `addr`, and zero as count and flags.
    fn name(&self, addr: usize, memo: &mut Self::Memo) -> u64;

    /// Returns the address of the packet whose name `word` holds.
    fn addr(&self, word: u64) -> usize;

    /// Returns `count`, shifted to those bits of a word that hold the count.
    fn counted(count: u64) -> u64;

    /// Returns the count of waiting packets in `word`.
    fn count(word: u64) -> u64;
}

/// The format of Onramp's own intake: 16 bits of count, 42 bits of address, 6 bits of flags.
#[derive(Debug, Default)]
pub(crate) struct Pointer;

const POINTER_COUNT: u32 = 48;
const POINTER_FLAGS: u64 = 0x3f;

// SAFETY: a packet's header is aligned to 64 bytes, and its address has at most 48 bits, which
// `onramp-queue` checks when it makes a packet; so name, count and flags share no bit.
unsafe impl Format for Pointer {
    type Memo = ();

    const CAP: u64 = (1 << (64 - POINTER_COUNT)) - 1;

    #[inline]
    fn name(&self, addr: usize, (): &mut ()) -> u64 {
        addr as u64
    }

    #[inline]
    fn addr(&self, word: u64) -> usize {
        (word & ((1 << POINTER_COUNT) - 1) & !POINTER_FLAGS) as usize
    }

    #[inline]
    fn counted(count: u64) -> u64 {
        count << POINTER_COUNT
    }

    #[inline]
    fn count(word: u64) -> u64 {
        word >> POINTER_COUNT
    }
}

/// A format in which an intake's word has 32 bits for the index of a packet, 24 bits for the count
/// and 8 bits for flags.
///
/// Packets may lie anywhere in memory, so a table lists the regions of memory that hold packets. A
/// packet's index consists of its region's place in that table and the number of its cache line
/// within the region. If all packets lay in one region, one addition would turn an index into an
/// address.
#[derive(Debug)]
pub(crate) struct Index {
    /// For each place in the table, the region's number plus one; 0 marks a free place. Regions are
    /// listed in the order in which senders first used them.
    regions: Box<[AtomicUsize]>,
}

const LINE_BITS: u32 = 6;
/// Number of address bits within a region: a region has 64 MiB.
const REGION_BITS: u32 = 26;
const REGIONS: usize = 1 << (32 - (REGION_BITS - LINE_BITS));
const INDEX_NAME: u32 = 32;
const INDEX_COUNT: u32 = 8;

impl Default for Index {
    fn default() -> Self {
        Self { regions: (0..REGIONS).map(|_| AtomicUsize::new(0)).collect() }
    }
}

impl Index {
    /// Returns the place of `region` in the table. Adds the region if the table does not list it
    /// yet.
    #[cold]
    fn find(&self, region: usize) -> usize {
        let is_ours = |slot: &AtomicUsize| {
            // Relaxed: a place in the table is written once, and its value publishes no other data.
            slot.compare_exchange(0, region + 1, Relaxed, Relaxed)
                .map_or_else(|seen| seen == region + 1, |_| true)
        };
        let found = self.regions.iter().position(is_ours);
        found.unwrap_or_else(|| panic!("packets lie in more than {REGIONS} regions of 64 MiB"))
    }
}

/// The region that holds the packets that a sender used last, and the region's place in the table.
#[derive(Debug, Default)]
pub(crate) struct LastRegion {
    slot_value: usize,
    at: usize,
}

// SAFETY: an index determines the region and the cache line, and so the address, because packet
// headers are aligned to lines. A place in the table never changes once it is set, and a thread
// that got a packet's name by an acquire sees the place that was set before the packet was pushed.
unsafe impl Format for Index {
    type Memo = LastRegion;

    const CAP: u64 = (1 << (INDEX_NAME - INDEX_COUNT)) - 1;

    #[inline]
    fn name(&self, addr: usize, last: &mut LastRegion) -> u64 {
        let region = addr >> REGION_BITS;
        if last.slot_value != region + 1 {
            *last = LastRegion { slot_value: region + 1, at: self.find(region) };
        }
        let line = (addr & ((1 << REGION_BITS) - 1)) >> LINE_BITS;
        let index = (last.at << (REGION_BITS - LINE_BITS)) | line;
        (index as u64) << INDEX_NAME
    }

    #[inline]
    fn addr(&self, word: u64) -> usize {
        let index = (word >> INDEX_NAME) as usize;
        // Relaxed: the place was set before the packet was pushed, and the packet was handed over
        // with release and acquire.
        let region = self.regions[index >> (REGION_BITS - LINE_BITS)].load(Relaxed);
        let line = index & ((1 << (REGION_BITS - LINE_BITS)) - 1);
        (region.wrapping_sub(1) << REGION_BITS) | (line << LINE_BITS)
    }

    #[inline]
    fn counted(count: u64) -> u64 {
        count << INDEX_COUNT
    }

    #[inline]
    fn count(word: u64) -> u64 {
        (word >> INDEX_COUNT) & Self::CAP
    }
}

/// The list of waiting packets that an owner took from an intake's word, newest first. The iterator
/// returns them one by one. With `prefetch`, it prefetches the header of the next packet.
pub(crate) struct Chain<'a, F: Format> {
    format: &'a F,
    newest: u64,
    left: u64,
    prefetch: bool,
}

impl<'a, F: Format> Chain<'a, F> {
    /// # Safety
    ///
    /// The caller owns all packets that `word` counts, and no other code owns them or will take
    /// them. `word` names the newest packet, and each packet's cookie names the next older one, as
    /// `push_to` linked them.
    #[inline]
    pub(super) unsafe fn new(format: &'a F, word: u64, prefetch: bool) -> Self {
        Self { format, newest: word, left: F::count(word), prefetch }
    }
}

impl<F: Format> Iterator for Chain<'_, F> {
    type Item = Packet;

    #[inline]
    #[expect(clippy::disallowed_methods, reason = "a word is a number; `push_to` exposed it")]
    fn next(&mut self) -> Option<Packet> {
        if self.left == 0 {
            return None;
        }
        let node: *mut () = ptr::with_exposed_provenance_mut(self.format.addr(self.newest));
        // SAFETY: a `Packet` is one non-null pointer. `push_to` gave up this packet, and the
        // creator of the chain promised that the chain owns it. The chain returns each packet once,
        // because the next line moves the chain on to the next older packet.
        let pkt: Packet = unsafe { mem::transmute(node) };
        (self.newest, self.left) = (pkt.cookie, self.left - 1);
        if self.prefetch {
            prefetch(ptr::without_provenance(self.format.addr(self.newest)));
        }
        Some(pkt)
    }
}

impl<F: Format> Drop for Chain<'_, F> {
    fn drop(&mut self) {
        while self.next().is_some() {}
    }
}

/// Pushes `pkt` onto the list in `word`, and sets `flags` in the word. Returns the previous value
/// of the word. Returns the packet as an error if the word can count no more packets.
#[inline]
pub(super) fn push_to<F: Format>(
    word: &AtomicU64,
    format: &F,
    memo: &mut F::Memo,
    mut pkt: Packet,
    flags: u64,
) -> Result<u64, Packet> {
    // SAFETY: a `Packet` is one non-null pointer (`repr(transparent)`). The copy is only used as a
    // name: `pkt` is forgotten below, and `Chain` later makes a new owner of the packet from that
    // name.
    let node: *mut () = unsafe { mem::transmute_copy(&pkt) };
    let name = format.name(node.expose_provenance(), memo);
    // Relaxed: the loaded word is only a guess, which the exchange checks.
    let mut seen = word.load(Relaxed);
    loop {
        let count = F::count(seen);
        if count == F::CAP {
            return Err(pkt);
        }
        pkt.cookie = seen;
        let new = name | F::counted(count + 1) | flags;
        // Release: publishes the packet; pairs with the acquire of the thread that takes the list.
        // Acquire: if this thread becomes the owner, makes the previous owner's writes visible;
        // pairs with the release in `leave`.
        match word.compare_exchange_weak(seen, new, AcqRel, Relaxed) {
            Ok(_) => {
                mem::forget(pkt);
                return Ok(seen);
            }
            Err(other) => seen = other,
        }
    }
}

/// Result of pushing a packet into an intake.
pub(crate) enum Pushed<O> {
    /// The packet is staged; another thread will take it.
    Staged,
    /// The pushing thread is now the owner. `Some` holds the packet if it bypassed the list. With
    /// `None`, the packet is in the list, and `take` returns it.
    Owner(O, Option<Packet>),
}

/// An intake whose list, count and ownership are in one word.
pub(crate) struct OneWord<F: Format, T> {
    word: Padded<AtomicU64>,
    format: Padded<F>,
    value: Padded<UnsafeCell<T>>,
}

// SAFETY: only the owner has a reference to the value, and the word hands the value over, so
// `T: Sync` is not needed.
unsafe impl<F: Format, T: Send> Sync for OneWord<F, T> {}

/// Ownership of the value behind an intake. It lasts until `leave` is called. If an `Owner` is
/// dropped without `leave`, the intake stays owned for ever.
pub(crate) struct Owner<'a, F: Format, T> {
    intake: &'a OneWord<F, T>,
    value: PhantomData<&'a mut T>,
}

impl<F: Format, T> OneWord<F, T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            word: Padded(AtomicU64::new(0)),
            format: Padded(F::default()),
            value: Padded(UnsafeCell::new(value)),
        }
    }

    /// Pushes `pkt`. With `DIRECT`, a packet that finds the intake idle (no packet waits and no
    /// thread is the owner) bypasses the list. Returns the packet as an error if the word can count
    /// no more packets.
    #[inline]
    pub(crate) fn push<const DIRECT: bool>(
        &self,
        pkt: Packet,
        memo: &mut F::Memo,
    ) -> Result<Pushed<Owner<'_, F, T>>, Packet> {
        let word = &self.word.0;
        let owner = || {
            changes(self.value.0.get());
            Owner { intake: self, value: PhantomData }
        };
        // Relaxed: the loaded word is only a guess, which the exchange checks.
        if DIRECT && word.load(Relaxed) == 0 {
            // Acquire: makes the previous owner's writes to the value visible; pairs with the
            // release in `leave`.
            if word.compare_exchange(0, OWNED, Acquire, Relaxed).is_ok() {
                return Ok(Pushed::Owner(owner(), Some(pkt)));
            }
        }
        let before = push_to(word, &self.format.0, memo, pkt, OWNED)?;
        Ok(if before == 0 { Pushed::Owner(owner(), None) } else { Pushed::Staged })
    }
}

impl<'a, F: Format, T> Owner<'a, F, T> {
    /// Takes all packets that wait in the intake.
    #[inline]
    pub(crate) fn take(&mut self, prefetch: bool) -> Chain<'a, F> {
        let word = &self.intake.word.0;
        // Relaxed: if this load misses a push, `leave` fails, and the owner calls `take` again.
        let waits = F::count(word.load(Relaxed)) > 0;
        // Acquire: makes the packets visible; pairs with the release in `push_to`.
        let taken = if waits { word.swap(OWNED, Acquire) } else { OWNED };
        // SAFETY: `push_to` made the list, and the swap gave the whole list to this thread.
        unsafe { Chain::new(&self.intake.format.0, taken, prefetch) }
    }

    /// Gives up the ownership and leaves the intake idle. If packets wait, the caller stays the
    /// owner, and the ownership is returned as an error.
    #[inline]
    pub(crate) fn leave(self) -> Result<(), Self> {
        // Release: publishes the owner's writes to the value; pairs with the acquire of the next
        // owner.
        // Relaxed: a failure tells only that packets wait.
        match self.intake.word.0.compare_exchange(OWNED, 0, Release, Relaxed) {
            Ok(_) => Ok(()),
            Err(_) => Err(self),
        }
    }
}

impl<F: Format, T> Deref for Owner<'_, F, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: there is one owner at a time, and the word hands the value over.
        unsafe { &*self.intake.value.0.get() }
    }
}

impl<F: Format, T> DerefMut for Owner<'_, F, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: there is one owner at a time, and the owner reaches the value only through `&mut
        // self`.
        unsafe { &mut *self.intake.value.0.get() }
    }
}

impl<F: Format, T> Drop for OneWord<F, T> {
    fn drop(&mut self) {
        // SAFETY: no other thread pushes or takes any more, and `push_to` made the list.
        drop(unsafe { Chain::new(&self.format.0, *self.word.0.get_mut(), false) });
    }
}

impl<F: Format, T> fmt::Debug for OneWord<F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OneWord").finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// In each format, a word gives back the address of the packet that it names, whatever count
    /// and flags the word also contains.
    fn names<F: Format>(addrs: &[usize]) {
        let (format, mut memo) = (F::default(), F::Memo::default());
        for addr in addrs.iter().chain(addrs) {
            let name = format.name(*addr, &mut memo);
            for count in [0, 1, F::CAP - 1, F::CAP] {
                let word = name | F::counted(count) | OWNED;
                assert_eq!((format.addr(word), F::count(word)), (*addr, count), "{addr:#x}");
            }
        }
    }

    #[test]
    fn a_word_gives_back_what_was_put_in() {
        let top = (1 << 48) - 64;
        names::<Pointer>(&[64, 1 << 26, top]);
        names::<Index>(&[64, (1 << 26) - 64, 1 << 26, top, 0x5555_0000_0040, top - (1 << 26)]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "millions of steps")]
    #[should_panic(expected = "more than 4096 regions")]
    fn an_index_has_an_end() {
        let (format, mut last) = (Index::default(), LastRegion::default());
        for region in 0..=REGIONS {
            format.name(region << REGION_BITS, &mut last);
        }
    }

    pub(in crate::cell) fn owned<O>(pushed: Result<Pushed<O>, Packet>) -> (O, Option<Packet>) {
        match pushed {
            Ok(Pushed::Owner(owner, fresh)) => (owner, fresh),
            _ => panic!("it was idle"),
        }
    }

    pub(in crate::cell) fn lens(chain: impl Iterator<Item = Packet>) -> Vec<u32> {
        chain.map(|pkt| pkt.len).collect()
    }

    #[test]
    fn one_owner_at_a_time_takes_all_newest_first() {
        let intake = OneWord::<Index, u32>::new(7);
        let mut last = LastRegion::default();
        let (mut owner, fresh) = owned(intake.push::<true>(Packet::new(1), &mut last));
        assert_eq!((fresh.map(|pkt| pkt.len), *owner), (Some(1), 7));
        for len in [2, 3] {
            let pushed = intake.push::<true>(Packet::new(len), &mut last);
            assert!(matches!(pushed, Ok(Pushed::Staged)));
        }
        let Err(mut owner_again) = owner.leave() else { panic!("packets wait") };
        assert_eq!(lens(owner_again.take(true)), [3, 2]);
        *owner_again += 1;
        owner = owner_again;
        assert!(owner.leave().is_ok());
        let (mut owner, fresh) = owned(intake.push::<false>(Packet::new(4), &mut last));
        assert!(fresh.is_none());
        assert_eq!((lens(owner.take(false)), *owner), (vec![4], 8));
        assert!(intake.push::<false>(Packet::new(5), &mut last).is_ok(), "goes with the intake");
    }

    #[test]
    fn a_word_at_its_cap_gives_the_packet_back() {
        let (list, format) = (AtomicU64::new(Pointer::counted(Pointer::CAP)), Pointer);
        let back = push_to(&list, &format, &mut (), Packet::new(9), 0);
        assert_eq!(back.map_err(|pkt| pkt.len), Err(9));
    }
}
