//! How long long batches of `tc` lines take: lines that add and delete htb classes and filters, on
//! the description of a tree (`Setup`), on a tree that is built from a description (`Tree::of`), on
//! a running tree (`Tree::apply`), and on a device of a host, without and with a listener for
//! events. With the word `check`, the example fails if it takes a second or more to add a batch of
//! up to 20,000 classes and as many filters.
//! Run: `cargo run --release -p onramp-host --example batch [NUMBER OF CLASSES OR FILTERS]...
//! [check]`.

use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use onramp_core::{Setup, Tree};
use onramp_host::Host;

/// The numbers of classes or filters, if none are given.
const SIZES: [usize; 4] = [2_000, 5_000, 10_000, 20_000];
/// The largest number that is checked, and what takes too long.
const CHECKED: usize = 20_000;
const TOO_LONG: Duration = Duration::from_secs(1);
const NOW: onramp_core::Instant = onramp_core::Instant(1_000_000_000);
const MTU: u32 = 1_514;

/// A batch: the lines that prepare the tree, those that add, and those that delete again.
struct Batch {
    name: &'static str,
    before: Vec<String>,
    adds: Vec<String>,
    deletes: Vec<String>,
}

impl Batch {
    /// Returns the batches with `count` objects of each sort.
    fn all(count: usize) -> Vec<Self> {
        let one = vec![class("add", 1)];
        let before = || vec!["qdisc add dev d0 root handle 1: htb default 1".to_owned()];
        let table = "filter add dev d0 parent 1: protocol ip pref 1 handle 2: u32 divisor 256";
        let all = |line: &dyn Fn(usize) -> String| (1..=count).map(line).collect::<Vec<_>>();
        let classes = all(&|number| class("add", number));
        let without = all(&|number| class("del", number));
        let filters = |class: &dyn Fn(usize) -> usize| all(&|number| u32(number, class(number)));
        let no_filters = all(&|number| {
            format!("filter del dev d0 parent 1: pref 1 handle {} u32", node(number))
        });
        let with = |lines: &[String]| [before(), vec![table.to_owned()], lines.to_vec()].concat();
        vec![
            Self {
                name: "htb classes",
                before: before(),
                adds: classes.clone(),
                deletes: without.clone(),
            },
            Self {
                name: "u32 filters",
                before: with(&one),
                adds: filters(&|_| 1),
                deletes: no_filters.clone(),
            },
            Self {
                name: "flower filters",
                before: [before(), one.clone()].concat(),
                adds: all(&flower),
                deletes: all(&|number| {
                    format!("filter del dev d0 parent 1: pref 2 handle {number} flower")
                }),
            },
            Self {
                name: "fw filters",
                before: [before(), one].concat(),
                adds: all(&|number| {
                    format!("filter add dev d0 parent 1: pref 3 handle {number} fw classid 1:1")
                }),
                deletes: all(&|number| {
                    format!("filter del dev d0 parent 1: pref 3 handle {number} fw")
                }),
            },
            Self {
                name: "classes and u32 filters",
                before: with(&[]),
                adds: [classes, filters(&|number| number)].concat(),
                deletes: [no_filters, without].concat(),
            },
        ]
    }
}

fn class(verb: &str, number: usize) -> String {
    let options = if verb == "add" { " htb rate 1mbit" } else { "" };
    format!("class {verb} dev d0 parent 1: classid 1:{number:x}{options}")
}

/// Returns the handle of a node, which is in one of the 256 buckets of table 2.
fn node(number: usize) -> String {
    format!("2:{:x}:{:x}", number % 256, 1 + number / 256)
}

