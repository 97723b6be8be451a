//! Random options of queues that have neither flows nor classes.

use super::{Site, time};

pub(super) fn pfifo(site: &mut Site<'_>) {
    let packets = site.packets();
    site.may(80, |_| format!("limit {packets}"));
}

pub(super) fn bfifo(site: &mut Site<'_>) {
    let bytes = site.bytes();
    site.may(80, |_| format!("limit {bytes}"));
}

pub(super) fn skbprio(site: &mut Site<'_>) {
    let packets = site.packets();
    site.may(70, |_| format!("limit {packets}"));
}

/// Options of `plug`, which holds all packets until a change releases them.
pub(super) fn plug(site: &mut Site<'_>) {
    match site.changing {
        true => {
            let word = site.draw.pick(&["block", "release", "release_indefinite"]);
            site.need(word);
        }
        false => {
            let bytes = site.bytes();
            site.may(70, |_| format!("limit {bytes}"));
        }
    }
}

pub(super) fn codel(site: &mut Site<'_>) {
    let packets = site.packets();
    site.may(50, |_| format!("limit {packets}"));
    site.may(60, |draw| format!("target {}", time(draw, 100, 50_000)));
    site.may(60, |draw| format!("interval {}", time(draw, 1_000, 200_000)));
    site.flag(40, "ecn");
    site.flag(10, "noecn");
    site.may(25, |draw| format!("ce_threshold {}", time(draw, 100, 50_000)));
}

/// Options of `etf`. The packets' transmit times use CLOCK_TAI, so the line must name that clock.
pub(super) fn etf(site: &mut Site<'_>) {
    site.need("clockid CLOCK_TAI");
    let delta = site.draw.spread(1, 2_000_000);
    site.may(80, |_| format!("delta {delta}"));
    // The kernel checks that the socket of a packet uses deadline mode if the qdisc does. The
    // sockets here never use it, so skip the check.
    match site.draw.between(0, 3) {
        0 => site.need("deadline_mode skip_sock_check"),
        1 => site.flag(100, "skip_sock_check"),
        _ => {}
    }
}
