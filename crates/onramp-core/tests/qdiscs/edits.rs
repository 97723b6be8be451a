//! Changes to the tree of a device with several transmit queues, each with its own port: which
//! ports a change applies to, and which qdiscs the trees of these ports have afterwards.

use std::sync::{Arc, Mutex};

use onramp_core::qdisc::Cx;
use onramp_core::view::QdiscView;
use onramp_core::{
    Device, DeviceInfo, Edit, Instant, Port, PortWaker, RootQdisc, Setup, Transmitted,
};
use onramp_queue::{Packet, PacketList};

const MTU: u32 = 1_514;
const QUEUES: usize = 3;
const NOW: Instant = Instant(1_000_000_000);

/// A device that records the cookies of the packets that it takes.
struct Taker(DeviceInfo, Taken);

impl Device for Taker {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        _now: Instant,
    ) -> Transmitted {
        self.1.lock().unwrap().extend(burst.metas().map(|meta| meta.cookie));
        done.append(burst);
        Transmitted::default()
    }
}

struct Nobody;

impl PortWaker for Nobody {
    fn visit_by(&self, _at: Instant) {}
}

/// The cookies of the packets that a transmit queue's device took.
type Taken = Arc<Mutex<Vec<u64>>>;

/// A device's tree as `tc` lines described it, and a port for each of its transmit queues.
struct Queues {
    setup: Arc<Setup>,
    ports: Vec<(Port<Taker>, Taken)>,
}

impl Queues {
    fn new(lines: &[&str]) -> Self {
        let mut setup = Setup::default();
        lines.iter().for_each(|line| setup.apply(line).expect(line));
        let port = |queue| {
            let taken = Taken::default();
            let device = Taker(DeviceInfo::new("taker".to_owned(), MTU), taken.clone());
            let qdisc = setup.build_port(queue, MTU, 0).expect("a root");
            (Port::new(qdisc, device, 100), taken)
        };
        let ports = (0..QUEUES).map(port).collect();
        Self { setup: Arc::new(setup), ports }
    }

    /// Applies a `tc` line. Returns the transmit queue that the line is for (`None` if it is for
    /// all queues), and the queues whose trees changed.
    fn apply(&mut self, line: &str) -> (Option<usize>, Vec<usize>) {
        let mut setup = Setup::clone(&self.setup);
        let change = setup.change(line).unwrap_or_else(|why| panic!("{line}: {why}"));
        self.setup = Arc::new(setup);
        let mut changed = Vec::new();
        for (queue, (port, _)) in self.ports.iter().enumerate() {
            if let Some(edit) = Edit::new(&self.setup, &change, Some(queue), MTU, 0) {
                let job =
                    Box::new(move |root: &mut RootQdisc, cx: &mut Cx<'_>| root.edit(edit, cx));
                assert!(port.with(job, NOW, &Nobody).expect("few jobs wait"));
                assert_eq!(port.death(), None);
                changed.push(queue);
            }
        }
        (Edit::queue(&self.setup, &change), changed)
    }

    fn views(&self, queue: usize) -> Vec<QdiscView> {
        let (found, setup) = (Arc::new(Mutex::new(Vec::new())), self.setup.clone());
        let inside = found.clone();
        let job = Box::new(move |root: &mut RootQdisc, _: &mut Cx<'_>| {
            *inside.lock().unwrap() = root.views(&setup, Some(queue));
        });
        assert!(self.ports[queue].0.with(job, NOW, &Nobody).expect("few jobs wait"));
        std::mem::take(&mut *found.lock().unwrap())
    }

    /// Returns the handle, the parent and the kind of each qdisc in the tree of a transmit queue.
    fn told(&self, queue: usize) -> Vec<String> {
        let views = self.views(queue);
        let row = |view: &QdiscView| {
            let place = view.parent.map_or_else(|| "root".to_owned(), |parent| parent.to_string());
            format!("{} {place} {}", view.handle, view.kind.id)
        };
        views.iter().map(row).collect()
    }

    /// Sends three packets with these priorities to a transmit queue at once. Returns the order in
    /// which they leave.
    fn order(&self, queue: usize, priorities: [u32; 3]) -> Vec<u64> {
        let (port, taken) = &self.ports[queue];
        taken.lock().unwrap().clear();
        let packet = |(priority, cookie)| {
            let mut pkt = Packet::new(100);
            (pkt.priority, pkt.cookie, pkt.enqueued_ns) = (priority, cookie, NOW.0);
            pkt
        };
        let list = priorities.into_iter().zip(0..).map(packet).collect();
        let _ = port.xmit(list, NOW, &Nobody).expect("there is room");
        taken.lock().unwrap().clone()
    }
}

/// The options of a `prio` that puts packets of all priorities into its first class.
const ONE_BAND: &str = "prio priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0";

