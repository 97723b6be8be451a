//! The calendar: entries of waiting flows, grouped by the slot (the span of 262 us) in which their
//! time lies.

use super::Entry;

/// A slot is 2^18 ns long, which is 262 us.
const SLOT_BITS: u32 = 18;
/// Number of slots in the calendar. Together they span one second, because `fq` plans no further
/// ahead.
const SLOTS: usize = 4096;
/// The value that means "no chunk" where the number of a chunk is expected.
const NONE: u32 = u32::MAX;

/// Returns the number of the slot in which a time lies.
#[inline]
pub(super) const fn slot_of(time_ns: u64) -> u64 {
    time_ns >> SLOT_BITS
}

/// Up to seven entries of one slot in adjacent memory, and a link to the slot's next chunk.
#[derive(Debug)]
#[repr(align(128))]
struct Chunk {
    entries: [Entry; Self::ENTRIES],
    next: u32,
    len: u32,
}

impl Chunk {
    const ENTRIES: usize = 7;
}

const _: () = assert!(size_of::<Chunk>() == 128);

/// The entries whose time lies in the slots that follow the present slot, for one second. Entries
/// of the present slot itself are in the heap.
#[derive(Debug)]
pub(super) struct Calendar {
    /// Two levels of bitmaps: `used` has a bit for each slot, which is set if the slot is not
    /// empty; `words` has a bit for each word of `used`, which is set if the word is not zero.
    used: [u64; SLOTS / 64],
    words: u64,
    /// The number of the newest chunk of each slot; the older chunks of a slot are full.
    slots: [u32; SLOTS],
    chunks: Vec<Chunk>,
    /// The first of the free chunks; each free chunk names the next one.
    free: u32,
}

const _: () = assert!(SLOTS / 64 == 64, "one word has a bit for each word");

impl Calendar {
    pub(super) const SLOTS: u64 = SLOTS as u64;

    pub(super) fn new() -> Box<Self> {
        let (used, slots) = ([0; SLOTS / 64], [NONE; SLOTS]);
        Box::new(Self { used, words: 0, slots, chunks: Vec::new(), free: NONE })
    }

    #[inline]
    pub(super) fn push(&mut self, slot: u64, entry: Entry) {
        let at = (slot % Self::SLOTS) as usize;
        let last = self.slots[at];
        let has_room = |chunk: &&mut Chunk| (chunk.len as usize) < Chunk::ENTRIES;
        if let Some(chunk) = self.chunks.get_mut(last as usize).filter(has_room) {
            chunk.entries[chunk.len as usize] = entry;
            chunk.len += 1;
            return;
        }
        let fresh = self.fresh();
        let chunk = &mut self.chunks[fresh as usize];
        chunk.entries[0] = entry;
        (chunk.next, chunk.len) = (last, 1);
        self.slots[at] = fresh;
        self.used[at / 64] |= 1 << (at % 64);
        self.words |= 1 << (at / 64);
    }

    /// Returns the number of the first slot after `present` that is not empty, or `None` if all
    /// slots are empty.
    pub(super) fn first_slot(&self, present: u64) -> Option<u64> {
        let from = ((present + 1) % Self::SLOTS) as usize;
        let rest = self.used[from / 64] >> (from % 64);
        let at = if rest != 0 {
            from + rest.trailing_zeros() as usize
        } else {
            // The bitmap word that contains the slot `from` shows no entries from `from` on. Search
            // the words behind that word, then all words from the start, so that the slots of that
            // word before `from` come last.
            let ahead = self.words & (!1 << (from / 64));
            let words = if ahead != 0 { ahead } else { self.words };
            if words == 0 {
                return None;
            }
            let word = words.trailing_zeros() as usize;
            word * 64 + self.used[word].trailing_zeros() as usize
        };
        Some(present + 1 + (at.wrapping_sub(from) % SLOTS) as u64)
    }

    /// Removes all entries of the slot `slot` and passes them to `out`, in no particular order.
    pub(super) fn take(&mut self, slot: u64, mut out: impl FnMut(Entry)) {
        let at = (slot % Self::SLOTS) as usize;
        self.used[at / 64] &= !(1 << (at % 64));
        if self.used[at / 64] == 0 {
            self.words &= !(1 << (at / 64));
        }
        let mut next = std::mem::replace(&mut self.slots[at], NONE);
        while let Some(chunk) = self.chunks.get_mut(next as usize) {
            chunk.entries[..chunk.len as usize].iter().copied().for_each(&mut out);
            let free = std::mem::replace(&mut self.free, next);
            next = std::mem::replace(&mut chunk.next, free);
        }
    }

    /// Removes all entries and passes them to `out`.
    pub(super) fn drain(&mut self, mut out: impl FnMut(Entry)) {
        (0..Self::SLOTS).for_each(|slot| self.take(slot, &mut out));
    }

    /// Returns the number of a chunk that belongs to no slot.
    #[inline]
    fn fresh(&mut self) -> u32 {
        let Some(chunk) = self.chunks.get(self.free as usize) else { return self.grow() };
        std::mem::replace(&mut self.free, chunk.next)
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        let entries = [Entry::default(); Chunk::ENTRIES];
        self.chunks.push(Chunk { entries, next: NONE, len: 0 });
        u32::try_from(self.chunks.len() - 1).expect("there are fewer chunks than flows")
    }
}
