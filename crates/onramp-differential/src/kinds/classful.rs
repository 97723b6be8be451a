//! Random options of qdiscs that have classes or child qdiscs.

use super::Site;
use crate::draw::Draw;

/// Returns the words of a priority map with up to `most` random bands.
fn map(draw: &mut Draw, bands: u16, most: u64) -> String {
    let count = draw.between(1, most);
    (0..count).map(|_| format!(" {}", draw.between(0, u64::from(bands) - 1))).collect()
}

pub(super) fn prio(site: &mut Site<'_>) {
    // A line that changes a `prio` keeps its number of bands, because bands may have child qdiscs.
    site.bands = if site.changing { site.bands } else { 3 };
    let given = site.changing || site.draw.likely(60);
    if given {
        site.bands = if site.changing {
            site.bands
        } else {
            u16::try_from(site.draw.between(2, 6)).unwrap_or(2)
        };
        site.need(format!("bands {}", site.bands));
        // The default `priomap` also uses band 2, which a `prio` with two bands lacks. So give all
        // 16 entries of the map.
        let map = map(site.draw, site.bands, 16);
        let whole = format!("priomap{map}{}", " 0".repeat(16 - map.split_whitespace().count()));
        site.need(whole);
    }
}

pub(super) fn ets(site: &mut Site<'_>) {
    if !site.changing {
        site.bands = u16::try_from(site.draw.between(1, 8)).unwrap_or(1);
    }
    let bands = u64::from(site.bands);
    let strict = site.draw.between(0, bands);
    let quanta = site.draw.between(0, bands - strict);
    site.need(format!("bands {bands}"));
    if strict > 0 {
        site.need(format!("strict {strict}"));
    }
    if quanta > 0 {
        let quanta: String =
            (0..quanta).map(|_| format!(" {}", site.draw.spread(300, 20_000))).collect();
        site.need(format!("quanta{quanta}"));
    }
    let bands = site.bands;
    site.may(50, |draw| format!("priomap{}", map(draw, bands, 16)));
}

pub(super) fn htb(site: &mut Site<'_>) {
    site.may(40, |draw| format!("r2q {}", draw.spread(1, 100)));
    site.may(80, |draw| format!("default {:x}", draw.between(0x10, 0x14)));
    site.may(20, |draw| format!("direct_qlen {}", draw.spread(2, 1000)));
}

pub(super) fn hfsc(site: &mut Site<'_>) {
    site.may(80, |draw| format!("default {:x}", draw.between(0x10, 0x14)));
}

/// Adds options that say how a link frames packets.
fn framing(site: &mut Site<'_>) {
    site.may(20, |draw| format!("overhead {}", draw.between(0, 60)));
    site.may(20, |draw| format!("mpu {}", draw.between(0, 200)));
    site.may(15, |draw| format!("linklayer {}", draw.pick(&["ethernet", "atm", "adsl"])));
}

pub(super) fn tbf(site: &mut Site<'_>) {
    let rate = site.draw.between(site.rate / 4, site.rate).max(100_000);
    site.need(format!("rate {rate}bit"));
    // Cells and overhead can enlarge a packet of 1,514 bytes to at most 1,855 bytes, so a burst of
    // 2,000 bytes holds every packet.
    site.needs(|draw| format!("burst {}", draw.spread(2_000, 60_000)));
    match site.draw.likely(60) {
        true => {
            let bytes = site.bytes();
            site.need(format!("limit {bytes}"));
        }
        false => site.needs(|draw| format!("latency {}us", draw.spread(2_000, 500_000))),
    }
    if site.draw.likely(30) {
        site.needs(|draw| format!("peakrate {}bit", rate * draw.between(2, 6)));
        site.needs(|draw| format!("mtu {}", draw.between(2_000, 5_000)));
    }
    framing(site);
}

