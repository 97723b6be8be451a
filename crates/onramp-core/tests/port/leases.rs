//! Changes of a port's tree that hold for a time: the port ends them by itself, however late the
//! thread is that gave them.

use onramp_core::{Change, Edit, Handle, Instant, Job, Lease, PortOptions, Setup};

use crate::jobs::give;
use crate::world::{MTU, START, World};

/// A packet of 100 bytes takes 10 µs, and after the lease 1 ms.
const FAST: &str = "80mbit";
const SLOW: &str = "800kbit";
const PACKETS: u64 = 3_000;

/// A port behind a `tbf` or `htb`, with many packets, and the description of its tree.
struct Leased {
    world: World,
    setup: Setup,
}

impl Leased {
    fn new(lines: &[&str]) -> Self {
        let mut setup = Setup::default();
        for line in lines {
            setup.apply(line).expect("a line of tc");
        }
        let tree = setup.build(MTU, 1).expect("a root");
        Self { world: World::over(tree, 5_000, PortOptions::default()), setup }
    }

    fn tbf() -> Self {
        Self::new(&[&format!(
            "qdisc add dev x root handle 1: tbf rate {SLOW} burst 1000 limit 9mb"
        )])
    }

    fn edit(&mut self, place: Handle, rate: &str) -> Edit {
        let key = self.setup.rate_option(place, "rate").expect("it has a rate");
        let line = self.setup.line("adjust", place, &[(key, rate)]).expect("it is there");
        let change = self.setup.change(&line).expect("a change");
        Edit::new(&self.setup, &change, Some(0), MTU, 1).expect("an edit")
    }

    /// Gives the fast rate until `end`, and the slow one afterwards.
    fn lend(&mut self, place: Handle, end: Instant) -> Lease {
        let (after, edit) = (self.edit(place, SLOW), self.edit(place, FAST));
        let lease = Lease::new(end);
        let held = lease.pending();
        let done = give(
            &self.world,
            Box::new(move |root, cx| {
                root.edit(edit, cx);
                root.hold(held, after);
            }),
        );
        assert!(done, "nobody owns the port");
        lease
    }

    fn change(&mut self, line: &str) {
        let change: Change = self.setup.change(line).expect("a line of tc");
        let edit = Edit::new(&self.setup, &change, Some(0), MTU, 1).expect("an edit");
        assert!(give(&self.world, Box::new(move |root, cx| root.edit(edit, cx))));
    }

    /// Visits until `end` as a punctual runner does. Returns how many packets have left since the
    /// last call.
    fn until(&mut self, end: Instant) -> usize {
        let before = self.world.sent().len();
        while self.world.waker.due().is_some_and(|due| due < end) {
            let _ = self.world.next_visit();
        }
        self.world.now = self.world.now.max(end);
        self.world.sent().len() - before
    }
}

const TBF: Handle = Handle::new(1, 0);

fn ms(ms: u64) -> Instant {
    START.after(ms * 1_000_000)
}

#[test]
fn a_port_ends_a_lease_by_itself() {
    let mut leased = Leased::tbf();
    let lease = leased.lend(TBF, ms(5));
    leased.world.enqueue(PACKETS);
    let count = leased.until(ms(5));
    assert!((400..=511).contains(&count), "{count} packets of 10 µs and a burst in 5 ms");
    let count = leased.until(ms(25));
    assert!((18..=32).contains(&count), "{count} packets of 1 ms in 20 ms, and a burst");
    assert!(!lease.renew(ms(99)), "it is over");
    leased.world.check();
}

/// The runner, or the whole process, stood still from before the end until long after it. What was
/// due meanwhile by the old rate does not leave.
#[test]
fn a_port_that_stood_still_ends_it_first() {
    let mut leased = Leased::tbf();
    let _lease = leased.lend(TBF, ms(5));
    leased.world.enqueue(PACKETS);
    leased.until(ms(1));
    leased.world.now = ms(300);
    let before = leased.world.sent().len();
    let _ = leased.world.visit();
    let count = leased.world.sent().len() - before;
    assert!(count <= 20, "{count} packets at once: a burst, and what the last 5 ms allow");
    assert!(leased.until(ms(310)) <= 12);
    leased.world.check();
}

#[test]
fn a_lease_that_is_renewed_goes_on() {
    let mut leased = Leased::tbf();
    let lease = leased.lend(TBF, ms(2));
    leased.world.enqueue(PACKETS);
    for end in 3..=8 {
        leased.until(ms(end - 1));
        assert!(lease.renew(ms(end)));
        assert!(lease.renew(ms(1)), "an earlier end changes nothing");
    }
    let count = leased.until(ms(8));
    assert!((90..=110).contains(&count), "{count} packets of 10 µs in the last millisecond");
    let count = leased.until(ms(18));
    assert!(count <= 22, "{count} packets of 1 ms in 10 ms, and a burst");
    assert!(!lease.renew(ms(99)));
}