#[test]
fn a_change_below_mq_is_for_one_queue() {
    let mut queues = Queues::new(&["qdisc add dev x root handle 1: mq queues 3"]);
    for queue in 0..QUEUES {
        assert_eq!(queues.told(queue), [format!("0: 1:{} pfifo_fast", queue + 1)]);
        assert_eq!(queues.order(queue, [0, 2, 6]), [2, 0, 1], "by priority");
    }
    for (line, queue) in [
        (&*format!("qdisc add dev x parent 1:2 handle 20: {ONE_BAND}"), 1),
        ("qdisc add dev x parent 20:1 handle 21: pfifo limit 5", 1),
        ("qdisc change dev x parent 20:1 handle 21: pfifo limit 6", 1),
        ("qdisc add dev x parent 1:3 handle 30: drr", 2),
        ("class add dev x parent 30: classid 30:7 drr", 2),
        ("filter add dev x parent 30: protocol all prio 1 matchall classid 30:7", 2),
        ("filter del dev x parent 30: protocol all prio 1 matchall", 2),
        ("class del dev x parent 30: classid 30:7", 2),
    ] {
        assert_eq!(queues.apply(line), (Some(queue), vec![queue]), "{line}");
    }
    assert_eq!(queues.told(0), ["0: 1:1 pfifo_fast"]);
    assert_eq!(queues.told(1), ["20: 1:2 prio", "21: 20:1 pfifo"]);
    assert_eq!(queues.told(2), ["30: 1:3 drr"]);
}

/// When a qdisc below a class of a port's tree is removed, a `pfifo` takes its place. When the
/// topmost qdisc of a transmit queue's tree is removed, a `pfifo_fast` takes its place.
#[test]
fn what_stands_there_when_a_qdisc_has_gone() {
    let mut queues = Queues::new(&[
        "qdisc add dev x root handle 1: mq queues 3",
        &format!("qdisc add dev x parent 1:2 handle 20: {ONE_BAND}"),
        "qdisc add dev x parent 20:1 handle 21: pfifo_fast",
    ]);
    assert_eq!(queues.order(1, [0, 2, 6]), [2, 0, 1], "by priority");
    assert_eq!(queues.apply("qdisc del dev x parent 20:1 handle 21:"), (Some(1), vec![1]));
    assert_eq!(queues.told(1), ["20: 1:2 prio"]);
    assert_eq!(queues.order(1, [0, 2, 6]), [0, 1, 2], "as they came");
    assert_eq!(queues.apply("qdisc del dev x parent 1:2 handle 20:"), (Some(1), vec![1]));
    assert_eq!(queues.told(1), ["0: 1:2 pfifo_fast"]);
    assert_eq!(queues.order(1, [0, 2, 6]), [2, 0, 1], "by priority");
}

/// If the root is not `mq`, each transmit queue has a copy of the whole tree, and a change applies
/// to all queues.
#[test]
fn a_change_to_any_other_root_is_for_all_queues() {
    let mut queues = Queues::new(&[
        &format!("qdisc add dev x root handle 1: {ONE_BAND}"),
        "qdisc add dev x parent 1:1 handle 11: pfifo_fast",
    ]);
    let all = vec![0, 1, 2];
    for queue in 0..QUEUES {
        assert_eq!(queues.told(queue), ["1: root prio", "11: 1:1 pfifo_fast"]);
    }
    assert_eq!(queues.apply("qdisc del dev x parent 1:1 handle 11:"), (None, all.clone()));
    for queue in 0..QUEUES {
        assert_eq!(queues.told(queue), ["1: root prio"]);
        assert_eq!(queues.order(queue, [0, 2, 6]), [0, 1, 2], "as they came");
    }
    for line in [
        "qdisc add dev x parent 1:2 handle 12: fq",
        "qdisc change dev x root handle 1: prio",
        "filter add dev x parent 1: protocol all prio 1 matchall classid 1:2",
        "qdisc replace dev x root handle 5: fq_codel",
    ] {
        assert_eq!(queues.apply(line), (None, all.clone()), "{line}");
    }
    for queue in 0..QUEUES {
        assert_eq!(queues.told(queue), ["5: root fq_codel"]);
    }
}

/// Replacing the root by another root with a class for each transmit queue changes all queues.
#[test]
fn another_mq_is_for_all_queues() {
    let mut queues = Queues::new(&["qdisc add dev x root handle 1: mq queues 3"]);
    let line = "qdisc replace dev x root handle 2: mq queues 3";
    assert_eq!(queues.apply(line), (None, vec![0, 1, 2]));
    for queue in 0..QUEUES {
        assert_eq!(queues.told(queue), [format!("0: 2:{} pfifo_fast", queue + 1)]);
    }
}
