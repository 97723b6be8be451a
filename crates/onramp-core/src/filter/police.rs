//! `police`: one or two token buckets that decide which packets come too fast.
//!
//! A packet conforms if it is not longer than `mtu` and the token buckets have enough tokens for
//! it. The first bucket holds `burst` and fills at `rate`; the second holds one `mtu` and fills at
//! `peakrate`. A packet that does not conform exceeds the limit and takes no tokens.
//!
//! Source: `tc-police(8)`; behaviour of Linux 7.2 `net/sched/act_police.c`, and of iproute2 6.1.
//! Differs: no `avrate`, because there is no estimator.
//! Invariant: in any time t, at most `burst` + `rate` · t bytes conform.

use super::control::Control;
use super::reader::{Reader, count};
use crate::base::error::Errno;
use crate::base::units::parse_size;
use crate::base::{ConfigError, Counters, Instant, Rate};
use crate::law::cost::{Cost, Framing, ticked_ns};

/// The largest size of a cell of a rate table, bytes.
const CELL_MAX: u32 = 1 << 30;

mod show;

#[derive(Clone, Debug)]
pub(super) struct Police {
    /// The longest packet that may conform, in bytes.
    mtu: u32,
    /// The options of the policer as listings show them.
    told: Told,
    rate: Option<Bucket>,
    peak: Option<Bucket>,
    last: Instant,
    conform: Control,
    exceed: Control,
}

/// A token bucket. A token is a nanosecond of sending at the bucket's rate.
#[derive(Clone, Debug)]
struct Bucket {
    cost: Cost,
    /// Whether each packet costs the same, whatever its length (`pkts_rate`). Otherwise the cost
    /// depends on the packet's bytes.
    packets: bool,
    most_ns: i64,
    ns: i64,
}

impl Bucket {
    fn full(cost: Cost, packets: bool, most_ns: i64) -> Self {
        Self { cost, packets, most_ns, ns: most_ns }
    }

    /// Returns how many tokens would be left if `more_ns` nanoseconds of tokens were added and a
    /// packet of `len` bytes were paid for.
    fn after(&self, more_ns: i64, len: u32) -> i64 {
        let cost = self.cost.ns(if self.packets { 1 } else { len });
        self.ns.saturating_add(more_ns).min(self.most_ns).saturating_sub(cost)
    }
}

impl Police {
    /// Decides what is to be done with a packet of `len` bytes, whose longest part (of a GSO
    /// packet; otherwise, the whole packet) has `part` bytes, and counts whether it exceeds the
    /// limit and whether it is dropped. As in Linux, the link header of a packet that comes in
    /// counts towards the `mtu`, but not towards the rates.
    pub(super) fn run(
        &mut self,
        part: u32,
        len: u32,
        now: Instant,
        counters: &mut Counters,
    ) -> Control {
        let fits = part <= self.mtu;
        if fits && self.rate.is_none() {
            // Linux does not count such a packet as dropped, even if `conform-exceed` drops it.
            return self.conform;
        }
        let conforms = fits && self.pay(len, now);
        let control = if conforms { self.conform } else { self.exceed };
        counters.overlimits += u64::from(!conforms);
        counters.drops += u64::from(control == Control::Drop);
        control
    }

    /// Takes the tokens for a packet of `len` bytes; if a bucket has too few, takes none and
    /// returns false.
    fn pay(&mut self, len: u32, now: Instant) -> bool {
        let Some(rate) = &mut self.rate else { return true };
        let more_ns = i64::try_from(now.0.saturating_sub(self.last.0)).unwrap_or(i64::MAX);
        // As in Linux, both buckets gain tokens for at most the time that a full burst takes at
        // `rate`, even if the bucket for `peakrate` could hold more.
        let more_ns = more_ns.min(rate.most_ns);
        let left_ns = rate.after(more_ns, len);
        let peak_ns = self.peak.as_ref().map_or(0, |peak| peak.after(more_ns, len));
        if left_ns < 0 || peak_ns < 0 {
            return false;
        }
        rate.ns = left_ns;
        if let Some(peak) = &mut self.peak {
            peak.ns = peak_ns;
        }
        self.last = now;
        true
    }

