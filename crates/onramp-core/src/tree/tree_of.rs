//! A tree whose packets carry values of the program's own.

use std::iter;

use onramp_queue::Packet;

use super::Tree;
use crate::base::Instant;
use crate::sched::{Dequeue, Verdict};

/// Why a packet has no value.
const NO_VALUE: &str = "a packet in the tree has no value: it was not enqueued by \
     `TreeOf::enqueue`, or another tree stands in the place of the first, or a qdisc of the \
     program's own has made it without `Cx::duplicate` or has changed its cookie";

/// A [`Tree`] each of whose packets carries a value of the type `T`: a buffer, a request, or
/// anything else that the program owns. A value that is enqueued comes back exactly once, with its
/// packet: from [`dequeue`](Self::dequeue), or from [`drops`](Self::drops), where the packet has
/// the reason of its drop.
///
/// Use it in a program that has a loop and buffers of its own, in place of a table that finds the
/// buffer of a packet again. The packet says what qdiscs and filters have to know: its length and
/// flow, and its headers ([`Packet::with_payload`]) if filters or `cake` are to read them. Qdiscs
/// change the packet only, never the value: they set an ECN mark in
/// [`ecn`](onramp_queue::Meta::ecn), and `netem corrupt` inverts a bit of the packet's payload.
///
/// ```
/// use onramp_core::qdisc::Dequeue;
/// use onramp_core::{Instant, Tree, TreeOf};
/// use onramp_queue::{DropReason, Packet};
///
/// let mut tree = TreeOf::new(Tree::new(&"pfifo limit 2".parse()?, 1_500));
/// let now = Instant(1_000_000_000);
/// for number in 0..3_u8 {
///     let frame = vec![number; 1_000];
///     let packet = Packet::new(frame.len() as u32);
///     let _ = tree.enqueue(now, packet, frame); // `drops` has the frame if it was dropped
/// }
/// for (packet, frame) in tree.drops() {
///     assert_eq!((packet.drop_reason, frame[0]), (Some(DropReason::Overlimit), 2));
/// }
///
/// let Dequeue::Ready((_, frame)) = tree.dequeue(now) else { panic!("two frames are there") };
/// assert_eq!(frame, [0; 1_000]);
///
/// // At the end, the program takes back the frames that have not left.
/// tree.tree_mut().reset(now);
/// let left: Vec<_> = tree.drops().map(|(_, frame)| frame[0]).collect();
/// assert_eq!(left, [1]);
/// # Ok::<(), onramp_core::ConfigError>(())
/// ```
///
/// # Copies
///
/// `netem duplicate` copies packets, and some kinds split a packet that carries several datagrams
/// ([`gso_size`](onramp_queue::Meta::gso_size)). Then several packets leave the tree with one
/// value. The packet that leaves last has the value itself, and each of the others has a copy,
/// which the `TreeOf` makes when the packet leaves. A `TreeOf` made by [`new`](Self::new) copies
/// values by [`Clone`]; [`with_copy`](Self::with_copy) is for values that cannot be cloned. As long
/// as qdiscs copy and split no packets, no value is copied.
///
/// # Memory
///
/// The tree has as many places for values as there were values inside at one time, including those
/// of dropped packets, and uses a place again when its value has left. So take the drops from time
/// to time.
#[derive(Debug)]
pub struct TreeOf<T> {
    tree: Tree,
    values: Values<T>,
}

impl<T> TreeOf<T> {
    /// Lets the packets of `tree` carry values. If a qdisc copies a packet, the value is cloned.
    ///
    /// # Panics
    ///
    /// Panics if `tree` holds packets, or dropped packets that nobody has taken: they have no
    /// values.
    #[must_use]
    pub fn new(tree: Tree) -> Self
    where
        T: Clone,
    {
        Self::with_copy(tree, T::clone)
    }