fn address(number: usize) -> String {
    format!("10.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255)
}

fn u32(number: usize, class: usize) -> String {
    let (node, bucket, address) = (node(number), number % 256, address(number));
    format!(
        "filter add dev d0 parent 1: protocol ip pref 1 handle {node} \
         u32 ht 2:{bucket:x}: match ip dst {address} flowid 1:{class:x}"
    )
}

fn flower(number: usize) -> String {
    let address = address(number);
    format!(
        "filter add dev d0 parent 1: protocol ip pref 2 handle {number} \
         flower dst_ip {address} classid 1:1"
    )
}

#[expect(clippy::disallowed_methods, reason = "the example measures how long a batch takes")]
fn time<T>(act: impl FnOnce() -> T) -> (T, Duration) {
    let begin = Instant::now();
    (act(), begin.elapsed())
}

fn row(batch: &str, way: &str, count: usize, adds: Duration, deletes: Option<Duration>) {
    let deletes = deletes.map(|time| format!("{:.3}", time.as_secs_f64())).unwrap_or_default();
    println!("{batch:24} {way:12} {count:6} {:9.3} {deletes:>9}", adds.as_secs_f64());
}

/// Carries out lines with `act`, and returns how long that took.
fn carry_out<E: ToString>(
    lines: &[String],
    mut act: impl FnMut(&str) -> Result<(), E>,
) -> Result<Duration, String> {
    let (done, time) = time(|| lines.iter().try_for_each(|line| act(line)));
    done.map(|()| time).map_err(|error| error.to_string())
}

/// Measures a batch in all ways. Returns the longest time that it took to add everything.
fn measure(batch: &Batch, count: usize) -> Result<Duration, String> {
    let Batch { name, before, adds, deletes } = batch;
    let mut setup = Setup::default();
    carry_out(before, |line| setup.apply(line))?;
    let mut tree = Tree::of(&setup, MTU, 0).ok_or("there is no root")?;
    let added = carry_out(adds, |line| setup.apply(line))?;
    let (built, building) = time(|| Tree::of(&setup, MTU, 0));
    drop(built);
    let deleted = carry_out(deletes, |line| setup.apply(line))?;
    row(name, "Setup", count, added, Some(deleted));
    row(name, "Tree::of", count, building, None);
    let mut apply = |line: &str| tree.apply(NOW, line);
    let (applied, deleted) = (carry_out(adds, &mut apply)?, carry_out(deletes, &mut apply)?);
    row(name, "Tree::apply", count, applied, Some(deleted));
    let (alone, heard) = (on_host(batch, count, false)?, on_host(batch, count, true)?);
    Ok(added.max(building).max(applied).max(alone).max(heard))
}

fn exec(host: &mut Host, line: &str) -> Result<(), String> {
    let words: Vec<&str> = line.split(' ').collect();
    let reply = host.exec(&words, Path::new("/"));
    if reply.code == 0 { Ok(()) } else { Err(reply.err) }
}

/// Measures a batch on a device of a host. Returns how long it took to add everything.
fn on_host(batch: &Batch, count: usize, heard: bool) -> Result<Duration, String> {
    let Batch { name, before, adds, deletes } = batch;
    let mut host = Host::new();
    exec(&mut host, "ip link add dev d0 up type dummy")?;
    let tc = |host: &mut Host, line: &str| exec(host, &format!("tc {line}"));
    carry_out(before, |line| tc(&mut host, line))?;
    let (told, events) = channel();
    if heard {
        host.listen(move |event| told.send(event.clone()).is_ok());
    }
    let added = carry_out(adds, |line| tc(&mut host, line))?;
    let deleted = carry_out(deletes, |line| tc(&mut host, line))?;
    let lines = if heard { adds.len() + deletes.len() } else { 0 };
    assert_eq!(events.try_iter().count(), lines, "an event for each line");
    row(name, if heard { "Host, heard" } else { "Host" }, count, added, Some(deleted));
    Ok(added)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (checks, words): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|word| word == "check");
    let mut sizes: Vec<usize> = words.iter().map(|word| word.parse()).collect::<Result<_, _>>()?;
    if sizes.is_empty() {
        sizes = SIZES.to_vec();
    }
    println!("{:24} {:12} {:>6} {:>9} {:>9}", "batch", "way", "number", "add, s", "delete, s");
    for count in sizes {
        for batch in Batch::all(count) {
            let longest = measure(&batch, count)?;
            if !checks.is_empty() && count <= CHECKED && longest >= TOO_LONG {
                return Err(format!("{} {}: {longest:.3?} is too long", count, batch.name).into());
            }
        }
    }
    Ok(())
}
