//! Onramp's local work: what its code takes in one thread whose caches hold everything.
//!
//! The simulated machine charges accesses to memory that threads share, and clocks, by itself. So
//! each part runs twice: by the original crates on this machine, and by the same sources on the
//! simulated machine, without local work. The difference is the local work.

use std::collections::BTreeMap;

use onramp_machine::{Machine, Setup, hook, simulate};

use super::rounds::{NotMeasured, Quantity, Values, losses, now, on};
use super::shape::Shape;
use super::system::{read, short};
use super::table::calibrate_beside;
use crate::machines::Description;
use crate::parameter::{Draw, Parameter};

/// Number of packets that wait in a qdisc: so few that the first-level cache holds them, and so
/// many that it does not.
const BACKLOGS: [u32; 2] = [32, 1_000];
/// Number of sends between two readings of the clock.
const SENDS: u32 = 256;
/// Payload of a packet, and its length with headers, bytes.
const PAYLOAD: usize = 120;
const LEN: u32 = 162;
/// Number of flows among which packets are divided.
const FLOWS: u64 = 8;
/// The most packets that leave a qdisc at once, as in a port.
const BURST: u32 = 64;
/// Time after which a simulation counts as stuck, nanoseconds.
const LIMIT_NS: u64 = 1_000_000_000;

/// A qdisc, and the lines that make it.
struct Subject {
    name: &'static str,
    lines: &'static [&'static str],
    /// The names of the parts (enqueue, dequeue, transmit, completion), with the first backlog and
    /// then with the second one.
    parts: &'static [&'static str; 8],
}

macro_rules! subject {
    ($name:literal, $lines:expr) => {
        Subject {
            name: $name,
            lines: &$lines,
            parts: &[
                concat!("enqueue_", $name, " few"),
                concat!("dequeue_", $name, " few"),
                concat!("transmit ", $name, " few"),
                concat!("completion ", $name, " few"),
                concat!("enqueue_", $name, " many"),
                concat!("dequeue_", $name, " many"),
                concat!("transmit ", $name, " many"),
                concat!("completion ", $name, " many"),
            ],
        }
    };
}

const SUBJECTS: &[Subject] = &[
    subject!("pfifo", ["qdisc add dev any root pfifo limit 10000"]),
    subject!("fq", ["qdisc add dev any root fq flow_limit 1000"]),
    subject!("fq_codel", ["qdisc add dev any root fq_codel"]),
    subject!(
        "htb_fq",
        [
            "qdisc add dev any root handle 1: htb default 1",
            "class add dev any parent 1: classid 1:1 htb rate 400gbit burst 64mb cburst 64mb",
            "qdisc add dev any parent 1:1 fq flow_limit 1000",
        ]
    ),
];