    /// Reads a policer, after the word `police`. `own` reads the options that every kind of action
    /// may have.
    pub(super) fn read(
        words: &mut Reader<'_>,
        own: &mut dyn FnMut(&mut Reader<'_>) -> Result<bool, ConfigError>,
    ) -> Result<Self, ConfigError> {
        let mut line = Line::default();
        line.read(words, own)?;
        line.build(words)
    }
}

/// The options of a policer that are only shown in listings.
#[derive(Clone, Debug, Default)]
struct Told {
    rate: u64,
    burst: u64,
    peak: u64,
    overhead: u32,
    cells: bool,
    packet_rate: u64,
    packet_burst: u64,
}

const NEEDS: &str = "expected rate, pkts_rate or mtu";

/// The options of a policer while a line is read.
#[derive(Debug)]
struct Line {
    rate: Option<u64>,
    burst: Option<(u32, Option<Cell>)>,
    packet_rate: Option<u64>,
    packet_burst: Option<u64>,
    peak: Option<u64>,
    mtu: Option<(u32, Option<Cell>)>,
    mpu: u32,
    overhead: u32,
    cells: bool,
    exceed: Control,
    conform: Control,
    /// Whether the line gives an `index`. Then the policer needs no other options.
    named: bool,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            rate: None,
            burst: None,
            packet_rate: None,
            packet_burst: None,
            peak: None,
            mtu: None,
            mpu: 0,
            overhead: 0,
            cells: false,
            exceed: Control::Again,
            conform: Control::Ok,
            named: false,
        }
    }
}

/// The size of the cells of a rate table: 2 to the power of this number, in bytes. Linux computes
/// no times from these tables any more, but it still refuses cells of one byte, and derives an
/// `mtu` that is not given from their size.
type Cell = u32;

/// Reads a size in bytes.
fn size(word: &str) -> Option<u32> {
    u32::try_from(parse_size(word)?).ok()
}

/// Reads `SIZE` or `SIZE/CELL`, where `CELL` is a power of two.
fn size_and_cell(word: &str) -> Option<(u32, Option<Cell>)> {
    let Some((bytes, cell)) = word.split_once('/') else { return Some((size(word)?, None)) };
    let cell = count(cell, CELL_MAX).filter(|cell| cell.is_power_of_two())?;
    Some((size(bytes)?, Some(cell.ilog2())))
}

/// Returns the cells that `tc` chooses for packets of up to `mtu` bytes (0: as if it were 2047):
/// the smallest of which 255 are enough.
fn cell_for(mtu: u32) -> Cell {
    let mtu = if mtu == 0 { 2047 } else { mtu };
    (mtu >> 8).checked_ilog2().map_or(0, |log| log + 1)
}

