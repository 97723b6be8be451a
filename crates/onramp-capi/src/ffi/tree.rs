//! Trees of qdiscs in the caller's time.

use std::ffi::{c_char, c_int};

use super::memory::{Places, TextPlace, array, put, text, wanted};
use super::object::{self, Named, Object};
use crate::abi::{ONRAMP_HEAD_MAX, Pkt};
use crate::error::{Error, entry};
use crate::shaper::{Arrivals, Fates, Shaper};

/// A tree of qdiscs without threads, sockets or a clock. Every call takes the time: nanoseconds
/// from any beginning, which never go back. The same calls give the same results.
///
/// One thread at a time may use a tree; a call that meets another one's gives -EBUSY.
#[derive(Debug)]
pub struct Tree {
    _private: [u8; 0],
}

impl Named for Shaper {
    const WORD: u64 = 0x6f6e_7261_6d70_5f74;
    const NAME: &'static str = "onramp_tree";
}

impl Tree {
    fn object(tree: *const Self) -> *mut Object<Shaper> {
        tree.cast_mut().cast()
    }
}

/// Makes a tree from lines of tc, one command a line: `qdisc add root handle 1: htb default 1`,
/// `class add parent 1: classid 1:1 htb rate 8mbit`, and so on. The lines need not name a device;
/// `#` begins a comment. `mtu` is the length of the largest packet, link header included, bytes (0:
/// 1514). Equal seeds give equal random choices.
///
/// Returns 0. -EINVAL: a line is wrong, and the text names the word.
///
/// # Safety
///
/// `tree` may be written, and `tc` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_tree_new(
    tree: *mut *mut Tree,
    tc: *const c_char,
    mtu: u32,
    seed: u64,
) -> c_int {
    entry(|| {
        wanted(tree, "tree")?;
        // SAFETY: as the caller promises.
        let lines = unsafe { text(tc, "tc") }?;
        let object = Object::new(Shaper::new(lines, mtu, seed)?);
        // SAFETY: as the caller promises.
        unsafe { put(tree, object.cast()) };
        Ok(0)
    })
}

/// Frees a tree, and forgets the packets that it holds: `onramp_tree_reset` and `onramp_tree_drops`
/// give their cookies back before. NULL is allowed.
///
/// Returns 0. -EBUSY: another call is using the tree, which is not freed.
///
/// # Safety
///
/// `tree` is NULL or comes from `onramp_tree_new`, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_tree_free(tree: *mut Tree) -> c_int {
    // SAFETY: as the caller promises.
    entry(|| unsafe { object::free(Tree::object(tree)) })
}

/// Carries out a command of tc on a running tree, and writes what tc would print to `text`, `n`
/// bytes at most with the zero byte at its end. `qdisc change root fq maxrate 8mbit` changes the
/// tree; `-s qdisc show` and `-s -j class show` list it as text and as JSON. `text` may be NULL if
/// `n` is 0. Packets that a change drops are among `onramp_tree_drops`.
///
/// Returns the length of the whole text, as `snprintf` does. -EINVAL: the line is wrong, nothing
/// has changed, and the text names the word.
///
/// # Safety
///
/// `tree` comes from `onramp_tree_new`; `line` ends with a zero byte; `n` bytes at `text` may be
/// written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_tree_tc(
    tree: *mut Tree,
    now: u64,
    line: *const c_char,
    text: *mut c_char,
    n: usize,
) -> c_int {
    entry(|| {
        // SAFETY: as the caller promises.
        let line = unsafe { super::memory::text(line, "line") }?;
        // SAFETY: as the caller promises. A wrong place is refused before the command is carried
        // out.
        let place = unsafe { TextPlace::new(text, n) }?;
        // SAFETY: as the caller promises.
        let out = unsafe { object::with(Tree::object(tree), |tree| tree.tc(now, line)) }?;
        Ok(place.print(&out))
    })
}

/// Enqueues packets, in order. A packet that is not enqueued is dropped, and so may be packets that
/// the tree already held: `onramp_tree_drops` returns them.
///
/// Returns how many packets were dropped. -EINVAL: a packet is wrong, and none was enqueued.
///
/// # Safety
///
/// `tree` comes from `onramp_tree_new`; `n` packets at `pkts` may be read, and `head_len` bytes at
/// the `head` of each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_tree_enqueue(
    tree: *mut Tree,
    now: u64,
    pkts: *const Pkt,
    n: usize,
) -> c_int {
    entry(|| {
        // SAFETY: as the caller promises.
        let pkts = unsafe { array(pkts, n, "pkts") }?;
        let head = |pkt: &Pkt| {
            if pkt.head_len == 0 {
                return &[][..];
            }
            let len = usize::from(pkt.head_len).min(ONRAMP_HEAD_MAX as usize);
            // SAFETY: as the caller promises; `enqueue` has checked that `head` is not null.
            unsafe { std::slice::from_raw_parts(pkt.head.cast::<u8>(), len) }
        };
        // SAFETY: as the caller promises.
        unsafe { object::with(Tree::object(tree), |tree| tree.enqueue(now, pkts, head)) }
    })
}

/// Takes packets that may leave now, `n` at most, and writes them to `pkts`. Writes to `next` when
/// to ask again: `now` if `n` packets left, because more may be ready; `UINT64_MAX` if the tree is
/// empty, or if nothing leaves it until it is changed (a closed `plug`). A later call of
/// `onramp_tree_enqueue` or `onramp_tree_tc` may bring the time forward. `next` may be NULL.
///
/// Returns how many packets left.
///
/// # Safety
///
/// `tree` comes from `onramp_tree_new`; `n` packets at `pkts` may be written, and `next`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_tree_dequeue(
    tree: *mut Tree,
    now: u64,
    pkts: *mut Pkt,
    n: usize,
    next: *mut u64,
) -> c_int {
    entry(|| {
        // SAFETY: as the caller promises.
        let mut places = unsafe { Places::new(pkts, n, "pkts") }?;
        let take = |tree: &mut Shaper| tree.dequeue(now, n, |pkt| places.put(pkt));
        // SAFETY: as the caller promises.
        let then = unsafe { object::with(Tree::object(tree), take) }?;
        // SAFETY: as the caller promises.
        unsafe { put(next, then) };
        Ok(places.count)
    })
}