/// Whoever gives the qdisc another rate ends the lease, and the port leaves that rate alone.
#[test]
fn another_change_of_the_same_place_ends_a_lease() {
    let fast = format!("qdisc change dev x root handle 1: tbf rate {FAST} burst 1000 limit 9mb");
    let roots = [&*fast, "qdisc replace dev x root handle 2: pfifo limit 9000"];
    for line in roots {
        let mut leased = Leased::tbf();
        let lease = leased.lend(TBF, ms(2));
        leased.change(line);
        assert!(!lease.renew(ms(9)), "{line}");
        leased.world.enqueue(1_000);
        leased.until(ms(9));
        assert!(leased.world.sent().len() >= 800, "{line}");
    }
    // A new lease takes the place of the one before.
    let mut leased = Leased::tbf();
    let old = leased.lend(TBF, ms(1));
    let new = leased.lend(TBF, ms(9));
    assert!(!old.renew(ms(9)) && new.renew(ms(9)));
    leased.world.enqueue(1_000);
    assert!(leased.until(ms(9)) >= 800);
}

/// Leases of other classes go on when a class gets another rate or goes, or when a filter comes.
#[test]
fn leases_of_other_classes_go_on() {
    const ONE: Handle = Handle::new(1, 1);
    const TWO: Handle = Handle::new(1, 2);
    let mut leased = Leased::new(&[
        "qdisc add dev x root handle 1: htb default 1",
        "class add dev x parent 1: classid 1:1 htb rate 800kbit burst 1000",
        "class add dev x parent 1: classid 1:2 htb rate 800kbit burst 1000",
        "class add dev x parent 1: classid 1:3 htb rate 800kbit burst 1000",
    ]);
    let [one, two] = [ONE, TWO].map(|class| leased.lend(class, ms(5)));
    leased.change("class change dev x parent 1: classid 1:2 htb rate 1mbit burst 1000");
    leased.change("filter add dev x parent 1: basic classid 1:3");
    leased.change("qdisc add dev x parent 1:1 handle 9: pfifo limit 9000");
    assert!(one.renew(ms(5)) && !two.renew(ms(5)));
    leased.until(ms(6));
    leased.world.enqueue(1);
    assert!(!one.renew(ms(9)), "its time was over before the packet came");
    let [one, two] = [ONE, TWO].map(|class| leased.lend(class, ms(9)));
    leased.change("class del dev x classid 1:2");
    assert!(one.renew(ms(9)) && !two.renew(ms(9)));
    leased.change("qdisc replace dev x root handle 2: pfifo limit 9000");
    assert!(!one.renew(ms(9)));
}

/// A qdisc below a class keeps its lease until the qdisc itself or a class above it goes.
#[test]
fn leases_below_a_class_go_with_it() {
    const BELOW: Handle = Handle::new(9, 0);
    let mut leased = Leased::new(&[
        "qdisc add dev x root handle 1: htb default 1",
        "class add dev x parent 1: classid 1:1 htb rate 1gbit",
        "class add dev x parent 1: classid 1:2 htb rate 1gbit",
        "qdisc add dev x parent 1:1 handle 9: tbf rate 800kbit burst 1000 limit 9mb",
        "qdisc add dev x parent 1:2 handle 8: tbf rate 800kbit burst 1000 limit 9mb",
    ]);
    let lease = leased.lend(BELOW, ms(5));
    leased.change("qdisc del dev x parent 1:2 handle 8:");
    leased.change("class del dev x classid 1:2");
    leased.change("class change dev x parent 1: classid 1:1 htb rate 2gbit");
    assert!(lease.renew(ms(5)));
    leased.change("qdisc del dev x parent 1:1 handle 9:");
    assert!(!lease.renew(ms(5)));
}

/// A `prio` that gets fewer bands deletes qdiscs, and with more bands has others at these places.
/// What was to come after a lease does not meet them.
#[test]
fn a_lease_does_not_meet_another_qdisc_at_its_place() {
    let mut leased = Leased::new(&[
        "qdisc add dev x root handle 1: prio bands 4 priomap 3 3 3 3 3 3 3 3 3 3 3 3 3 3 3 3",
        "qdisc add dev x parent 1:4 handle 9: tbf rate 800kbit burst 1000 limit 9mb",
    ]);
    let lease = leased.lend(Handle::new(9, 0), ms(5));
    leased.change(
        "qdisc change dev x root handle 1: prio bands 3 priomap 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1",
    );
    leased.change(
        "qdisc change dev x root handle 1: prio bands 4 priomap 3 3 3 3 3 3 3 3 3 3 3 3 3 3 3 3",
    );
    assert!(!lease.renew(ms(5)));
    leased.world.now = ms(6);
    leased.world.enqueue(100);
    let _ = leased.world.settle();
    assert_eq!(leased.world.sent().len(), 100);
    leased.world.check();
}

