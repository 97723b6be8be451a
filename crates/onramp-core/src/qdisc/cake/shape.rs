//! What a packet takes: of the wire, once it is framed, and of memory.

use onramp_queue::Packet;

use crate::base::params::{Param, Value, Values, signed};
use crate::sched::segments;

/// What a largest packet's link header takes; `raw` sizes have it.
const LINK_HEADER: u32 = 14;

/// A rate, as nanoseconds per byte in units of 2^-shift. Unlimited: zero.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    ns: u64,
    shift: u8,
}

impl Pace {
    /// Slower rates are taken for this one, bytes per second.
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

    /// How long so many bytes take.
    #[inline]
    pub(super) fn time(self, bytes: u32) -> u64 {
        u64::from(bytes).wrapping_mul(self.ns) >> self.shift
    }
}

/// How a link cuts packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cells {
    None,
    /// 48 bytes of each 53 are ours.
    Atm,
    /// 64 bytes of each 65 are.
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

/// What the link makes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Framing {
    /// Added to the length without link header; if `raw`, to the length with it.
    pub(super) overhead: i32,
    pub(super) raw: bool,
    pub(super) mpu: u32,
    pub(super) cells: Cells,
}

/// Smallest and largest sizes seen, bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) net: (u32, u32),
    pub(super) adjusted: (u32, u32),
    /// How long link headers are, a moving average, times 2^16.
    header: u32,
}

impl Sizes {
    /// Forgets the least and the greatest, as Linux does where another overhead is said.
    pub(super) fn begin_anew(&mut self) {
        *self = Self { header: self.header, ..Self::NONE };
    }

    pub(super) const NONE: Self = Self { net: (u32::MAX, 0), adjusted: (u32::MAX, 0), header: 0 };

    /// A packet has come.
    #[inline]
    pub(super) fn came(&mut self) {
        self.header = self.header - (self.header >> 8) + (LINK_HEADER << 8);
    }

    /// Bytes of a link header, on average.
    pub(super) fn header(self) -> u32 {
        (self.header + (1 << 15)) >> 16
    }

    #[inline]
    pub(super) fn note(&mut self, net: u32, adjusted: u32) {
        let wider = |(min, max): (u32, u32), size: u32| (min.min(size), max.max(size));
        (self.net, self.adjusted) = (wider(self.net, net), wider(self.adjusted, adjusted));
    }
}

/// Overhead, least size and cells of the link that a word names.
pub(super) const LINKS: &[(&str, i32, u32, &str)] = &[
    ("raw", 0, 0, "noatm"),
    // Says nothing that does not hold anyway.
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

/// Their names.
pub(super) const LINK_NAMES: &[&str] = &{
    let mut names = [""; LINKS.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = LINKS[i].0;
        i += 1;
    }
    names
};

/// The words for cells.
pub(super) const CELLS: &[&str] = &["noatm", "atm", "ptm"];

/// A VLAN tag.
const VLAN_TAG: i32 = 4;

/// The overhead that was given, in the two's complement of [`Unit::Signed`](crate::params::Unit).
pub(super) fn given_overhead(values: &Values<'_>) -> i32 {
    values.number32("overhead").cast_signed()
}

/// The place of an option in the table.
fn place(params: &[Param], key: &str) -> usize {
    params.iter().position(|param| param.key == key).unwrap_or(0)
}

/// More overhead than was given so far.
fn add_overhead(params: &[Param], given: &mut [Option<Value>], more: i32) {
    let slot = &mut given[place(params, "overhead")];
    let before = match slot {
        Some(Value::Number(number)) => signed(*number),
        _ => 0,
    };
    *slot = Some(Value::Number(before.saturating_add(more).cast_unsigned().into()));
}

/// What the word for a link says: `raw` and `conservative` set the overhead, others add to it.
pub(super) fn fold_link(params: &[Param], given: &mut [Option<Value>], link: u64) {
    let (name, overhead, mpu, cells) = LINKS[usize::try_from(link).unwrap_or(0)];
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

/// A VLAN tag is more overhead.
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

    /// Bytes of wire that a packet takes. One of several datagrams takes what they take alone.
    /// Tells the size without link header, and the result, of those of its datagrams that differ.
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

    /// Every packet has a link header of 14 bytes, of which a 256th is seen with each.
    #[test]
    fn link_headers_are_averaged() {
        let mut sizes = Sizes::NONE;
        // 14 (1 - (255/256)^n) is 7 after 177 packets, less what rounding down loses.
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

    /// Sizes without link header, and what Linux makes of them, of packets of 100 and 1,514 bytes.
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
