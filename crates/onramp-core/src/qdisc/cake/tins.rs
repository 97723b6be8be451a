//! The tins of each `diffserv` mode: to which tin a packet goes, and what part of the rate each tin
//! gets.
//!
//! Source: `tc-cake(8)`, section "PRIORITY QUEUE PARAMETERS"; RFC 4594 and its successors for the
//! meaning of the code points.

/// The words that name the `diffserv` modes.
pub(super) const MODES: &[&str] =
    &["diffserv3", "diffserv4", "diffserv8", "besteffort", "precedence", "diffserv"];

/// The tins of a `diffserv` mode.
#[derive(Debug)]
pub(super) struct TinLayout {
    /// The number of the tin for each code point (DSCP).
    pub(super) index: [u8; 64],
    /// The numbers of the tins from the least to the most important one: the order in which
    /// statistics list the tins.
    pub(super) order: &'static [u8],
    /// For each tin: its rate in bytes per second, and the number of bytes that it may send in a
    /// round if no rate is configured.
    pub(super) tins: Vec<(u64, i32)>,
}

const IN_ORDER: [u8; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
/// The order in `diffserv3` and `diffserv4`: tin 1 (bulk) is less important than tin 0 (best
/// effort).
const BULK_FIRST: [u8; 4] = [1, 0, 2, 3];

/// Code points (DSCP) that have a name.
const LE: usize = 1;
const CS1: usize = 8;
const VA: usize = 44;
const EF: usize = 46;

/// Assigns the tin `tin` to the code points `points`.
fn put(index: &mut [u8; 64], tin: u8, points: impl IntoIterator<Item = usize>) {
    points.into_iter().for_each(|point| index[point] = tin);
}

/// Returns the code points of the class selectors from `first` to `last`.
fn selectors(first: usize, last: usize) -> impl Iterator<Item = usize> {
    (first..=last).map(|class| class * 8)
}

/// Returns the code points of the assured forwarding class `class`, one for each of its three drop
/// precedences.
fn assured(class: usize) -> impl Iterator<Item = usize> {
    (1..=3).map(move |drop| class * 8 + drop * 2)
}

impl TinLayout {
    /// Creates the layout of the mode at place `mode` of [`MODES`], for `rate` bytes per second; 0
    /// = unlimited.
    pub(super) fn new(mode: u64, rate: u64) -> Self {
        let tins = parts(mode, rate).collect();
        match word(mode) {
            "diffserv3" => Self { index: three(), order: &BULK_FIRST[..3], tins },
            "diffserv4" | "diffserv" => Self { index: four(), order: &BULK_FIRST, tins },
            "diffserv8" => Self { index: eight(), order: &IN_ORDER, tins },
            "precedence" => {
                let mut index = [0; 64];
                for class in IN_ORDER {
                    put(&mut index, class, (0..8).map(|low| usize::from(class) * 8 + low));
                }
                Self { index, order: &IN_ORDER, tins }
            }
            _ => Self { index: [0; 64], order: &IN_ORDER[..1], tins },
        }
    }
}

fn word(mode: u64) -> &'static str {
    MODES[usize::try_from(mode).expect("a mode of the table")]
}

/// Returns, for each tin of a mode, its rate and the number of bytes that it may send in a round if
/// no rate is configured.
pub(super) fn parts(mode: u64, rate: u64) -> impl Iterator<Item = (u64, i32)> {
    // In some modes, each tin gets a fraction of the whole rate; in other modes, a fraction of the
    // rate of the tin before it.
    let (shifts, count, first): (&[u32], _, _) = match word(mode) {
        "diffserv3" => (&[0, 4, 2], 0, 0),
        "diffserv4" | "diffserv" => (&[0, 4, 1, 2], 0, 0),
        "diffserv8" | "precedence" => (&[], 8, 256),
        _ => (&[], 1, 65_535),
    };
    let parts = shifts.iter().map(move |shift| (rate >> shift, 1024 >> shift));
    parts.chain(steps(rate, first).take(count))
}

/// Returns the rates and the bytes per round of tins of which each gets 7/8 of what the tin before
/// it gets.
fn steps(rate: u64, first: i32) -> impl Iterator<Item = (u64, i32)> {
    let less = |&(rate, quantum): &(u64, i32)| {
        let rate = u128::from(rate) * 7 / 8;
        Some((u64::try_from(rate).unwrap_or(u64::MAX), (quantum * 7) >> 3))
    };
    std::iter::successors(Some((rate, first)), less)
}