impl Line {
    fn read(
        &mut self,
        words: &mut Reader<'_>,
        own: &mut dyn FnMut(&mut Reader<'_>) -> Result<bool, ConfigError>,
    ) -> Result<(), ConfigError> {
        if words.peek().is_none() {
            return Err(words.wrong("police", "", NEEDS).argument());
        }
        while let Some(word) = words.peek() {
            if let Some(control) = Control::read(words)? {
                self.exceed = control;
                continue;
            }
            if own(words)? {
                self.named |= word == "index";
                continue;
            }
            words.next();
            if word == "conform-exceed" {
                self.read_controls(words)?;
                continue;
            }
            if word == "avrate" {
                let why = "estimators are not supported: use rate";
                return Err(words.wrong(word, "", why));
            }
            if !self.read_value(word, words).map_err(ConfigError::argument)? {
                words.back();
                break;
            }
        }
        Ok(())
    }

    /// Reads the words after `conform-exceed`: what is to be done with packets that exceed the
    /// limit, and with packets that conform.
    fn read_controls(&mut self, words: &mut Reader<'_>) -> Result<(), ConfigError> {
        if let Some("goto" | "jump") = words.peek() {
            self.exceed = Control::read(words)?.unwrap_or(self.exceed);
            return Ok(());
        }
        let expected = "EXCEED or EXCEED/CONFORM, where both are actions";
        let read = |word: &str| masked_controls(word, self.conform);
        (self.exceed, self.conform) = words.value("conform-exceed", expected, read)?;
        Ok(())
    }

    /// Reads the value of the option `word`. Returns false if there is no such option.
    fn read_value(&mut self, word: &str, words: &mut Reader<'_>) -> Result<bool, ConfigError> {
        const SIZE: &str = "a size such as 1514 or 15kb, 0b to 4294967295b";
        const SIZE_AND_CELL: &str = "a size such as 1514 or 15kb, 0b to 4294967295b, or SIZE/CELL \
                                     with a power of two for CELL, 1 to 1073741824";
        let rate = |word: &str| {
            Rate::parse(word).map(|rate| rate.as_bytes_per_second()).filter(|rate| *rate > 0)
        };
        match word {
            "rate" => self.rate = Some(words.value(word, crate::base::rate::LOOK, rate)?),
            "peakrate" => self.peak = Some(words.value(word, crate::base::rate::LOOK, rate)?),
            "burst" | "buffer" | "maxburst" => {
                self.burst = Some(words.value(word, SIZE_AND_CELL, size_and_cell)?);
            }
            "mtu" | "minburst" => {
                self.mtu = Some(words.value(word, SIZE_AND_CELL, size_and_cell)?);
            }
            "mpu" => self.mpu = words.value(word, SIZE, size)?,
            "overhead" => self.overhead = words.number(word, 0xffff)?,
            // As in `tc`, zero means that there is no such rate.
            "pkts_rate" => {
                let rate = words.number(word, u32::MAX)?;
                self.packet_rate = (rate > 0).then_some(rate.into());
            }
            "pkts_burst" => self.packet_burst = Some(words.number(word, u32::MAX)?.into()),
            "linklayer" => {
                self.cells = words.value(word, "ethernet, atm or adsl", |word| match word {
                    "ethernet" => Some(false),
                    "atm" | "adsl" => Some(true),
                    _ => None,
                })?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the length of the longest packet that may conform. If `mtu` is zero or not given,
    /// it is 255 cells of the rate table if there is a `rate` (2,040 bytes, if the line gives no
    /// size of a cell), and otherwise any number of bytes.
    fn mtu(&self, words: &Reader<'_>) -> Result<u32, ConfigError> {
        let (mtu, mtu_cell) = self.mtu.unwrap_or_default();
        let burst_cell = self.burst.and_then(|(_, cell)| cell);
        let tables = [("burst", self.rate, burst_cell), ("mtu", self.peak, mtu_cell)];
        for (key, rate, cell) in tables {
            if rate.is_some() && cell.unwrap_or_else(|| cell_for(mtu)) == 0 {
                let why = "its rate table would have cells of one byte, which the kernel refuses: \
                           give an mtu of at least 256, or SIZE/8";
                return Err(words.wrong(key, "", why).kernel(Errno::NoMemory, ""));
            }
        }
        Ok(match (mtu, self.rate) {
            (0, Some(_)) => 255 << burst_cell.unwrap_or_else(|| cell_for(mtu)),
            (0, None) => u32::MAX,
            (mtu, _) => mtu,
        })
    }

    fn build(&self, words: &Reader<'_>) -> Result<Police, ConfigError> {
        let wrong = |key, why: &str| Err(words.wrong(key, "", why));
        let (rate, burst, packets) = match (self.rate, self.packet_rate) {
            (Some(_), Some(_)) => {
                return wrong("pkts_rate", "it cannot be used together with rate");
            }
            (Some(rate), None) => (Some(rate), self.burst.map(|(size, _)| u64::from(size)), false),
            (None, Some(rate)) => (Some(rate), self.packet_burst, true),
            (None, None) => (None, None, false),
        };
        match (rate, burst, self.peak, self.mtu) {
            (None, _, _, None) if !self.named => return wrong("police", NEEDS),
            (Some(_), None | Some(0), _, _) => return wrong("burst", "rate needs it"),
            (_, _, Some(_), _) if self.rate.is_none() => {
                return wrong("peakrate", "it needs rate");
            }
            (_, _, Some(_), None) => return wrong("mtu", "peakrate needs it"),
            _ => {}
        }
        let mtu = self.mtu(words)?;
        let framing = match packets {
            false => Framing::new(self.overhead, self.mpu, self.cells),
            true => Framing::default(),
        };
        let bucket =
            |(rate, burst)| Bucket::full(Cost::new(rate, framing), packets, ticked_ns(rate, burst));
        Ok(Police {
            mtu,
            told: Told {
                rate: self.rate.unwrap_or(0),
                burst: self.rate.zip(burst).map_or(0, |(rate, burst)| held(rate, burst)),
                peak: self.peak.unwrap_or(0),
                overhead: self.overhead,
                cells: self.cells,
                packet_rate: self.packet_rate.unwrap_or(0),
                packet_burst: self.packet_burst.unwrap_or(0),
            },
            rate: rate.zip(burst).map(bucket),
            peak: self.peak.map(|rate| {
                let cost = Cost::new(rate, framing);
                Bucket::full(cost, false, cost.ns(mtu))
            }),
            last: Instant(0),
            conform: self.conform,
            exceed: self.exceed,
        })
    }
}

/// Returns the size of a burst in bytes as `tc` shows it: Linux keeps the burst as a number of
/// units of 64 ns, and `tc` converts this number to whole microseconds.
fn held(rate: u64, burst: u64) -> u64 {
    let micros = u128::from(ticked_ns(rate, burst).unsigned_abs() / 64) * 8 / 125;
    u64::try_from(u128::from(rate) * micros / 1_000_000).unwrap_or(u64::MAX)
}

fn masked_controls(word: &str, conform: Control) -> Option<(Control, Control)> {
    match word.split_once('/') {
        Some((exceed, conform)) => Some((Control::of(exceed)?, Control::of(conform)?)),
        None => Some((Control::of(word)?, conform)),
    }
}