/// The parts as they run with a crate: the original one, or its sources for the simulated machine.
macro_rules! parts {
    ($module:ident, $link:ident, $now:expr) => {
        mod $module {
            use $link::dev::Null;
            use $link::{
                Credits, Device, Flow, Instant, Link, Mode, PacketList, Pool, Sender, Setup, Tree,
            };

            use super::{BURST, FLOWS, LEN, PAYLOAD, SENDS};

            fn now() -> f64 {
                $now
            }

            /// Returns nanoseconds for each packet: to enqueue it, to dequeue it, to transmit it
            /// over a device that does nothing, and to free it and take it back into its pool.
            pub(super) fn qdisc(lines: &[&str], packets: u32) -> [f64; 4] {
                // What a reading of the clock takes, which is part of each time.
                let from = now();
                for _ in 0..100 {
                    std::hint::black_box(now());
                }
                let clock = (now() - from) / 101.0;
                let mut setup = Setup::default();
                for line in lines {
                    setup.apply(line).expect("a line of tc");
                }
                let mut tree = Tree::of(&setup, 1_514, 1).expect("it has a root");
                let mut device = Null::new(1_514);
                let mut pool = Pool::new(Credits { packets, bytes: packets * LEN });
                let mut took = [0.0; 4];
                let mut bursts = 0;
                // The first passes warm the caches.
                let passes = (4_000 / packets).max(3);
                for pass in 0..passes {
                    if pass < 2 {
                        (took, bursts) = ([0.0; 4], 0);
                    }
                    let at = Instant(1_000_000_000 + u64::from(pass) * 10_000_000);
                    let mut list = PacketList::new();
                    for number in 0..packets {
                        let mut packet = pool.take(PAYLOAD).expect("a credit for each packet");
                        packet.len = LEN;
                        let flow = u64::from(number) % FLOWS + 1;
                        packet.flow = flow.wrapping_mul(0x9E37_79B9_7F4A_7C15);
                        packet.enqueued_ns = at.0;
                        list.push_back(packet);
                    }
                    pool.submit(&mut list, at.0);
                    let mut last = now();
                    let mut lap = |part: usize| {
                        let now = now();
                        took[part] += now - last - clock;
                        last = now;
                    };
                    assert_eq!(tree.enqueue_list(at, list), 0, "no packet is dropped");
                    lap(0);
                    let mut done = PacketList::new();
                    loop {
                        let mut burst = PacketList::new();
                        let _ = tree.dequeue_list(at, BURST, &mut burst);
                        lap(1);
                        if burst.is_empty() {
                            break;
                        }
                        bursts += 1;
                        let _ = device.transmit(&mut burst, &mut done, at);
                        lap(2);
                    }
                    assert_eq!(done.len(), packets, "all packets leave");
                    drop(done);
                    assert_eq!(pool.reclaim(|_| ()), packets, "all packets come home");
                    lap(3);
                }
                assert!(bursts > 0, "some passes were measured");
                took.map(|ns| ns / f64::from(packets * (passes - 2)))
            }

            fn link(mode: Mode) -> (Link, Sender, Flow) {
                let device: Box<dyn Device> = Box::new(Null::new(1_514));
                let credits = Credits { packets: 2 * SENDS, bytes: 2 * SENDS * LEN };
                let link = Link::devices([device]).qdisc("pfifo").mode(mode).credits(credits);
                let link = link.manual().build().expect("a link without threads");
                let sender = link.sender();
                let flow = sender.flow(None);
                (link, sender, flow)
            }

            /// Returns nanoseconds for each call of `send` that also becomes the owner and sends
            /// its packet.
            pub(super) fn whole() -> f64 {
                let (_link, mut sender, flow) = link(Mode::Inline);
                let mut send = || {
                    for _ in 0..SENDS {
                        sender.send(&flow, &[0; PAYLOAD]).expect("the link is open");
                    }
                };
                (0..10).for_each(|_| send());
                let from = now();
                (0..4).for_each(|_| send());
                (now() - from) / f64::from(4 * SENDS)
            }

            /// Returns nanoseconds for each call that only stages its packet.
            pub(super) fn staged() -> f64 {
                let (link, mut sender, flow) = link(Mode::Dedicated);
                let mut took = 0.0;
                let mut sent = 0;
                for pass in 0..10 {
                    // The first packet sets a timer.
                    sender.try_send(&flow, &[0; PAYLOAD]).expect("there is room");
                    let mut count = 0;
                    let from = now();
                    while count < SENDS && sender.try_send(&flow, &[0; PAYLOAD]).is_ok() {
                        count += 1;
                    }
                    if pass >= 2 {
                        took += now() - from;
                        sent += count;
                    }
                    // The owner's work is not measured here.
                    while link.stats().held > 0 {
                        let _ = link.run();
                    }
                    sender.flush(std::time::Duration::ZERO);
                }
                took / f64::from(sent)
            }
        }
    };
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds since boot fit into 53 bits")]
fn real_now() -> f64 {
    now() as f64
}

#[expect(clippy::cast_precision_loss, reason = "simulations are short")]
fn simulated_now() -> f64 {
    hook::time_ps().unwrap_or_default() as f64 / 1_000.0
}

parts!(real, real_link, super::real_now());
parts!(simulated, onramp, super::simulated_now());

/// Runs `f` on a simulated machine.
fn simulated_on<R: 'static>(
    machine: &Machine,
    f: impl FnOnce() -> R + 'static,
) -> Result<R, NotMeasured> {
    let setup = Setup { machine: *machine, limit_ns: LIMIT_NS, measure_ns: 0..0 };
    let done = simulate(&setup, f).map_err(|error| NotMeasured::Simulation(error.to_string()))?;
    Ok(done.0)
}

/// Onramp's local work: the name and the value of each part.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalWork(pub Vec<(String, Parameter)>);