    /// Like [`new`](Self::new), but `copy` makes the value of a packet that a qdisc has copied. If
    /// a value cannot be copied at all, carry an `Option` of it:
    ///
    /// ```
    /// use onramp_core::qdisc::Dequeue;
    /// use onramp_core::{Instant, Tree, TreeOf};
    /// use onramp_queue::Packet;
    ///
    /// /// A request, which the program answers when the last of its packets has left.
    /// struct Request(u32);
    ///
    /// let tree = Tree::new(&"netem duplicate 100%".parse()?, 1_500);
    /// let mut tree = TreeOf::with_copy(tree, |_: &Option<Request>| None);
    /// let now = Instant(1_000_000_000);
    /// let _ = tree.enqueue(now, Packet::new(100), Some(Request(7)));
    /// let Dequeue::Ready((_, None)) = tree.dequeue(now) else { panic!("another will leave") };
    /// let Dequeue::Ready((_, Some(Request(7)))) = tree.dequeue(now) else { panic!("the last") };
    /// # Ok::<(), onramp_core::ConfigError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// In the same case as [`new`](Self::new).
    #[must_use]
    pub fn with_copy(mut tree: Tree, copy: fn(&T) -> T) -> Self {
        let is_empty = tree.backlog().packets == 0 && tree.drops.is_empty();
        assert!(is_empty, "packets that are in the tree already have no values");
        tree.copied = Some(Vec::new());
        Self { tree, values: Values { places: Vec::new(), free: Vec::new(), puts: 0, copy } }
    }

    /// Enqueues `packet` with its value, or drops it: see [`Tree::enqueue`]. In the tree, the
    /// packet's [`cookie`](onramp_queue::Meta::cookie) names its value; when the packet leaves, it
    /// has its own cookie again.
    pub fn enqueue(&mut self, now: Instant, mut packet: Packet, value: T) -> Verdict {
        packet.cookie = self.values.put(packet.cookie, value);
        self.tree.enqueue(now, packet)
    }

    /// Returns `packet` and its value at once if the packet bypasses the tree. Any other packet is
    /// enqueued or dropped: see [`Tree::pass_or_enqueue`].
    ///
    /// # Errors
    ///
    /// If the packet did not bypass the tree, returns the verdict of [`enqueue`](Self::enqueue) on
    /// the packet.
    pub fn pass_or_enqueue(
        &mut self,
        now: Instant,
        mut packet: Packet,
        value: T,
    ) -> Result<(Packet, T), Verdict> {
        packet.cookie = self.values.put(packet.cookie, value);
        self.tree.pass_or_enqueue(now, packet).map(|packet| self.with_value(packet))
    }

    /// Enqueues or drops a packet, with its value, that could bypass the tree but that the device
    /// does not take now: see [`Tree::keep_or_enqueue`].
    pub fn keep_or_enqueue(&mut self, now: Instant, mut packet: Packet, value: T) -> Verdict {
        packet.cookie = self.values.put(packet.cookie, value);
        self.tree.keep_or_enqueue(now, packet)
    }

    /// Returns the next packet and its value if one may leave now: see [`Tree::dequeue`].
    ///
    /// # Panics
    ///
    /// Panics if the packet has no value: the program has enqueued it through
    /// [`tree_mut`](Self::tree_mut), or a qdisc of the program's own has made it without
    /// [`Cx::duplicate`](crate::qdisc::Cx::duplicate) or has changed its cookie.
    pub fn dequeue(&mut self, now: Instant) -> Dequeue<(Packet, T)> {
        match self.tree.dequeue(now) {
            Dequeue::Ready(packet) => Dequeue::Ready(self.with_value(packet)),
            Dequeue::NotBefore(then) => Dequeue::NotBefore(then),
            Dequeue::Empty => Dequeue::Empty,
        }
    }

    /// Takes the dropped packets, one after another, each with its value and its
    /// [`drop_reason`](onramp_queue::Meta::drop_reason). Packets that the caller does not take from
    /// the iterator stay for the next call.
    ///
    /// # Panics
    ///
    /// In the same case as [`dequeue`](Self::dequeue), when such a packet is taken.
    pub fn drops(&mut self) -> impl Iterator<Item = (Packet, T)> {
        iter::from_fn(|| {
            let packet = self.tree.drops.pop_front()?;
            Some(self.with_value(packet))
        })
    }

