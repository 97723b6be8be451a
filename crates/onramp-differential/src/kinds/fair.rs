//! Random options of queues that schedule flows.

use super::{Site, time};
use crate::draw::Draw;

pub(super) fn fq(site: &mut Site<'_>) {
    let (packets, rate) = (site.packets(), site.rate);
    // A timer with slack may wait until the machine handles another timer. So its time is known
    // only if this `fq` has the only timer: at the root of a tree that no `tc` line changes.
    if !site.root || site.strict {
        site.need("timer_slack 0");
    } else {
        site.may(50, |draw| format!("timer_slack {}", draw.pick(&["0", "500ns", "50us", "1ms"])));
    }
    site.may(40, |_| format!("limit {packets}"));
    site.may(40, |draw| format!("flow_limit {}", draw.spread(2, 300)));
    site.may(30, |draw| format!("quantum {}", draw.spread(300, 30_000)));
    site.may(30, |draw| format!("initial_quantum {}", draw.spread(300, 60_000)));
    site.may(50, |draw| format!("maxrate {}bit", draw.spread(rate / 50, rate)));
    site.may(10, |draw| format!("defrate {}bit", draw.spread(rate / 50, rate)));
    site.may(20, |draw| format!("low_rate_threshold {}bit", draw.spread(8_000, rate)));
    site.may(20, |draw| format!("refill_delay {}", time(draw, 1_000, 100_000)));
    site.may(20, |draw| format!("ce_threshold {}", time(draw, 100, 50_000)));
    site.may(20, |draw| format!("buckets {}", 1 << draw.between(1, 12)));
    site.may(10, |draw| format!("orphan_mask {}", draw.spread(1, 1023)));
    site.may(20, |draw| format!("horizon {}", time(draw, 2_000, 2_000_000)));
    site.may(20, |draw| draw.pick(&["horizon_drop", "horizon_cap"]).into());
    site.may(15, |draw| draw.pick(&["pacing", "nopacing"]).into());
}

pub(super) fn fq_codel(site: &mut Site<'_>) {
    let packets = site.packets();
    site.may(40, |_| format!("limit {packets}"));
    if !site.changing {
        site.may(30, |draw| format!("flows {}", 1 << draw.between(9, 15)));
    }
    site.may(30, |draw| format!("quantum {}", draw.spread(256, 9_000)));
    site.may(50, |draw| format!("target {}", time(draw, 100, 50_000)));
    site.may(50, |draw| format!("interval {}", time(draw, 1_000, 200_000)));
    site.may(25, |draw| format!("ce_threshold {}", time(draw, 100, 50_000)));
    site.may(10, |draw| {
        let mask = draw.between(1, 3);
        format!("ce_threshold_selector {:#x}/{mask:#x}", draw.between(0, 3) & mask)
    });
    site.may(20, |draw| format!("memory_limit {}", draw.spread(20_000, 2_000_000)));
    site.may(50, |draw| draw.pick(&["ecn", "noecn"]).into());
    site.may(20, |draw| format!("drop_batch {}", draw.spread(1, 128)));
}

pub(super) fn sfq(site: &mut Site<'_>) {
    let flows = site.draw.spread(16, 512);
    let depth = site.draw.spread(4, 127);
    site.may(40, |draw| format!("limit {}", draw.spread(8, 500)));
    site.may(30, |draw| format!("quantum {}", draw.spread(256, 5_000)));
    site.may(30, |_| format!("depth {depth}"));
    site.flag(25, "headdrop");
    site.may(20, |_| format!("flows {flows}"));
    site.may(20, |draw| format!("divisor {}", 1 << draw.between(9, 14)));
    site.chance(10, |draw| format!("perturb {}", draw.between(1, 3)));
    if site.draw.likely(25) {
        let least = site.draw.spread(2_000, 20_000);
        let most = least * site.draw.between(2, 4);
        let burst = (2 * least + most) / 3_000 + site.draw.between(1, 10);
        let limit = most * site.draw.between(2, 4);
        let share = site.draw.between(1, 30);
        site.chance(100, |draw| {
            let ecn = draw.pick(&["", " ecn", " ecn harddrop"]);
            format!(
                "redflowlimit {limit} min {least} max {most} avpkt 1000 burst {burst} \
                 probability 0.{share:02}{ecn}"
            )
        });
    }
}

const TINS: [&str; 6] =
    ["diffserv3", "diffserv4", "diffserv8", "besteffort", "precedence", "diffserv"];
const WHOM: [&str; 8] = [
    "triple-isolate",
    "flowblind",
    "srchost",
    "dsthost",
    "hosts",
    "flows",
    "dual-srchost",
    "dual-dsthost",
];

const LINKS: [&str; 8] = [
    "raw",
    "conservative",
    "ethernet",
    "docsis",
    "via-ethernet",
    "pppoe-vcmux",
    "pppoe-ptm",
    "bridged-llcsnap",
];

pub(super) fn cake(site: &mut Site<'_>) {
    let rate = site.rate;
    let word = |draw: &mut Draw, words: &[&'static str]| draw.pick(words).to_owned();
    site.may(80, |draw| format!("bandwidth {}bit", draw.between(rate / 2, rate)));
    site.may(60, |draw| word(draw, &TINS));
    site.may(60, |draw| word(draw, &WHOM));
    site.may(20, |draw| word(draw, &["wash", "nowash"]));
    site.may(20, |draw| word(draw, &["egress", "ingress"]));
    site.flag(10, "no-ack-filter");
    site.flag(10, "autorate-ingress");
    site.may(30, |draw| word(draw, &["split-gso", "no-split-gso"]));
    site.may(40, |draw| format!("rtt {}", time(draw, 1_000, 300_000)));
    site.may(20, |draw| format!("memlimit {}", draw.spread(50_000, 4_000_000)));
    // In `cake`, the name of a link type, such as `docsis`, already sets overhead and framing. So
    // give either such a name or the options for overhead and framing.
    if site.draw.likely(20) {
        site.may(100, |draw| word(draw, &LINKS));
        site.flag(20, "ether-vlan");
    } else {
        site.may(25, |draw| word(draw, &["noatm", "atm", "ptm"]));
        site.may(25, |draw| format!("overhead {}", draw.between(0, 64)));
        site.may(15, |draw| format!("mpu {}", draw.between(0, 256)));
    }
    site.may(10, |draw| format!("fwmark {:#x}", draw.between(1, 255)));
}