/// A lease that comes too late, because its job had to wait, is over before a packet leaves by it;
/// and so is one that ends while packets come that the owner did not expect when it read the clock.
#[test]
fn a_lease_that_comes_late_is_over_at_once() {
    let mut leased = Leased::tbf();
    leased.world.enqueue(PACKETS);
    leased.until(ms(20));
    leased.world.now = ms(30);
    let lease = leased.lend(TBF, ms(25));
    let count = leased.until(ms(31));
    assert!(count <= 22 && !lease.renew(ms(99)), "{count} packets");

    let mut leased = Leased::tbf();
    let lease = leased.lend(TBF, ms(5));
    leased.world.enqueue(PACKETS);
    leased.until(ms(1));
    leased.world.now = ms(300);
    let packets = leased.world.packets(10);
    // The owner read the clock before the end.
    leased.world.now = ms(4);
    let before = leased.world.sent().len();
    leased.world.waker.takes(296_000_000);
    let _ = leased.world.port.xmit(packets, leased.world.now, &leased.world.waker);
    let count = leased.world.sent().len() - before;
    assert!(count <= 20 && !lease.renew(ms(999)), "{count} packets");
}

/// The job that brings a lease waits while the device blocks, and packets come meanwhile. When the
/// device returns, the lease is over, so no packet leaves by it.
#[test]
fn a_lease_that_waited_for_a_device_is_over() {
    let mut leased = Leased::tbf();
    let after = leased.edit(TBF, SLOW);
    let rate = [("rate", FAST), ("burst", "9000")];
    let line = leased.setup.line("adjust", TBF, &rate).expect("it is there");
    let change = leased.setup.change(&line).expect("a change");
    let edit = Edit::new(&leased.setup, &change, Some(0), MTU, 1).expect("an edit");
    let held = Lease::new(ms(5)).pending();
    let job: Job = Box::new(move |root, cx| {
        root.edit(edit, cx);
        root.hold(held, after);
    });
    leased.world.wire().jobs = [job].into_iter().collect();
    leased.world.now = ms(30);
    let packets = leased.world.packets(60);
    leased.world.wire().comes = Some(packets);
    // The device blocks from 1 ms until 31 ms.
    leased.world.now = ms(1);
    leased.world.waker.takes(30_000_000);
    let _ = leased.world.push(1);
    leased.world.waker.takes(0);
    leased.until(ms(32));
    let count = leased.world.sent().len();
    assert!(count <= 1 + 10 + 4, "{count} packets: a burst of the slow rate and 2 ms of it");
}

/// A qdisc below a `tbf` keeps its lease when the `tbf` gets another rate.
#[test]
fn a_lease_below_a_tbf_goes_on() {
    let mut leased = Leased::new(&[
        "qdisc add dev x root handle 1: tbf rate 1gbit burst 9000 limit 9mb",
        "qdisc add dev x parent 1:1 handle 9: tbf rate 800kbit burst 1000 limit 9mb",
    ]);
    let lease = leased.lend(Handle::new(9, 0), ms(5));
    leased.change("qdisc change dev x root handle 1: tbf rate 2gbit burst 9000 limit 9mb");
    assert!(lease.renew(ms(5)));
}

/// A dead port makes no change at the end of a lease: its qdisc is broken.
#[test]
fn a_dead_port_lets_its_leases_go() {
    let mut leased = Leased::tbf();
    let lease = leased.lend(TBF, ms(5));
    // So many that the sender that finds the port dead leaves them to the runner.
    leased.world.enqueue(PACKETS);
    leased.until(ms(1));
    leased.world.wire().panics = true;
    let list = leased.world.packets(1);
    let _ = leased.world.port.xmit(list, leased.world.now, &leased.world.waker);
    assert!(leased.world.port.death().is_some() && leased.world.stats().held > 0);
    assert!(!lease.renew(ms(9)));
}

/// A payload that lies elsewhere passes a port only under a lease that holds.
#[test]
fn a_lent_payload_waits_for_the_end_of_a_lease() {
    let mut leased = Leased::new(&["qdisc add dev x root handle 1: pfifo limit 100"]);
    leased.world.wire().lends = true;
    let change = Change::Parameters(1);
    let after = Edit::new(&leased.setup, &change, Some(0), MTU, 1).expect("an edit");
    let lease = Lease::new(ms(5));
    let held = lease.pending();
    assert!(give(&leased.world, Box::new(move |root, _| root.hold(held, after))));
    assert!(leased.world.lend(b"before").is_ok());
    leased.world.now = ms(5);
    assert!(leased.world.lend(b"after").is_err() && !lease.renew(ms(9)));
    assert!(leased.world.lend(b"again").is_ok());
    assert_eq!(leased.world.wire().lent, [&b"before"[..], b"again"]);
}

/// A lease of a port that is gone is over.
#[test]
fn a_lease_ends_with_its_port() {
    let mut leased = Leased::tbf();
    let lease = leased.lend(TBF, ms(5));
    assert!(lease.renew(ms(6)));
    drop(leased);
    assert!(!lease.renew(ms(7)));
}