    /// Returns the tree, to read from it.
    #[must_use]
    pub const fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Returns the tree, to change it, to reset it, or to ask when the next packet may leave
    /// ([`Tree::next_at`]).
    ///
    /// Do not enqueue, dequeue or take drops through this reference. A packet that is enqueued
    /// through it has no value, so [`dequeue`](Self::dequeue) panics when the packet leaves. If a
    /// packet is taken through it, the packet's value stays inside until the `TreeOf` is dropped.
    /// Nor put another tree in the place of this one: its packets would have no values, or those of
    /// other packets.
    #[must_use]
    pub const fn tree_mut(&mut self) -> &mut Tree {
        &mut self.tree
    }

    /// Adds the value to a packet that has left the tree.
    fn with_value(&mut self, mut packet: Packet) -> (Packet, T) {
        for cookie in self.tree.copied.iter_mut().flat_map(|copied| copied.drain(..)) {
            if let Some(carried) = self.values.find(cookie) {
                carried.copies += 1;
            }
        }
        let (cookie, value) = self.values.take(packet.cookie).expect(NO_VALUE);
        packet.cookie = cookie;
        (packet, value)
    }
}

/// The values of the packets in a tree. The cookie of a packet in the tree says where its value is:
/// the lower half is the number of the place, and the upper half tells the values apart that have
/// had the same place.
#[derive(Debug)]
struct Values<T> {
    places: Vec<Option<Carried<T>>>,
    /// The numbers of the empty places.
    free: Vec<u32>,
    /// Number of values that were put in, modulo 2^32.
    puts: u32,
    copy: fn(&T) -> T,
}

/// A value, and what belongs to it.
#[derive(Debug)]
struct Carried<T> {
    /// The cookie of its packets in the tree.
    inside: u64,
    /// The cookie that the packet had before.
    outside: u64,
    /// Number of copies of the packet that have not left.
    copies: u32,
    value: T,
}

impl<T> Values<T> {
    /// Keeps the value of a packet with the cookie `outside`. Returns the packet's cookie in the
    /// tree.
    fn put(&mut self, outside: u64, value: T) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            // A tree counts the packets that it holds in 32 bits too.
            u32::try_from(self.places.len() - 1).expect("fewer than 2^32 packets are in the tree")
        });
        self.puts = self.puts.wrapping_add(1);
        let inside = u64::from(self.puts) << 32 | u64::from(place);
        self.places[place as usize] = Some(Carried { inside, outside, copies: 0, value });
        inside
    }

    /// Returns what belongs to the packets with the cookie `inside` in the tree.
    fn find(&mut self, inside: u64) -> Option<&mut Carried<T>> {
        let carried = self.places.get_mut(place(inside) as usize)?.as_mut()?;
        (carried.inside == inside).then_some(carried)
    }

    /// Returns the value for a packet that has left, and the cookie that the packet had before.
    fn take(&mut self, inside: u64) -> Option<(u64, T)> {
        let copy = self.copy;
        let carried = self.find(inside)?;
        if carried.copies > 0 {
            carried.copies -= 1;
            return Some((carried.outside, copy(&carried.value)));
        }
        let carried = self.places[place(inside) as usize].take()?;
        self.free.push(place(inside));
        Some((carried.outside, carried.value))
    }
}

/// Returns the number of the place that a cookie names.
#[expect(clippy::cast_possible_truncation, reason = "the lower half is the number")]
const fn place(inside: u64) -> u32 {
    inside as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::Dequeue;

    /// A place is used again, so the memory does not grow with the number of values that have left.
    #[test]
    fn a_value_that_has_left_takes_no_memory() {
        let mut tree = TreeOf::new(Tree::new(&"pfifo limit 3".parse().expect("a qdisc"), 1_500));
        for number in 0..100_u32 {
            let _ = tree.enqueue(Instant(0), Packet::new(100), number);
            if number % 5 == 4 {
                let drops: Vec<_> = tree.drops().map(|(_, value)| value).collect();
                assert_eq!(drops, [number - 1, number]);
                for value in number - 4..number - 1 {
                    let answer = tree.dequeue(Instant(0));
                    assert!(matches!(answer, Dequeue::Ready((_, left)) if left == value));
                }
            }
        }
        assert_eq!((tree.values.places.len(), tree.values.free.len()), (5, 5));
    }
}