/// Returns the tin of each code point in `diffserv3`: bulk is tin 1, best effort tin 0, voice tin
/// 2.
fn three() -> [u8; 64] {
    let mut index = [0; 64];
    put(&mut index, 1, [LE, CS1]);
    put(&mut index, 2, [4, VA, EF].into_iter().chain(selectors(6, 7)));
    index
}

/// Returns the tin of each code point in `diffserv4`: bulk is tin 1, best effort tin 0, video tin
/// 2, voice tin 3.
fn four() -> [u8; 64] {
    let mut index = [0; 64];
    put(&mut index, 1, [LE, CS1]);
    put(&mut index, 2, [4].into_iter().chain(selectors(2, 3)));
    put(&mut index, 2, (2..=4).flat_map(assured));
    put(&mut index, 3, [VA, EF].into_iter().chain(selectors(4, 7)));
    index
}

/// Returns the tin of each code point in `diffserv8`: from tin 0, background, to tin 7, network
/// control.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// For each mode: the bytes that Linux counted in each tin, from the least important tin on, in
    /// seven runs. In run b (0 to 5), 60 + 22 n bytes were sent with each code point n in which bit
    /// b is set. In the last run, 60 + 22 n bytes were sent with each code point n.
    const LINUX: &[(u64, [&[u32]; 7])] = &[
        (
            0,
            [
                &[82, 24_366, 0],
                &[0, 23_728, 1072],
                &[0, 23_256, 2248],
                &[236, 23_284, 3392],
                &[0, 27_320, 2408],
                &[0, 30_852, 4508],
                &[318, 43_218, 4656],
            ],
        ),
        (
            1,
            [
                &[82, 24_366, 0, 0],
                &[0, 19_672, 4056, 1072],
                &[0, 19_068, 4336, 2100],
                &[236, 19_728, 2616, 4332],
                &[0, 22_792, 4528, 2408],
                &[0, 26_592, 2556, 6212],
                &[318, 34_430, 7232, 6212],
            ],
        ),
        (
            2,
            [
                &[82, 0, 24_366, 0, 0, 0, 0, 0],
                &[0, 752, 18_920, 3056, 1000, 0, 1072, 0],
                &[0, 692, 18_376, 3144, 1192, 0, 2100, 0],
                &[0, 1208, 18_756, 2616, 0, 0, 3040, 1292],
                &[0, 0, 22_792, 2616, 1500, 412, 0, 2408],
                &[0, 0, 26_592, 2556, 0, 0, 3804, 2408],
                &[82, 1312, 33_354, 5172, 1648, 412, 3804, 2408],
            ],
        ),
        (
            4,
            [
                &[592, 1296, 2000, 2704, 3408, 4112, 4816, 5520],
                &[636, 1340, 2044, 2748, 3452, 4156, 4860, 5564],
                &[724, 1428, 2132, 2836, 3540, 4244, 4948, 5652],
                &[0, 2504, 0, 5320, 0, 8136, 0, 10_952],
                &[0, 0, 3912, 5320, 0, 0, 9544, 10_952],
                &[0, 0, 0, 0, 6728, 8136, 9544, 10_952],
                &[1096, 2504, 3912, 5320, 6728, 8136, 9544, 10_952],
            ],
        ),
    ];

    #[test]
    fn code_points_go_where_linux_puts_them() {
        for (mode, rows) in LINUX {
            let plan = TinLayout::new(*mode, 0);
            for (bit, row) in rows.iter().enumerate() {
                let mut bytes = vec![0; plan.tins.len()];
                for point in (0..64_u32).filter(|point| bit == 6 || point >> bit & 1 == 1) {
                    bytes[usize::from(plan.index[point as usize])] += 60 + 22 * point;
                }
                let shown: Vec<u32> =
                    plan.order.iter().map(|tin| bytes[usize::from(*tin)]).collect();
                assert_eq!(shown, *row, "{} bit {bit}", MODES[usize::try_from(*mode).unwrap()]);
            }
        }
    }

    #[test]
    fn rates_are_shared_as_in_linux() {
        let rates =
            |mode| TinLayout::new(mode, 12_500_000).tins.iter().map(|t| t.0).collect::<Vec<_>>();
        assert_eq!(rates(0), [12_500_000, 781_250, 3_125_000]);
        assert_eq!(rates(1), [12_500_000, 781_250, 6_250_000, 3_125_000]);
        assert_eq!(rates(2)[6..], [5_609_940, 4_908_697]);
        assert_eq!(rates(3), [12_500_000]);
    }
}
