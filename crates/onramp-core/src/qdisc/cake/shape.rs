//! How many bytes a packet takes on the wire, once the link has framed it.

use onramp_queue::Packet;

use crate::base::params::{Param, Value, Values, signed};
use crate::sched::segments;

/// Length of a packet's link header, in bytes. With the option `raw`, sizes include this header.
const LINK_HEADER: u32 = 14;

/// A rate, stored as the time per byte in units of 2^-shift nanoseconds; if all fields are zero,
/// the rate is unlimited.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    ns: u64,
    shift: u8,
}

impl Pace {
    /// The slowest rate, in bytes per second; slower rates are treated as this rate.
    const RATE_MIN: u64 = 64;
    const BITS: u8 = 34;

    pub(super) fn new(rate: u64) -> Self {
        if rate == 0 {
            return Self::default();
        }
        let ns = (1_000_000_000 << Self::BITS) / rate.max(Self::RATE_MIN);
        let excess = u8::try_from(64 - ns.leading_zeros()).unwrap_or(0).saturating_sub(Self::BITS);
        Self { ns: ns >> excess, shift: Self::BITS - excess }
    }

    #[inline]
    pub(super) fn is_unlimited(self) -> bool {
        self.ns == 0
    }

    /// Returns how long `bytes` bytes take at this rate, in nanoseconds.
    #[inline]
    pub(super) fn time(self, bytes: u32) -> u64 {
        u64::from(bytes).wrapping_mul(self.ns) >> self.shift
    }
}

/// The cells into which a link cuts packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cells {
    None,
    /// ATM: of each 53 bytes on the wire, 48 are payload.
    Atm,
    /// PTM: of each 65 bytes on the wire, 64 are payload.
    Ptm,
}

impl Cells {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::None => "noatm",
            Self::Atm => "atm",
            Self::Ptm => "ptm",
        }
    }
}

/// How the link frames a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Framing {
    /// Number of bytes added to the length of a packet: to the length without link header, or, if
    /// `raw` is true, to the length with link header.
    pub(super) overhead: i32,
    pub(super) raw: bool,
    pub(super) mpu: u32,
    pub(super) cells: Cells,
}

/// The smallest and the largest packet sizes so far, in bytes: without link header (`net`), and on
/// the wire (`adjusted`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) net: (u32, u32),
    pub(super) adjusted: (u32, u32),
    /// Moving average of the length of link headers, in units of 2^-16 bytes.
    header: u32,
}

impl Sizes {
    /// Forgets the smallest and the largest sizes, as Linux does when the overhead changes; keeps
    /// the average header length.
    pub(super) fn begin_anew(&mut self) {
        *self = Self { header: self.header, ..Self::NONE };
    }

    pub(super) const NONE: Self = Self { net: (u32::MAX, 0), adjusted: (u32::MAX, 0), header: 0 };

    /// Updates the average header length when a packet comes.
    #[inline]
    pub(super) fn came(&mut self) {
        self.header = self.header - (self.header >> 8) + (LINK_HEADER << 8);
    }

    /// Returns the average length of a link header, in bytes.
    pub(super) fn header(self) -> u32 {
        (self.header + (1 << 15)) >> 16
    }

    #[inline]
    pub(super) fn note(&mut self, net: u32, adjusted: u32) {
        let wider = |(min, max): (u32, u32), size: u32| (min.min(size), max.max(size));
        (self.net, self.adjusted) = (wider(self.net, net), wider(self.adjusted, adjusted));
    }
}

/// The words that stand for a kind of link. For each word: the overhead and the least size of a
/// packet, in bytes, and the kind of cells.
pub(super) const LINKS: &[(&str, i32, u32, &str)] = &[
    ("raw", 0, 0, "noatm"),
    // The word `via-ethernet` has no effect.
    ("via-ethernet", 0, 0, ""),
    ("conservative", 48, 0, "atm"),
    ("ipoa-vcmux", 8, 0, "atm"),
    ("ipoa-llcsnap", 16, 0, "atm"),
    ("bridged-vcmux", 24, 0, "atm"),
    ("bridged-llcsnap", 32, 0, "atm"),
    ("pppoa-vcmux", 10, 0, "atm"),
    ("pppoa-llc", 14, 0, "atm"),
    ("pppoe-vcmux", 32, 0, "atm"),
    ("pppoe-llcsnap", 40, 0, "atm"),
    ("pppoe-ptm", 30, 0, "ptm"),
    ("bridged-ptm", 22, 0, "ptm"),
    ("ethernet", 38, 84, ""),
    ("docsis", 18, 64, "noatm"),
];