/// Options of `cbs`. The kernel treats the device as a link of 10 Mbit/s.
pub(super) fn cbs(site: &mut Site<'_>) {
    // With the slopes listed here, earning a byte of credit takes a whole number of nanoseconds.
    // With most other slopes, Linux rounds and must poll again and again for the last byte.
    let idle = match site.draw.likely(40) {
        true => site.draw.pick(&[800, 1_000, 1_600, 2_000, 3_200, 4_000, 5_000, 6_400, 8_000]),
        false => site.draw.between(500, 9_500),
    };
    let (high, more) = (site.draw.spread(100, 5_000), site.draw.spread(1, 4_000));
    // The credit that `locredit` allows must cover the largest packet. With less, a packet waits
    // for seconds, and a case takes hours.
    let low = 1_514 * (10_000 - idle) / 10_000 + more;
    site.need(format!("idleslope {idle}"));
    site.need(format!("sendslope -{}", 10_000 - idle));
    site.need(format!("hicredit {high}"));
    site.need(format!("locredit -{low}"));
    site.may(50, |_| "offload 0".into());
}

/// Options of a class of `drr`.
pub(crate) fn drr_class(site: &mut Site<'_>) {
    site.may(80, |draw| format!("quantum {}", draw.spread(256, 20_000)));
}

/// Options of a class of `qfq`.
pub(crate) fn qfq_class(site: &mut Site<'_>) {
    site.may(80, |draw| format!("weight {}", draw.spread(1, 1023)));
    site.may(40, |draw| format!("maxpkt {}", draw.between(1_514, 5_000)));
}

/// Options of a class of `htb`. The default burst depends on the resolution of the kernel's timers,
/// so always give one.
pub(crate) fn htb_class(site: &mut Site<'_>) {
    let rate = site.rate.max(50_000);
    let ceil = if site.draw.likely(50) { rate } else { rate * site.draw.between(1, 8) };
    site.need(format!("rate {rate}bit"));
    if ceil != rate || site.draw.likely(50) {
        site.need(format!("ceil {ceil}bit"));
    }
    site.needs(|draw| format!("burst {}", draw.spread(1_600, 40_000)));
    site.needs(|draw| format!("cburst {}", draw.spread(1_600, 40_000)));
    site.may(40, |draw| format!("prio {}", draw.between(0, 7)));
    site.may(50, |draw| format!("quantum {}", draw.spread(1_000, 60_000)));
    site.may(5, |draw| format!("mtu {}", draw.between(1_500, 3_000)));
    framing(site);
}

/// Returns a random service curve of about this rate, in bits per second.
fn curve(draw: &mut Draw, rate: u64) -> String {
    let rate = rate.max(50_000);
    match draw.between(0, 3) {
        0 | 1 => format!("rate {rate}bit"),
        2 => {
            let first = draw.spread(rate / 4, rate * 4);
            format!("m1 {first}bit d {}us m2 {rate}bit", draw.spread(1_000, 100_000))
        }
        _ => {
            let bytes = draw.between(1_500, 9_000);
            format!("umax {bytes} dmax {}us rate {rate}bit", draw.spread(2_000, 100_000))
        }
    }
}

/// Options of a class of `hfsc`. Only a leaf class has a real-time curve.
pub(crate) fn hfsc_class(site: &mut Site<'_>, leaf: bool) {
    let rate = site.rate;
    match (leaf, site.draw.between(0, 3)) {
        (false, _) | (true, 0) => {
            let curve = curve(site.draw, rate);
            site.need(format!("ls {curve}"));
        }
        (true, 1) => {
            let curve = curve(site.draw, rate);
            site.need(format!("sc {curve}"));
        }
        (true, 2) => {
            let curve = curve(site.draw, rate);
            site.need(format!("rt {curve}"));
        }
        (true, _) => {
            let (real, share) = (curve(site.draw, rate), curve(site.draw, rate));
            site.need(format!("rt {real}"));
            site.need(format!("ls {share}"));
        }
    }
    let shares = site.options.iter().any(|option| !option.text.starts_with("rt"));
    if shares && site.draw.likely(30) {
        let by = site.draw.between(1, 3);
        let curve = curve(site.draw, rate * by);
        site.options.push(crate::plan::Opt {
            text: format!("ul {curve}"),
            needed: false,
            compared: crate::plan::Compared::Exact,
        });
    }
}
