//! A thread of the chaos test that makes random changes to a link while others send.

use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use onramp::{Link, Rate};

use crate::counts::Met;
use crate::device::Moody;
use crate::plan::{COPIES, QDISCS};
use crate::watch::{Doing, Slot};
use crate::world::{PORTS, World};

const LINES: &[&str] = &[
    "qdisc replace dev link root handle 1: fq limit 500",
    "qdisc replace dev link root handle 1: prio",
    "qdisc replace dev link parent 1:1 pfifo limit 50",
    "qdisc replace dev link parent 1:2 fq_codel",
    "qdisc change dev link root handle 1: fq flow_limit 20",
    "qdisc replace dev link root handle 1: pfifo limit 300",
    "qdisc del dev link root",
];

fn note(met: Met, done: bool) {
    if done {
        met.note();
    }
}

/// Makes random changes to the link (its ports, qdiscs and rate) until the world stops.
pub(crate) fn meddle(world: &World, link: Link, slot: &Slot, rng: &mut Rng) {
    let (at_once, patience) = (world.plan.at_once(), world.plan.patience());
    while !world.stop.load(SeqCst) {
        thread::sleep(Duration::from_millis(rng.u64(1..70)));
        match rng.u32(0..10) {
            0 | 1 => {
                let network = rng.bool().then_some(&world.network);
                let device = Moody::boxed(rng, &world.weather, network, world.plan.mortal);
                let added = slot.call(Doing::AddPort, at_once, 0, || link.add_port(*device));
                note(Met::PortAdded, added.is_ok());
            }
            2 | 3 => {
                let port = rng.usize(0..PORTS.min(link.ports() + 1));
                let time = Duration::from_millis(rng.u64(0..300));
                // The port's owner may be calling a device that blocks, so the removal may take
                // longer than `time`.
                let bound = time + Duration::from_secs(2);
                let remove = || link.remove_port(port, time);
                let removed = slot.wait(Doing::RemovePort, bound, port as u64, remove);
                note(Met::PortRemoved, removed.is_ok());
            }
            4 => {
                let copies = world.plan.copies && rng.u32(0..3) == 0;
                let qdisc = if copies { COPIES } else { QDISCS[rng.usize(0..QDISCS.len())] };
                // The change may fail, because a port whose device blocks, or that is dead, may not
                // accept it.
                let set = slot.call(Doing::SetQdisc, at_once, 0, || link.set_qdisc(qdisc));
                note(Met::QdiscSet, set.is_ok());
            }
            5 => {
                let line = LINES[rng.usize(0..LINES.len())];
                let changed = slot.wait(Doing::Change, at_once, 0, || link.change(line).is_ok());
                note(Met::QdiscChanged, changed);
            }
            6 => {
                let rate = Rate::bytes_per_second(rng.u64(30_000_000..200_000_000));
                let _ = slot.call(Doing::SetRate, at_once, 0, || link.set_rate(rate));
            }
            7 => drop(slot.wait(Doing::Look, at_once, 1, || link.all_views())),
            8 => drop(slot.wait(Doing::Look, at_once, 2, || link.tree_views())),
            _ => {
                slot.wait(Doing::Look, at_once, 3, || link.measure(rng.bool()));
            }
        }
        let stats = slot.call(Doing::Look, at_once, 4, || link.stats());
        let out = stats.sent + stats.dropped_total();
        if out > stats.submitted + stats.made {
            slot.watch().failed(&format!("more left than came: {stats:?}"));
        }
    }
    slot.call(Doing::DropLink, patience, 0, || drop(link));
}