/// The words that name links.
pub(super) const LINK_NAMES: &[&str] = &{
    let mut names = [""; LINKS.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = LINKS[i].0;
        i += 1;
    }
    names
};

/// The words that name cells.
pub(super) const CELLS: &[&str] = &["noatm", "atm", "ptm"];

/// Length of a VLAN tag, in bytes.
const VLAN_TAG: i32 = 4;

/// Returns the value of the option `overhead`, in bytes. The parameter stores it in the two's
/// complement of [`Unit::Signed`](crate::params::Unit).
pub(super) fn given_overhead(values: &Values<'_>) -> i32 {
    values.number32("overhead").cast_signed()
}

/// Returns the place of the option `key` in the table of parameters.
fn place(params: &[Param], key: &str) -> usize {
    params.iter().position(|param| param.key == key).expect("an option of cake")
}

/// Adds `more` bytes to the overhead that the command has given so far.
fn add_overhead(params: &[Param], given: &mut [Option<Value>], more: i32) {
    let slot = &mut given[place(params, "overhead")];
    let before = match slot {
        Some(Value::Number(number)) => signed(*number),
        _ => 0,
    };
    *slot = Some(Value::Number(before.saturating_add(more).cast_unsigned().into()));
}

/// Applies a word that stands for a kind of link: `raw` and `conservative` set the overhead, other
/// words add to the overhead.
pub(super) fn fold_link(params: &[Param], given: &mut [Option<Value>], link: u64) {
    let (name, overhead, mpu, cells) = LINKS[usize::try_from(link).expect("a link of the table")];
    if name == "via-ethernet" {
        return;
    }
    if name == "raw" {
        given[place(params, "link")] = Some(Value::Number(link));
    }
    if matches!(name, "raw" | "conservative") {
        given[place(params, "overhead")] = None;
    }
    add_overhead(params, given, overhead);
    if mpu > 0 {
        given[place(params, "mpu")] = Some(Value::Number(mpu.into()));
    }
    if let Some(cells) = CELLS.iter().position(|word| *word == cells) {
        given[place(params, "atm")] = Some(Value::Number(cells as u64));
    }
}

/// Adds the length of a VLAN tag to the overhead.
pub(super) fn fold_vlan(params: &[Param], given: &mut [Option<Value>], _: u64) {
    add_overhead(params, given, VLAN_TAG);
}

impl Framing {
    pub(super) fn new(values: &Values<'_>) -> Self {
        let cells = match values.number("atm") {
            1 => Cells::Atm,
            2 => Cells::Ptm,
            _ => Cells::None,
        };
        Self {
            overhead: given_overhead(values),
            raw: values.is_given("link") || !values.is_given("overhead"),
            mpu: values.number32("mpu"),
            cells,
        }
    }

    /// Returns the number of bytes that a packet takes on the wire; a packet of several datagrams
    /// takes the sum of what its datagrams take. Calls `told` with the size of a datagram without
    /// link header and its size on the wire: once for the full datagrams, if there are several, and
    /// once for the last datagram.
    #[inline]
    pub(super) fn size(&self, pkt: &Packet, mut told: impl FnMut(u32, u32)) -> u32 {
        if pkt.gso_size == 0 {
            return self.one(pkt.len, &mut told);
        }
        let (count, full, last) = segments::sizes(pkt);
        let before =
            if count > 1 { self.one(full, &mut told).saturating_mul(count - 1) } else { 0 };
        before.saturating_add(self.one(last, &mut told))
    }

