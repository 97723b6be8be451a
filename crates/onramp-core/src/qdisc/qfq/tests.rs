//! Tests of `qfq` and `drr` in which classes are added, changed and removed while packets are held.

use onramp_queue::{Packet, PacketList};
use proptest::prelude::*;

use crate::base::Instant;
use crate::base::params::{Site, Value, Values};
use crate::filter::Filters;
use crate::qdisc::KINDS;
use crate::sched::{Backlog, ClassKind, Classes, Cx, Dequeue, Qdisc};
use crate::tc::Spec;

const CLASSES: u16 = 12;

#[derive(Clone, Debug)]
enum Step {
    /// Adds or changes a class. The values are the class's minor number and the parameters `weight`
    /// and `maxpkt` of `qfq`; `drr` takes the last value as its `quantum`.
    Set(u16, u64, u64),
    Remove(u16),
    Graft(u16, usize),
    Enqueue(u16, u32),
    Dequeue,
    Peek,
    Reset,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let minor = || 1..=CLASSES;
    let step = prop_oneof![
        3 => (minor(), prop_oneof![Just(1_u64), Just(7), Just(1024)], 512_u64..2000)
            .prop_map(|(minor, a, b)| Step::Set(minor, a, b)),
        1 => minor().prop_map(Step::Remove),
        1 => (minor(), any::<usize>()).prop_map(|(minor, kind)| Step::Graft(minor, kind)),
        20 => (minor(), 60_u32..2500).prop_map(|(minor, len)| Step::Enqueue(minor, len)),
        12 => Just(Step::Dequeue),
        1 => Just(Step::Peek),
        1 => prop::bool::weighted(0.05)
            .prop_map(|reset| if reset { Step::Reset } else { Step::Dequeue }),
    ];
    prop::collection::vec(step, 0..400)
}

struct World {
    qdisc: Box<dyn Qdisc>,
    kind: &'static str,
    came: u32,
    gone: u32,
}

impl World {
    fn new(kind: &'static str) -> Self {
        let spec: Spec = kind.parse().expect("it has defaults");
        Self { qdisc: spec.build(1514), kind, came: 0, gone: 0 }
    }

    /// Calls the qdisc, and counts the packets that it drops.
    fn with<R>(&mut self, call: impl FnOnce(&mut dyn Qdisc, &mut Cx<'_>) -> R) -> R {
        let mut drops = PacketList::new();
        let answer = call(&mut *self.qdisc, &mut Cx::new(Instant(1), &mut drops));
        self.gone += drops.len();
        answer
    }

    fn set(&mut self, minor: u16, first: u64, second: u64) {
        let kind = KINDS.iter().find(|kind| kind.id == self.kind).expect("it is there");
        let ClassKind::Added { params, .. } = kind.classes else { panic!("classes are added") };
        let given = match params {
            [_] => vec![Some(Value::Number(second))],
            _ => vec![Some(Value::Number(first)), Some(Value::Number(second))],
        };
        let values = Values { params, given: &given, site: Site::default() };
        self.qdisc.classes().expect("it has classes").set(minor, 0, &values, Instant(1));
    }

    fn run(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Set(minor, first, second) => self.set(minor, first, second),
            Step::Remove(minor) => self.with(|qdisc, cx| {
                qdisc.classes().expect("it has classes").remove(minor, cx);
            }),
            Step::Graft(minor, kind) => self.with(|qdisc, cx| {
                let line = ["pfifo limit 3", "pfifo_fast", "prio", "skbprio limit 4"][kind % 4];
                let child = line.parse::<Spec>().expect("a correct line").build(1514);
                qdisc.classes().expect("it has classes").graft(minor, child, cx);
            }),
            Step::Enqueue(minor, len) => {
                let mut pkt = Packet::new(len);
                pkt.priority = 0x8001_0000 + u32::from(minor);
                self.came += 1;
                let _ = self.with(|qdisc, cx| qdisc.enqueue(pkt, cx));
            }
            Step::Dequeue => match self.with(|qdisc, cx| qdisc.dequeue(cx)) {
                Dequeue::Ready(_) => self.gone += 1,
                _ => prop_assert_eq!(self.came, self.gone, "holds packets, and gives none"),
            },
            Step::Peek => {
                let _ = self.with(|qdisc, cx| qdisc.peek(cx));
            }
            Step::Reset => {
                self.with(|qdisc, cx| qdisc.reset(cx));
                prop_assert_eq!(self.qdisc.backlog(), Backlog::default());
            }
        }
        prop_assert_eq!(self.qdisc.backlog().packets, self.came - self.gone);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Whatever is done with the classes of `qfq` or `drr`, no packet is lost, and no packet stays
    /// in the qdisc for ever.
    #[test]
    fn classes_come_and_go(steps in steps()) {
        for kind in ["qfq", "drr"] {
            let mut world = World::new(kind);
            for step in &steps {
                world.run(step)?;
            }
            while world.came > world.gone {
                world.run(&Step::Dequeue)?;
            }
        }
    }
}

/// In `qfq`, the groups of aggregates and the sets of groups stay consistent under random
/// operations.
#[test]
fn groups_are_in_the_sets_they_belong_to() {
    let ClassKind::Added { params, .. } = super::QFQ.classes else { panic!("classes are added") };
    for seed in 0..40 {
        let mut rng = crate::base::rng::Rng::new(seed);
        let mut below = |most: u32| rng.next_u32() % most;
        let mut qfq = super::Qfq {
            classes: super::Table::new(crate::base::Handle::new(1, 0)),
            schedule: super::Schedule::default(),
            held: Backlog::default(),
            filters: Filters::default(),
            peeked: None,
        };
        let mut drops = PacketList::new();
        let mut held = 0_u32;
        for step in 0..600 {
            let cx = &mut Cx::new(Instant(1), &mut drops);
            let minor = u16::try_from(1 + below(20)).expect("few");
            match below(if step < 40 { 6 } else { 40 }) {
                0..=2 => {
                    let weight = [1, 2, 5, 30, 200, 1000][below(6) as usize];
                    let given = [weight, u64::from(512 + below(3) * 700)];
                    let given = given.map(|number| Some(Value::Number(number)));
                    let values = Values { params, given: &given, site: Site::default() };
                    qfq.set(minor, 0, &values, Instant(1));
                }
                3 if below(4) == 0 => qfq.remove(minor, cx),
                4..=30 if step % 200 < 100 || below(3) == 0 => {
                    let mut pkt = Packet::new(60 + below(2_000));
                    pkt.priority = 0x1_0000 + u32::from(minor);
                    let _ = qfq.enqueue(pkt, cx);
                }
                _ => {
                    let busy = qfq.held.packets > 0;
                    let sent = matches!(qfq.dequeue(cx), Dequeue::Ready(_));
                    assert_eq!(sent, busy, "seed {seed}, step {step}");
                }
            }
            held = held.max(qfq.held.packets);
            qfq.schedule.check();
        }
        assert!(held > 20, "seed {seed}: {held}");
    }
}
