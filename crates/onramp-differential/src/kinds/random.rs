//! Random options of qdiscs that themselves make random choices.

use super::{Site, percent, time};

pub(super) fn red(site: &mut Site<'_>) {
    let limit = site.bytes().max(30_000);
    let most = limit / site.draw.between(2, 6);
    let least = (most / site.draw.between(2, 5)).max(2_000);
    let most = most.max(least * 2);
    let burst = (2 * least + most) / 3_000 + site.draw.between(1, 20);
    site.need(format!("limit {limit}"));
    site.need(format!("min {least}"));
    site.need(format!("max {most}"));
    site.need("avpkt 1000");
    site.need(format!("burst {burst}"));
    site.may(70, |draw| format!("probability 0.{:02}", draw.between(1, 50)));
    let rate = site.rate.clamp(1_000_000, 1_000_000_000);
    site.may(70, |_| format!("bandwidth {rate}bit"));
    match site.draw.between(0, 4) {
        0 => site.flag(100, "ecn"),
        1 => site.flag(100, "ecn harddrop"),
        2 => site.flag(100, "ecn nodrop"),
        _ => {}
    }
    site.flag(25, "adaptive");
}

pub(super) fn choke(site: &mut Site<'_>) {
    let held = site.packets().max(30);
    let most = held / site.draw.between(2, 4);
    let least = (most / site.draw.between(2, 4)).max(2);
    let most = most.max(least * 2);
    let burst = (2 * least + most) / 3 + site.draw.between(1, 10);
    // `choke` has a table for its packets. If the table has little room beyond the packets that it
    // holds, slots of dropped packets fill it, and Linux then loses packets. Such cases cannot be
    // compared, so most cases get a larger limit, which makes the table larger.
    let limit = if site.draw.likely(25) { held } else { held * 16 };
    site.need(format!("limit {limit}"));
    site.need(format!("bandwidth {}bit", site.rate.max(1_000_000)));
    site.need(format!("min {least}"));
    site.need(format!("max {most}"));
    site.need(format!("burst {burst}"));
    site.may(30, |draw| format!("avpkt {}", draw.between(200, 1_500)));
    site.may(70, |draw| format!("probability 0.{:02}", draw.between(1, 50)));
    site.flag(40, "ecn");
}

/// Options that `pie` and `fq_pie` have in common.
fn law(site: &mut Site<'_>) {
    let packets = site.packets();
    site.may(40, |_| format!("limit {packets}"));
    site.may(50, |draw| format!("target {}", time(draw, 1_000, 50_000)));
    // The times are multiples of 10 ms, because the kernel's timers run at its clock ticks, which
    // are 10 ms apart.
    site.may(50, |draw| format!("tupdate {}ms", 10 * draw.between(1, 5)));
    site.may(30, |draw| format!("alpha {}", draw.between(1, 32)));
    site.may(30, |draw| format!("beta {}", draw.between(1, 32)));
    site.may(50, |draw| draw.pick(&["ecn", "noecn"]).into());
    site.may(30, |draw| draw.pick(&["bytemode", "nobytemode"]).into());
    // In Linux, packets that arrive while the rate estimator is on get no arrival time. If a change
    // then turns the estimator off, those packets seem to have waited since the machine started. So
    // do not change this option during the run.
    if !site.changing {
        site.may(30, |draw| draw.pick(&["dq_rate_estimator", "no_dq_rate_estimator"]).into());
    }
}

pub(super) fn pie(site: &mut Site<'_>) {
    law(site);
}

pub(super) fn fq_pie(site: &mut Site<'_>) {
    law(site);
    if !site.changing {
        site.may(30, |draw| format!("flows {}", 1 << draw.between(10, 13)));
    }
    site.may(30, |draw| format!("quantum {}", draw.spread(300, 9_000)));
    site.may(10, |draw| format!("memory_limit {}", draw.spread(8_000_000, 32_000_000)));
    site.may(30, |draw| format!("ecn_prob {}", draw.between(1, 99)));
}

pub(super) fn netem(site: &mut Site<'_>) {
    let (packets, rate) = (site.packets(), site.rate);
    site.may(60, |_| format!("limit {}", packets * 4));
    let delayed = site.draw.likely(80);
    if delayed {
        delay(site);
    }
    if site.draw.likely(30) {
        let form = site.draw.between(0, 3);
        site.chance(100, |draw| {
            let mut share = |least, most| percent(draw, least, most);
            match form {
                0 => format!("loss {}", share(1, 30)),
                1 => format!("loss random {} {}", share(1, 30), share(1, 60)),
                2 => format!("loss state {} {} {}", share(1, 20), share(20, 80), share(0, 50)),
                _ => format!("loss gemodel {} {} {}", share(1, 20), share(20, 80), share(30, 99)),
            }
        });
        site.flag(25, "ecn");
    }
    site.chance(15, |draw| format!("duplicate {}", percent(draw, 1, 20)));
    if delayed && site.draw.likely(15) {
        site.chance(100, |draw| {
            let gap =
                if draw.likely(50) { format!(" gap {}", draw.between(2, 10)) } else { "".into() };
            format!("reorder {}{gap}", percent(draw, 10, 60))
        });
    }
    site.may(30, |draw| {
        let cells = draw.pick(&["", " 20", " 14 48", " 0 48 5"]);
        format!("rate {}bit{cells}", draw.between(rate / 2, rate))
    });
    if site.draw.likely(15) {
        let (least, packets) = (site.draw.spread(500, 20_000), site.draw.between(1, 30));
        let bytes = site.draw.spread(2_000, 40_000);
        site.chance(100, |draw| {
            let bytes = if draw.likely(50) { format!(" bytes {bytes}") } else { "".into() };
            let packets = if draw.likely(50) { format!(" packets {packets}") } else { "".into() };
            format!("slot {least}us {}us{packets}{bytes}", least * draw.between(1, 3))
        });
    }
}

/// Adds the option `delay` to a `netem`. A delay without jitter can still be compared exactly.
fn delay(site: &mut Site<'_>) {
    let delay = site.draw.spread(100, 200_000);
    if site.draw.likely(55) {
        site.may(100, |_| format!("delay {delay}us"));
        return;
    }
    site.chance(100, |draw| {
        let jitter = draw.spread(10, delay.max(10));
        // The jitter is uniformly distributed: the other distributions of `netem` need table files,
        // which the machine of the kernel does not have.
        let like = draw.pick(&["", "", " 30%"]);
        format!("delay {delay}us {jitter}us{like}")
    });
}