/// Takes packets that were dropped, `n` at most, each with its `drop_reason`, and writes them to
/// `pkts`. If `pkts` is NULL, forgets `n` of them. The tree keeps dropped packets until they are
/// taken: take them from time to time.
///
/// Returns how many packets it took.
///
/// # Safety
///
/// `tree` comes from `onramp_tree_new`; `pkts` is NULL, or `n` packets there may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_tree_drops(tree: *mut Tree, pkts: *mut Pkt, n: usize) -> c_int {
    entry(|| {
        if pkts.is_null() {
            // SAFETY: as the caller promises.
            return unsafe { object::with(Tree::object(tree), |tree| Ok(tree.drops(n, |_| ()))) };
        }
        // SAFETY: as the caller promises.
        let mut places = unsafe { Places::new(pkts, n, "pkts") }?;
        let take = |tree: &mut Shaper| Ok(tree.drops(n, |pkt| places.put(pkt)));
        // SAFETY: as the caller promises.
        unsafe { object::with(Tree::object(tree), take) }
    })
}

/// Drops all packets that the tree holds (`ONRAMP_DROP_PURGED`), and sets the state of all flows
/// back. `onramp_tree_drops` returns the packets.
///
/// Returns 0.
///
/// # Safety
///
/// `tree` comes from `onramp_tree_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_tree_reset(tree: *mut Tree, now: u64) -> c_int {
    // SAFETY: as the caller promises.
    entry(|| unsafe { object::with(Tree::object(tree), |tree| tree.reset(now).map(|()| 0)) })
}

/// Writes how many packets the tree holds, and their bytes. Dropped packets do not count. Both
/// places may be NULL.
///
/// Returns 0.
///
/// # Safety
///
/// `tree` comes from `onramp_tree_new`; `packets` and `bytes` are NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_tree_backlog(
    tree: *mut Tree,
    packets: *mut u64,
    bytes: *mut u64,
) -> c_int {
    entry(|| {
        // SAFETY: as the caller promises.
        let held = unsafe { object::with(Tree::object(tree), |tree| Ok(tree.backlog())) }?;
        // SAFETY: as the caller promises.
        unsafe { put(packets, held.0) };
        // SAFETY: as the caller promises.
        unsafe { put(bytes, held.1) };
        Ok(0)
    })
}

/// Passes `n` packets through an empty tree in virtual time at once, in front of a device that
/// takes each packet as soon as the tree lets it go. Packet `i` arrives at `in_ns[i]` (never before
/// the packet before it), has `len[i]` bytes and belongs to flow `flow[i]` (NULL: all to one).
/// Writes when it left to `out_ns[i]`, `UINT64_MAX` if it was dropped, and its drop reason to
/// `why[i]` (NULL: not wanted; 0: it left). A packet that `netem` has duplicated counts as left as
/// soon as one of the two leaves. Packets that have not left an hour of virtual time after the last
/// one that did are dropped.
///
/// Returns 0. -EBUSY: the tree holds packets, or dropped packets that were not taken.
///
/// # Safety
///
/// `tree` comes from `onramp_tree_new`; the arrays of `n` elements may be read or written, and do
/// not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_tree_replay(
    tree: *mut Tree,
    n: usize,
    in_ns: *const u64,
    len: *const u32,
    flow: *const u64,
    out_ns: *mut u64,
    why: *mut u8,
) -> c_int {
    entry(|| {
        if c_int::try_from(n).is_err() {
            return Err(Error::invalid(format!("n is {n}; expected at most {}", c_int::MAX)));
        }
        // SAFETY: as the caller promises.
        let in_ns = unsafe { array(in_ns, n, "in_ns") }?;
        // SAFETY: as the caller promises.
        let len = unsafe { array(len, n, "len") }?;
        // SAFETY: as the caller promises.
        let flow = unsafe { array(flow, if flow.is_null() { 0 } else { n }, "flow") }?;
        // SAFETY: as the caller promises.
        let out_ns = unsafe { filled(out_ns, n, "out_ns", u64::MAX) }?;
        // SAFETY: as the caller promises.
        let why = unsafe { filled(why, if why.is_null() { 0 } else { n }, "why", 0) }?;
        let (all, mut fates) = (Arrivals { in_ns, len, flow }, Fates { out_ns, why });
        let run = |tree: &mut Shaper| tree.replay(&all, &mut fates);
        // SAFETY: as the caller promises.
        unsafe { object::with(Tree::object(tree), run) }.map(|()| 0)
    })
}

/// Fills the array of `n` elements at `pointer` with `value`, and returns it.
///
/// # Safety
///
/// The array may be written, and nobody else uses it meanwhile.
unsafe fn filled<'a, T: Copy>(
    pointer: *mut T,
    n: usize,
    name: &str,
    value: T,
) -> Result<&'a mut [T], Error> {
    // SAFETY: as the caller promises.
    let mut places = unsafe { Places::new(pointer, n, name) }?;
    (0..n).for_each(|_| places.put(value));
    if n == 0 {
        return Ok(&mut []);
    }
    // SAFETY: all `n` elements have just been written, and `Places` has checked the pointer.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, n) })
}
