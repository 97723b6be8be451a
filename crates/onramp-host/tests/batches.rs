//! Long batches of commands take time in proportion to their length. The test compares the
//! processor time of this process for batches of two lengths; other programs do not count. It is a
//! program of its own with a single test, because the time is that of all threads.

use std::path::Path;

use onramp_core::{Instant, Setup, Tree};
use onramp_host::Host;
use rustix::time::{ClockId, clock_gettime};

/// The length of the short batches: so many classes, with their filters.
const SHORT: usize = 1_000;
/// How many times as long the long batch is.
const TIMES: usize = 4;
/// How often to measure again before work that seems to grow too fast is a failure.
const TRIES: usize = 3;
/// The long batch may need so many times the processor time of as many short ones. If the work
/// grows with the square of the length, it needs four times as much, and twice as much if it grows
/// with the length to the power of 1.5.
const MOST: f64 = 1.7;

/// Which part of a batch is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    Add,
    Delete,
}

/// What carries out the lines of a batch.
trait Carrier {
    fn make() -> Self;
    fn carry_out(&mut self, line: &str);
}

/// The description of a tree.
impl Carrier for Setup {
    fn make() -> Self {
        let mut setup = Self::default();
        setup.carry_out(ROOT);
        setup
    }

    fn carry_out(&mut self, line: &str) {
        self.apply(line).map(drop).expect(line);
    }
}

/// A running tree.
impl Carrier for Tree {
    fn make() -> Self {
        Self::of(&Carrier::make(), 1_514, 0).expect("it has a root")
    }

    fn carry_out(&mut self, line: &str) {
        self.apply(Instant(1_000_000_000), line).map(drop).expect(line);
    }
}

/// A device of a host, with its link.
impl Carrier for Host {
    fn make() -> Self {
        let mut host = Self::new();
        exec(&mut host, "ip link add dev d0 up type dummy");
        host.carry_out(ROOT);
        host
    }

    fn carry_out(&mut self, line: &str) {
        exec(self, &format!("tc {line}"));
    }
}

fn exec(host: &mut Host, line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    let reply = host.exec(&words, Path::new("/"));
    assert_eq!((reply.code, &*reply.err), (0, ""), "{line}");
}

const ROOT: &str = "qdisc add dev d0 root handle 1: htb default 1";
const TABLE: &str = "filter add dev d0 parent 1: protocol ip pref 1 handle 2: u32 divisor 256";

/// Returns the lines that add or delete `count` classes of `htb`, and for each class a filter of
/// `u32` in a table, one of `flower` and one of `fw`; and for each second class a filter of `u32`
/// that is the only one of its preference (`u32` has at most 2,048 tables).
fn lines(part: Part, count: usize) -> Vec<String> {
    let class = |number| match part {
        Part::Add => format!("class add dev d0 parent 1: classid 1:{number:x} htb rate 1mbit"),
        Part::Delete => format!("class del dev d0 parent 1: classid 1:{number:x}"),
    };
    let filter = |number: usize| {
        // The filters lie in the 256 buckets of table 2.
        let (bucket, node) = (number % 256, 1 + number / 256);
        let handle = format!("handle 2:{bucket:x}:{node:x}");
        let address = format!("10.0.{}.{}", number >> 8, number & 255);
        match part {
            Part::Add => format!(
                "filter add dev d0 parent 1: protocol ip pref 1 {handle} u32 ht 2:{bucket:x}: \
                 match ip dst {address} flowid 1:{number:x}"
            ),
            Part::Delete => format!("filter del dev d0 parent 1: pref 1 {handle} u32"),
        }
    };
    let alone = |number: usize| {
        let pref = 100 + number;
        match part {
            Part::Add => format!(
                "filter add dev d0 parent 1: protocol ip pref {pref} u32 match ip tos {} 0xff \
                 flowid 1:{number:x}",
                number & 255
            ),
            Part::Delete => format!("filter del dev d0 parent 1: pref {pref}"),
        }
    };
    let others = |number: usize| {
        let (flower, fw) = ("protocol ip pref 2", "protocol ip pref 3");
        match part {
            Part::Add => [
                format!(
                    "filter add dev d0 parent 1: {flower} handle {number} flower dst_ip \
                     10.1.{}.{} classid 1:{number:x}",
                    number >> 8,
                    number & 255
                ),
                format!("filter add dev d0 parent 1: {fw} handle {number} fw classid 1:{number:x}"),
            ],
            Part::Delete => [
                format!("filter del dev d0 parent 1: {flower} handle {number} flower"),
                format!("filter del dev d0 parent 1: {fw} handle {number} fw"),
            ],
        }
    };
    let numbers = 1..=count;
    let others = numbers.clone().flat_map(others);
    let alone = numbers.clone().step_by(2).map(alone);
    let classes = numbers.clone().map(class);
    let filters = numbers.map(filter);
    match part {
        Part::Add => {
            classes.chain([TABLE.to_owned()]).chain(filters).chain(others).chain(alone).collect()
        }
        Part::Delete => filters.chain(others).chain(alone).chain(classes).collect(),
    }
}

/// Returns the processor time that this process has used, in nanoseconds.
fn used() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let part = |value: i64| u64::try_from(value).expect("no time is negative");
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}

/// Returns the processor time of adding and of deleting `count` classes and filters.
fn measure<C: Carrier>(count: usize) -> [u64; 2] {
    let mut carrier = C::make();
    [Part::Add, Part::Delete].map(|part| {
        let lines = lines(part, count);
        let before = used();
        lines.iter().for_each(|line| carrier.carry_out(line));
        used() - before
    })
}

/// Checks that a long batch needs about as much time as short ones that have as many lines
/// together.
fn grows_with_the_length<C: Carrier>(what: &str) {
    let mut least = [[u64::MAX; 2]; 2];
    for _ in 0..TRIES {
        let short = (0..TIMES).map(|_| measure::<C>(SHORT));
        let short = short.fold([0, 0], |sum, part| [sum[0] + part[0], sum[1] + part[1]]);
        let long = measure::<C>(TIMES * SHORT);
        for (least, had) in least.iter_mut().flatten().zip([short, long].into_iter().flatten()) {
            *least = had.min(*least);
        }
        println!("{what}: add and delete, short {short:?}, long {long:?}");
        let [short, long] = least;
        if (0..2).all(|part| long[part] as f64 <= MOST * short[part] as f64) {
            return;
        }
    }
    panic!("{what}: too much time for long batches: {least:?}");
}

#[test]
fn the_time_of_a_batch_grows_with_its_length() {
    grows_with_the_length::<Setup>("Setup");
    grows_with_the_length::<Tree>("Tree");
    grows_with_the_length::<Host>("Host");
}
