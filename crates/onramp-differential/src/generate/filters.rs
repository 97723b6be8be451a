//! Generates filters for qdiscs that have classes, and for packets before they come to the root.

use crate::draw::Draw;
use crate::plan::{Compared, Line, Opt, Plan};

/// The source port of the packets of flow 0. Flow `n` has the source port `FIRST_PORT + n`.
const FIRST_PORT: u64 = 10_000;

/// Adds filters to about half of the qdiscs `majors`. Each entry is the major number of a qdisc and
/// the minor numbers of its classes.
pub(super) fn filters(plan: &mut Plan, draw: &mut Draw, majors: &[(u16, Vec<u16>)]) {
    let flows = plan.rows.iter().map(|row| row.flow).max().unwrap_or(0);
    for (major, minors) in majors {
        if minors.is_empty() || !draw.likely(50) {
            continue;
        }
        for pref in 1..=draw.between(1, 5) {
            let matched = matched(draw, flows.min(20), Some((*major, minors)));
            let mut head = format!(
                "tc filter add dev dut0 parent {major:x}: protocol ip pref {pref} {matched}"
            );
            let mut options = Vec::new();
            if !head.contains("flow map") {
                head += &format!(" classid {major:x}:{:x}", draw.pick(minors));
                if draw.likely(20) {
                    let text = police(draw, plan.link_bps.max(2_000_000));
                    options.push(Opt { text, needed: false, compared: Compared::Exact });
                }
            }
            plan.lines.push(Line { head, kind: "filter", compared: Compared::Exact, options });
        }
    }
}

/// Adds a `clsact` to about every fifth case, with filters that outgoing packets meet before they
/// come to the root. Cases with chance stay without, because those that are kept are made again
/// from their numbers.
pub(super) fn front(plan: &mut Plan, draw: &mut Draw) {
    if plan.compared() == Compared::Chance || !draw.likely(20) {
        return;
    }
    let add =
        |head: String, kind| Line { head, kind, compared: Compared::Exact, options: Vec::new() };
    plan.lines.push(add("tc qdisc add dev dut0 clsact".to_owned(), "clsact"));
    let flows = plan.rows.iter().map(|row| row.flow).max().unwrap_or(0);
    for pref in 1..=draw.between(1, 4) {
        let matched = matched(draw, flows.min(20), None);
        let head = format!("tc filter add dev dut0 egress protocol ip pref {pref} {matched}");
        let mut line = add(head, "filter");
        let text = match draw.between(0, 3) {
            0 => "action drop".to_owned(),
            1 => "action ok".to_owned(),
            2 => format!("action skbedit priority {}", priority(plan, draw)),
            _ => police(draw, plan.link_bps.max(2_000_000)),
        };
        line.options.push(Opt { text, needed: true, compared: Compared::Exact });
        plan.lines.push(line);
    }
}

/// Returns the priority of a random packet, as `tc` reads it: in many cases a class.
fn priority(plan: &Plan, draw: &mut Draw) -> String {
    let priorities: Vec<u32> = plan.rows.iter().map(|row| row.priority).collect();
    let priority = if priorities.is_empty() { 0 } else { draw.pick(&priorities) };
    format!("{:x}:{:x}", priority >> 16, priority & 0xffff)
}

/// Returns the match part of a random filter line. `classes` are the number of the qdisc whose
/// filter it is, and those of its classes; `None` for a filter that chooses no class.
fn matched(draw: &mut Draw, flows: u64, classes: Option<(u16, &[u16])>) -> String {
    let port = FIRST_PORT + draw.between(0, flows);
    let most = if classes.is_some() { 7 } else { 6 };
    match draw.between(0, most) {
        0 => format!("u32 match ip sport {port} 0xffff"),
        1 => format!("u32 match ip tos {:#x} 0xff", draw.between(0, 3)),
        2 => format!("u32 match udp src {port} 0xfffe"),
        3 => format!("flower ip_proto udp src_port {port}"),
        4 => format!("flower ip_proto udp src_port {port}-{}", port + draw.between(1, 4)),
        5 => format!("basic match 'cmp(u16 at 0 layer 2 gt {port})'"),
        6 => "matchall".into(),
        _ => {
            let (major, minors) = classes.unwrap_or((1, &[1]));
            let (base, mask) = (draw.pick(minors), draw.pick(&[1, 3, 7, 15]));
            format!("handle 1 flow map key proto-src and {mask:#x} baseclass {major:x}:{base:x}")
        }
    }
}

/// Returns a random `police` action: the rate and the burst that it allows, and whether it drops
/// packets that exceed them.
fn police(draw: &mut Draw, rate: u64) -> String {
    let (rate, burst) = (draw.spread(rate / 20, rate), draw.spread(2_000, 40_000));
    let exceed = draw.pick(&["drop", "ok", "continue", "drop/ok", "reclassify"]);
    let exceed = if exceed == "reclassify" { "drop" } else { exceed };
    format!("action police rate {rate}bit burst {burst} conform-exceed {exceed}")
}