impl LocalWork {
    /// Returns the text of a file of `data/software`.
    ///
    /// # Panics
    ///
    /// Never: all parameters can be written.
    #[must_use]
    pub fn text(&self) -> String {
        let parameters: BTreeMap<_, _> = self.0.iter().map(|(name, of)| (name, of)).collect();
        let text = toml::to_string(&parameters).expect("words and numbers");
        format!(
            "# Onramp's own local work, as the simulator charges it besides the accesses to shared \
             memory.\n# Written by `cargo run --release -p onramp-multicore --example local_work` \
             on the\n# machine that the sources name.\n\n{text}"
        )
    }
}

/// Measures this machine as [`calibrate`](super::calibrate) does, and Onramp's local work on it.
/// The times are those of a build with optimisation only.
///
/// # Errors
///
/// [`NotMeasured`] says what keeps the machine or the work from being measured.
pub fn local_work(progress: &mut dyn FnMut(&str)) -> Result<(Description, LocalWork), NotMeasured> {
    let shape = Shape::ask(&read);
    let cpu = shape.some_cpus(1).last().copied().unwrap_or(0);
    let on_cpu = move |f: &(dyn Fn() -> Vec<f64> + Sync)| {
        on(cpu, || {
            let before = losses()?;
            let values = f();
            Ok((losses()? == before).then_some(values))
        })
    };
    let mut quantities = Vec::new();
    for Subject { lines, parts, .. } in SUBJECTS {
        let passes =
            move || BACKLOGS.iter().flat_map(|packets| real::qdisc(lines, *packets)).collect();
        quantities.push(Quantity::new(*parts, move |_| on_cpu(&passes)));
    }
    quantities.push(Quantity::new(&["whole"], move |_| on_cpu(&|| vec![real::whole()])));
    quantities.push(Quantity::new(&["staged"], move |_| on_cpu(&|| vec![real::staged()])));
    let (description, values) = calibrate_beside(quantities, progress)?;
    progress("asks what the simulated machine charges");
    let machines = [false, true].map(|high| end(&description, high));
    let source = format!("measured by `calibrate work` on {}", shape.processor);
    let work = Parts { values, machines, source }.all()?;
    Ok((description, work))
}

/// The machine with the low or the high ends of all intervals that matter to one thread.
fn end(description: &Description, high: bool) -> Machine {
    let mut this = description.clone();
    let Description { l1, l2, llc, memory, atomic, fence, clock, .. } = &mut this;
    for parameter in [l1, l2, llc, memory, atomic, fence, clock] {
        let end = if high { parameter.high } else { parameter.low };
        (parameter.low, parameter.high) = (end, end);
    }
    this.draw(&mut Draw::new(0))
}

struct Parts {
    values: Values,
    /// The machine with the low and the high ends of its costs: when its clock is fast, the low
    /// ends of all intervals belong together.
    machines: [Machine; 2],
    source: String,
}

impl Parts {
    fn all(&self) -> Result<LocalWork, NotMeasured> {
        let mut work = Vec::new();
        let mut below = [0.0; 2];
        for subject in SUBJECTS {
            let lines = subject.lines;
            let charged =
                self.charged(move || BACKLOGS.map(|packets| simulated::qdisc(lines, packets)))?;
            let charged = |backlog: usize, part: usize| {
                [charged[0][backlog][part], charged[1][backlog][part]]
            };
            let is_plain = subject.name == "pfifo";
            let kinds = [
                (format!("enqueue_{}", subject.name), "To enqueue a packet", true),
                (format!("dequeue_{}", subject.name), "To dequeue a packet", true),
                ("transmit".into(), "To give a packet to a Null device", is_plain),
                ("completion".into(), "To free a packet and take it back into its pool", is_plain),
            ];
            for (part, (name, what, counts)) in kinds.into_iter().enumerate() {
                if !counts {
                    continue;
                }
                let few = self.local(subject.parts[part], charged(0, part))?;
                let many = self.local(subject.parts[part + 4], charged(1, part))?;
                let ends = [few[0].min(many[0]), few[1].max(many[1])];
                let note = format!(
                    "{what} ({PAYLOAD} bytes, {FLOWS} flows, bursts of {BURST}): the lower end \
                     with 32 packets waiting, which the first-level cache holds, the upper end \
                     with 1,000. Less {} and {} ns, which the simulated machine charges by itself.",
                    short(charged(0, part)[0]),
                    short(charged(1, part)[1])
                );
                if is_plain {
                    below = [0, 1].map(|n| below[n] + few[n]);
                }
                work.push((name, self.parameter(ends, note)));
            }
        }
        let whole_charged = self.charged(simulated::whole)?;
        let staged_charged = self.charged(simulated::staged)?;
        let staged = self.local("staged", staged_charged)?;
        let whole = self.local("whole", whole_charged)?;
        let whole_ends = self.values.ends("whole").unwrap_or_default();
        let note = format!(
            "One call that stages 120 bytes in a link with one port, without the work of an owner. \
             Less {} to {} ns, which the simulated machine charges by itself.",
            short(staged_charged[0]),
            short(staged_charged[1])
        );
        work.push(("send".into(), self.parameter(staged, note)));
        let rest = [0, 1].map(|n| whole[n] - staged[n] - below[n]);
        let note = format!(
            "What a call takes that also becomes the owner and sends its packet, beyond `send`, \
             `enqueue_pfifo`, `dequeue_pfifo`, `transmit` and `completion`. The whole call takes \
             {} to {} ns, of which the simulated machine charges {} to {} by itself, and {} to {} \
             are left. Less than nothing counts as nothing: the processor does at the same time \
             what the simulated machine charges one after another.",
            short(whole_ends[0]),
            short(whole_ends[1]),
            short(whole_charged[0]),
            short(whole_charged[1]),
            short(rest[0]),
            short(rest[1])
        );
        work.push(("owner_run".into(), self.parameter(rest, note)));
        work.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(LocalWork(work))
    }