    #[inline]
    fn one(&self, len: u32, told: &mut impl FnMut(u32, u32)) -> u32 {
        let net = if self.raw { len } else { len.saturating_sub(LINK_HEADER) };
        let size = net.saturating_add_signed(self.overhead).max(self.mpu);
        let size = match self.cells {
            Cells::None => size,
            Cells::Atm => size.div_ceil(48).saturating_mul(53),
            Cells::Ptm => size.saturating_add(size.div_ceil(64)),
        };
        told(net, size);
        size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each packet moves the average length of link headers by 1/256 of the distance between the
    /// average and 14 bytes, the length of the packet's link header.
    #[test]
    fn link_headers_are_averaged() {
        let mut sizes = Sizes::NONE;
        // After n packets, the average is 14 (1 - (255/256)^n) bytes, less what rounding down
        // loses: 7 bytes after 177 packets.
        for (packets, header) in [(1, 0), (177, 7), (2_000, 14)] {
            sizes = Sizes { header: 0, ..Sizes::NONE };
            (0..packets).for_each(|_| sizes.came());
            assert_eq!(sizes.header(), header, "after {packets}");
        }
        sizes.note(100, 120);
        sizes.note(60, 84);
        assert_eq!((sizes.net, sizes.adjusted), ((60, 100), (84, 120)));
        sizes.begin_anew();
        assert_eq!((sizes.net, sizes.adjusted, sizes.header()), ((u32::MAX, 0), (u32::MAX, 0), 14));
    }
    use crate::tc::Spec;

    /// For each kind of link: the sizes without link header and the sizes that Linux computes, for
    /// packets of 100 and of 1,514 bytes.
    #[test]
    fn links_take_what_linux_says() {
        let table = [
            ("", (100, 1514), (100, 1514)),
            ("raw", (100, 1514), (100, 1514)),
            ("conservative", (86, 1500), (159, 1749)),
            ("ipoa-vcmux", (86, 1500), (106, 1696)),
            ("ipoa-llcsnap", (86, 1500), (159, 1696)),
            ("bridged-vcmux", (86, 1500), (159, 1696)),
            ("bridged-llcsnap", (86, 1500), (159, 1696)),
            ("pppoa-vcmux", (86, 1500), (106, 1696)),
            ("pppoa-llc", (86, 1500), (159, 1696)),
            ("pppoe-vcmux", (86, 1500), (159, 1696)),
            ("pppoe-llcsnap", (86, 1500), (159, 1749)),
            ("pppoe-ptm", (86, 1500), (118, 1554)),
            ("bridged-ptm", (86, 1500), (110, 1546)),
            ("ethernet", (86, 1500), (124, 1538)),
            ("docsis", (86, 1500), (104, 1518)),
            ("ether-vlan", (86, 1500), (90, 1504)),
            ("ethernet ether-vlan", (86, 1500), (128, 1542)),
            ("overhead 10 ethernet", (86, 1500), (134, 1548)),
            ("mpu 100", (100, 1514), (100, 1514)),
            ("atm", (100, 1514), (159, 1696)),
            ("ptm", (100, 1514), (102, 1538)),
            ("noatm", (100, 1514), (100, 1514)),
            ("atm overhead 4 mpu 90", (86, 1500), (106, 1696)),
            ("overhead -20", (86, 1500), (66, 1480)),
            ("ethernet ptm", (86, 1500), (126, 1563)),
            ("raw overhead 5", (100, 1514), (105, 1519)),
        ];
        for (options, net, adjusted) in table {
            let spec: Spec = format!("cake {options}").parse().expect(options);
            let framing = Framing::new(&spec.values(1514));
            let mut sizes = Sizes::NONE;
            for len in [100, 1514] {
                framing.size(&Packet::new(len), |net, size| sizes.note(net, size));
            }
            assert_eq!((sizes.net, sizes.adjusted), (net, adjusted), "{options}");
        }
    }

    #[test]
    fn several_datagrams_take_what_they_take_alone() {
        let spec: Spec = "cake atm overhead 10".parse().expect("a correct line");
        let framing = Framing::new(&spec.values(1514));
        let alone = |len| framing.size(&Packet::new(len), |_, _| {});
        let mut pkt = Packet::with_payload(&[0; 2500]);
        (pkt.gso_size, pkt.len) = (1000, 2500 + 3 * 42);
        assert_eq!(framing.size(&pkt, |_, _| {}), 2 * alone(1042) + alone(542));
    }

    #[test]
    fn a_byte_takes_its_part_of_a_second() {
        for rate in [64, 1000, 125_000, 1_250_000, 125_000_000, 12_500_000_000] {
            let exact = 1514 * 1_000_000_000 / rate;
            let took = Pace::new(rate).time(1514);
            assert!(took <= exact && exact - took <= 1, "{rate}: {took}");
        }
        assert_eq!(Pace::new(1).time(64), 1_000_000_000);
        assert!(Pace::new(0).is_unlimited());
    }
}
