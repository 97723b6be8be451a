//! Generates the packets of a case: flows that send evenly, at random, in bursts, or on and off.

use super::Size;
use crate::draw::Draw;
use crate::kinds;
use crate::plan::{Plan, Row};

/// The longest time that a case sends packets, in nanoseconds.
const LONGEST_NS: u64 = 6_000_000_000;
/// The highest priority that Linux itself gives to packets.
const PRIORITIES: u16 = 15;

/// How a flow spaces its packets.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Evenly spaced packets.
    Paced,
    /// A Poisson process: exponentially distributed gaps.
    Poisson,
    /// Up to this many packets at the same instant, then a pause.
    Bursts(u64),
    /// Evenly spaced packets at a higher rate for `on_ns`, then silence for `off_ns`.
    OnOff { on_ns: u64, off_ns: u64 },
}

/// How one flow sends: the spacing of its packets, their sizes in bytes, their type-of-service
/// byte, and the priorities that they carry.
#[derive(Debug)]
struct Flow {
    way: Way,
    sizes: &'static [u32],
    tos: u8,
    priorities: Vec<u32>,
}

/// Fills the plan with packets for a bottleneck of `rate` bits per second.
pub(super) fn load(
    plan: &mut Plan,
    draw: &mut Draw,
    size: &Size,
    rate: u64,
    classes: &[(u16, u16)],
) {
    let root = plan.lines.first().map_or("", |line| line.kind);
    let flows = match draw.between(0, 9) {
        _ if plan.kinds().iter().any(|kind| kinds::kind(kind).is_some_and(|kind| kind.hashes)) => {
            draw.between(1, 8)
        }
        0..=6 => draw.between(1, 8),
        7..=8 => draw.between(9, 40),
        _ => draw.between(size.flows_max / 6, size.flows_max),
    };
    let packets = draw.between(size.packets.0, size.packets.1);
    // All flows together send at 60 % to 300 % of the bottleneck's rate.
    let offered = rate * draw.between(6, 30) / 10;
    let end_ns = (packets * 700 * 8 * 1_000_000_000 / offered).min(LONGEST_NS);
    let mut rows = Vec::new();
    for id in 0..flows {
        let flow = flow(draw, root, classes, end_ns);
        let weight = draw.between(5, 15);
        let share = offered * weight / 10 / flows;
        let before = rows.len();
        let most = (size.rows_max / usize::try_from(flows).unwrap_or(1)).max(20);
        send(draw, &flow, (id, share.max(1_000)), end_ns, &mut |row| {
            rows.push(row);
            rows.len() < before + most
        });
        if rows.len() == before {
            // With many flows, the first packet of a flow may come after the end of the case. Then
            // add one packet for the flow, so that every flow sends something.
            let time_ns = draw.between(0, end_ns);
            rows.push(packet(draw, &flow, id, time_ns));
        }
        if ["fq"].contains(&root) && draw.likely(40) {
            plan.pacing.insert(id, (share / 8 * draw.between(2, 20) / 10).max(2_000));
        }
    }
    rows.sort_by_key(|row| row.time_ns);
    rows.truncate(size.rows_max);
    if root == "etf" || (root == "fq" && draw.likely(20)) {
        let late = if draw.likely(50) { 10 } else { 0 };
        for row in &mut rows {
            if !draw.likely(late) {
                row.txtime_ns = Some(row.time_ns + draw.spread(1, 30_000_000));
            }
        }
    }
    plan.rows = rows;
}

fn flow(draw: &mut Draw, root: &str, classes: &[(u16, u16)], end_ns: u64) -> Flow {
    let way = match draw.between(0, 5) {
        0 => Way::Paced,
        1..=2 => Way::Poisson,
        3 => Way::Bursts(draw.spread(2, 60)),
        _ => Way::OnOff {
            on_ns: draw.spread(1_000_000, end_ns.max(2_000_000)),
            off_ns: draw.spread(1_000_000, end_ns.max(2_000_000)),
        },
    };
    const MIX: [u32; 8] = [60, 60, 200, 576, 1000, 1200, 1514, 1514];
    let sizes: &[u32] = match draw.between(0, 3) {
        0 => &[1514],
        1 => &[1000],
        2 => &[60, 100, 200],
        _ => &MIX,
    };
    let code = if draw.likely(20) { draw.small(0, 63) } else { 0 };
    let tos = u8::try_from(code << 2 | draw.pick(&[0, 0, 1, 2, 2, 3])).unwrap_or(0);
    let classful = !classes.is_empty();
    let count = draw.pick(&[1, 1, 1, 3]);
    let mut priority = || match draw.between(0, 9) {
        0..=6 if classful => {
            let (major, minor) = draw.pick(classes);
            u32::from(major) << 16 | u32::from(minor)
        }
        // `skbprio` has 64 priorities. Also use some priorities above them.
        _ if root == "skbprio" => draw.small(0, 70).into(),
        _ => draw.small(0, PRIORITIES).into(),
    };
    let priorities = (0..count).map(|_| priority()).collect();
    Flow { way, sizes, tos, priorities }
}

fn packet(draw: &mut Draw, flow: &Flow, id: u64, time_ns: u64) -> Row {
    let bytes = draw.pick(flow.sizes);
    let priority = draw.pick(&flow.priorities);
    Row { time_ns, flow: id, bytes, priority, tos: flow.tos, txtime_ns: None }
}

/// Adds packets of a flow that sends at `share` bits per second on average, until `end_ns`, or
/// until `push` returns false.
fn send(
    draw: &mut Draw,
    flow: &Flow,
    (id, share): (u64, u64),
    end_ns: u64,
    push: &mut dyn FnMut(Row) -> bool,
) {
    let gap = |bytes: u64, rate: u64| bytes * 8 * 1_000_000_000 / rate;
    let mut now_ns = draw.between(0, gap(1_000, share).min(end_ns / 2));
    while now_ns < end_ns {
        let row = packet(draw, flow, id, now_ns);
        let bytes = u64::from(row.bytes);
        let more = match flow.way {
            Way::Paced => {
                now_ns += gap(bytes, share);
                push(row)
            }
            Way::Poisson => {
                now_ns += draw.exponential(gap(bytes, share)).max(1);
                push(row)
            }
            Way::Bursts(most) => {
                let count = draw.between(1, most);
                let burst: Vec<Row> = (0..count).map(|_| packet(draw, flow, id, now_ns)).collect();
                let bytes: u64 = burst.iter().map(|row| u64::from(row.bytes)).sum();
                now_ns += draw.exponential(gap(bytes, share)).max(1);
                burst.into_iter().all(&mut *push)
            }
            Way::OnOff { on_ns, off_ns } => {
                let high = share * (on_ns + off_ns).div_ceil(on_ns);
                let within = |at: u64| at % (on_ns + off_ns) < on_ns;
                now_ns += gap(bytes, high).max(1);
                if !within(now_ns) {
                    now_ns = now_ns.next_multiple_of(on_ns + off_ns);
                }
                push(row)
            }
        };
        if !more {
            break;
        }
    }
}