    /// What the simulated machine charges for `f`, with the low and with the high costs.
    fn charged<R: Send + 'static>(
        &self,
        f: impl Fn() -> R + Copy + 'static,
    ) -> Result<[R; 2], NotMeasured> {
        let [low, high] = self.machines.map(|machine| simulated_on(&machine, f));
        Ok([low?, high?])
    }

    /// The ends of what was measured, less what is charged.
    fn local(&self, name: &'static str, charged: [f64; 2]) -> Result<[f64; 2], NotMeasured> {
        let ends = self.values.ends(name).ok_or(NotMeasured::Crowded(name))?;
        Ok([ends[0] - charged[0], ends[1] - charged[1]])
    }

    fn parameter(&self, ends: [f64; 2], note: String) -> Parameter {
        let [low, high] = ends.map(|end| short(end.max(0.0)));
        let (low, high) = (low.min(high), high.max(low));
        let (unit, how, source) = (Some("ns".into()), "measured".into(), self.source.clone());
        Parameter { low, high, unit, source, how, note }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The file of this crate has the parts that this module measures.
    #[test]
    fn the_file_has_all_parts() {
        let text = include_str!("../../data/software/onramp.toml");
        let file: BTreeMap<String, Parameter> = toml::from_str(text).expect("parameters");
        let mut names: Vec<String> = ["completion", "owner_run", "send", "transmit"]
            .map(String::from)
            .into_iter()
            .chain(SUBJECTS.iter().flat_map(|subject| {
                ["enqueue", "dequeue"].map(|part| format!("{part}_{}", subject.name))
            }))
            .collect();
        names.sort();
        assert_eq!(file.keys().cloned().collect::<Vec<_>>(), names);
        for (name, parameter) in &file {
            let Parameter { low, high, unit, how, .. } = parameter;
            assert!(low <= high && *high < 1_000.0, "{name}: {parameter:?}");
            assert_eq!((unit.as_deref(), &**how), (Some("ns"), "measured"), "{name}");
        }
        let work = LocalWork(file.into_iter().collect());
        assert_eq!(work.text(), text, "as the program writes it");
    }

    #[test]
    fn all_parts_run_on_both_machines() {
        let machine = Description::named("desktop-intel").expect("described");
        let machine = machine.draw(&mut Draw::new(0));
        for Subject { name, lines, .. } in SUBJECTS {
            for packets in BACKLOGS {
                // The clock's own time is subtracted, so a busy machine may get less than nothing.
                let real = real::qdisc(lines, packets);
                assert!(real.iter().all(|ns| ns.is_finite()), "{name}: {real:?}");
                let charged = simulated_on(&machine, move || simulated::qdisc(lines, packets));
                let charged = charged.expect("simulated");
                assert!(charged.iter().all(|ns| *ns >= 0.0), "{name}: {charged:?}");
            }
        }
        assert!(real::whole() >= 0.0 && real::staged() >= 0.0);
        let charged = [simulated::whole as fn() -> f64, simulated::staged];
        let charged = charged.map(|f| simulated_on(&machine, f).expect("simulated"));
        assert!(charged[0] > charged[1], "{charged:?}");
    }
}
