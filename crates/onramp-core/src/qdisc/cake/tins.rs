//! Which tin a packet belongs to, and what part of the rate each gets.
//!
//! Source: `tc-cake(8)`, section "PRIORITY QUEUE PARAMETERS"; RFC 4594 and its successors for what
//! the code points are for.

/// The word that asks for one.
pub(super) const MODES: &[&str] = &["diffserv3", "diffserv4", "diffserv8", "besteffort", "precedence"];

/// The tins of a mode.
#[derive(Debug)]
pub(super) struct Plan {
    /// The tin of each code point.
    pub(super) index: [u8; 64],
    /// The tins as users count them, from the least important on.
    pub(super) order: &'static [u8],
    /// Rate of each, and bytes in a round where there are no rates.
    pub(super) tins: Vec<(u64, i32)>,
}

const IN_ORDER: [u8; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
/// Best effort is the first tin, with the full rate, but bulk comes before it.
const BULK_FIRST: [u8; 4] = [1, 0, 2, 3];

/// Code points that have a name.
const LE: usize = 1;
const CS1: usize = 8;
const VA: usize = 44;
const EF: usize = 46;

/// Sets the tin of these code points.
fn put(index: &mut [u8; 64], tin: u8, points: impl IntoIterator<Item = usize>) {
    points.into_iter().for_each(|point| index[point] = tin);
}

/// Class selectors from `first` to `last`.
fn selectors(first: usize, last: usize) -> impl Iterator<Item = usize> {
    (first..=last).map(|class| class * 8)
}

/// Assured forwarding of a class, in its three drop precedences.
fn assured(class: usize) -> impl Iterator<Item = usize> {
    (1..=3).map(move |drop| class * 8 + drop * 2)
}

impl Plan {
    /// The plan of the mode at this place of [`MODES`], for `rate` bytes per second; 0 = unlimited.
    pub(super) fn new(mode: u64, rate: u64) -> Self {
        match MODES[usize::try_from(mode).unwrap_or(0)] {
            "diffserv3" => Self {
                index: three(),
                order: &BULK_FIRST[..3],
                tins: [0, 4, 2].map(|shift| (rate >> shift, 1024 >> shift)).to_vec(),
            },
            "diffserv4" => Self {
                index: four(),
                order: &BULK_FIRST,
                tins: [0, 4, 1, 2].map(|shift| (rate >> shift, 1024 >> shift)).to_vec(),
            },
            "diffserv8" => Self { index: eight(), order: &IN_ORDER, tins: steps(rate) },
            "precedence" => {
                let mut index = [0; 64];
                for class in IN_ORDER {
                    put(&mut index, class, (0..8).map(|low| usize::from(class) * 8 + low));
                }
                Self { index, order: &IN_ORDER, tins: steps(rate) }
            }
            _ => Self { index: [0; 64], order: &IN_ORDER[..1], tins: vec![(rate, 65_535)] },
        }
    }
}

/// Each tin gets 7/8 of the one before it.
fn steps(rate: u64) -> Vec<(u64, i32)> {
    let less = |&(rate, quantum): &(u64, i32)| {
        let rate = u128::from(rate) * 7 / 8;
        Some((u64::try_from(rate).unwrap_or(u64::MAX), (quantum * 7) >> 3))
    };
    std::iter::successors(Some((rate, 256)), less).take(8).collect()
}

/// Bulk 1, best effort 0, voice 2.
fn three() -> [u8; 64] {
    let mut index = [0; 64];
    put(&mut index, 1, [LE, CS1]);
    put(&mut index, 2, [4, VA, EF].into_iter().chain(selectors(6, 7)));
    index
}

/// Bulk 1, best effort 0, video 2, voice 3.
fn four() -> [u8; 64] {
    let mut index = [0; 64];
    put(&mut index, 1, [LE, CS1]);
    put(&mut index, 2, [4].into_iter().chain(selectors(2, 3)));
    put(&mut index, 2, (2..=4).flat_map(assured));
    put(&mut index, 3, [VA, EF].into_iter().chain(selectors(4, 7)));
    index
}

/// From background to network control.
fn eight() -> [u8; 64] {
    let mut index = [2; 64];
    put(&mut index, 0, [LE]);
    put(&mut index, 1, [CS1, 2].into_iter().chain(assured(1)));
    put(&mut index, 3, selectors(3, 3).chain(assured(3)).chain(assured(4)));
    put(&mut index, 4, [4].into_iter().chain(assured(2)));
    put(&mut index, 5, selectors(2, 2));
    put(&mut index, 6, [VA, EF].into_iter().chain(selectors(4, 5)));
    put(&mut index, 7, selectors(6, 7));
    index
}
