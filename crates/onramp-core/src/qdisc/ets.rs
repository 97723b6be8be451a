//! Bands, each with a qdisc. Some bands are strict: they are served in order, before the others.
//! The other bands are served in turn, a quantum of bytes each.
//!
//! The band of a packet is chosen as in `prio`.
//!
//! Source: IEEE 802.1Qaz, "Enhanced Transmission Selection"; `tc-ets(8)`; behaviour of Linux 7.2
//! `net/sched/sch_ets.c`.
//! Differs: as in `drr`, if a band that is asked for its next packet drops all packets that it
//! holds, the next band is asked; Linux sends nothing until something else happens.
//! Invariant: a packet leaves only when no strict band before its own band has a packet ready;
//! among the other bands that always hold packets, each sends its quantum per round, as in `drr`.

use onramp_queue::{DropReason, Packet};

use super::prio::{BANDS_MAX, Choice};
use super::rounds::{Rounds, Turn, bounded};
use super::{
    AddedQuirks, Backlog, ClassKind, ClassOption, Cx, Dequeue, Kind, Peek, Qdisc, Quirks, Verdict,
    peek_by_dequeue, shown,
};
use crate::base::params::{Default, Param, Unit, Value, Values};
use crate::base::show::Out;
use crate::base::{Clash, Errno, Extra, Fault};
use crate::filter::Filters;
use crate::qdisc::pfifo_child;
use crate::sched::{Child, Classes, Shown};

const MAX: u64 = BANDS_MAX as u64;

/// Defines a parameter whose wrong values `tc` refuses before the kernel sees them. A change
/// command that does not give this parameter resets the parameter.
const fn param(key: &'static str, unit: Unit, help: &'static str) -> Param {
    Param::new(key, unit, Default::Off, help).refused(Fault::Usage).reset().single()
}

pub(super) const ETS: Kind = Kind {
    id: "ets",
    about: "bands with a qdisc each: some strictly in order, the others in turn",
    params: &[
        param("bands", Unit::Count, "number of bands; default: strict bands plus quanta")
            .within(1, MAX)
            .decimal()
            .zero_is_unsaid(),
        param("strict", Unit::Count, "number of strict bands, which are the first ones")
            .within(0, MAX)
            .decimal()
            .zero_is_unsaid(),
        param(
            "quanta",
            Unit::Many(QUANTA_MAX),
            "bytes each other band sends in a round, at least 256; default: one packet",
        )
        .at_least(1),
        param(
            "priomap",
            Unit::Many(16),
            "the band of each priority, counted from 0; default: the last band",
        )
        .within(0, MAX - 1),
    ],
    check,
    classes: ClassKind::Fixed(|values| u16::try_from(bands(values)).expect("at most 16")),
    build: |values| Box::new(Ets::new(values)),
    shown: Shown {
        options: show,
        class: |_, extra, out| {
            if let Some(quantum) = extra.find("quantum") {
                shown::number(out, "quantum", quantum.unsigned_abs());
            }
        },
        ..Shown::TABLE
    },
    quirks: Quirks {
        settle: |values, options| {
            let quanta = quanta(values);
            options.set("quanta", Some(Value::List(quanta)).filter(|_| others(values) > 0));
        },
        classes_at_root: true,
        class_option: Some(ClassOption {
            params: &[Param::new("quantum", Unit::Count, Default::Off, "bytes of a round")
                .at_least(1)
                .refused(Fault::Usage)],
            missing: "ETS options are required for this operation",
            no_class: "Fine-grained class addition and removal is not supported",
            set: set_quantum,
        }),
        added: AddedQuirks { filters_at_class: "ETS classid must be zero", ..AddedQuirks::NONE },
        ..Quirks::NONE
    },
    ..Kind::LEAF
};

/// Returns the name and the new value of the option `quanta`, in which class `minor` now has a
/// quantum of `quantum` bytes.
fn set_quantum(
    values: &Values<'_>,
    minor: u16,
    quantum: u64,
) -> Result<(&'static str, Value), Clash> {
    let strict = usize::try_from(values.number("strict")).ok();
    let place = strict.and_then(|strict| usize::from(minor - 1).checked_sub(strict));
    let Some(place) = place else {
        let said = "Strict bands do not have a configurable quantum";
        return Err(Clash::from(("", "the band is strict, so it has no quantum"))
            .said(Errno::Invalid, said));
    };
    let mut quanta = values.list("quanta");
    quanta.resize(quanta.len().max(place + 1), u64::from(values.site.mtu).max(1));
    quanta[place] = quantum;
    Ok(("quanta", Value::List(quanta)))
}

/// The greatest number of quanta that the parser accepts in a command. A later check, as in the
/// kernel, refuses quanta for more than 16 bands.
const QUANTA_MAX: usize = 64;

fn bands(values: &Values<'_>) -> u64 {
    let named = values.number("strict") + values.list("quanta").len() as u64;
    values.number("bands").max(named).max(1)
}

/// Returns the number of bands that are not strict.
fn others(values: &Values<'_>) -> u64 {
    bands(values) - values.number("strict")
}

/// Returns the quanta in bytes of the bands that are not strict.
fn quanta(values: &Values<'_>) -> Vec<u64> {
    let packet = std::iter::repeat(values.site.mtu.into());
    let quanta = values.list("quanta").into_iter().chain(packet);
    (0..others(values)).zip(quanta).map(|(_, quantum)| bounded(quantum)).collect()
}

/// Returns the number of the band for each of the 16 priorities.
fn priomap(values: &Values<'_>) -> [u64; 16] {
    let mut priomap = [bands(values) - 1; 16];
    for (band, given) in priomap.iter_mut().zip(values.list("priomap")) {
        *band = given;
    }
    priomap
}

fn show(values: &Values<'_>, _: &Extra, out: &mut Out) {
    let (strict, quanta) = (values.number("strict"), quanta(values));
    shown::number(out, "bands", bands(values));
    if strict > 0 {
        shown::number(out, "strict", strict);
    }
    if !quanta.is_empty() {
        shown::list(out, "quanta", &quanta);
    }
    shown::list(out, "priomap", &priomap(values));
}

fn check(values: &Values<'_>) -> Result<(), Clash> {
    let (strict, quanta) = (values.number("strict"), values.list("quanta").len() as u64);
    let given = ["bands", "strict", "quanta"].iter().any(|key| values.is_given(key));
    if !given {
        let why = "expected bands, strict or quanta, which set the number of bands";
        return Err(Clash::usage("bands", why));
    }
    if values.is_given("bands") && strict + quanta > values.number("bands") {
        let why = format!("strict and quanta need {} bands, of at most {MAX}", strict + quanta);
        return Err(Clash::usage("bands", why));
    }
    let bands = bands(values);
    if let Some(band) = values.list("priomap").into_iter().find(|band| *band >= bands) {
        let why = format!("there is no band {band}: the bands are 0 to {}", bands - 1);
        return Err(Clash::usage("priomap", why));
    }
    if bands > MAX {
        let why = format!("strict and quanta need {bands} bands: expected at most {MAX}");
        let clash = Clash::from(("strict", why));
        return Err(clash.said(Errno::Invalid, "sch_ets: Invalid number of bands"));
    }
    Ok(())
}

#[derive(Debug)]
struct Ets {
    choice: Choice,
    /// Number of strict bands, which come before the others.
    strict: usize,
    bands: Vec<Turn>,
    /// The rounds in which the bands that are not strict send their quanta.
    rounds: Rounds,
    /// Packets and bytes that the bands hold.
    held: Backlog,
    peeked: Option<Packet>,
}

/// How the bands are to be served, according to the parameters.
struct NewBands {
    strict: usize,
    /// The quantum of each band in bytes; 0 for strict bands.
    quanta: Vec<u64>,
}

impl NewBands {
    fn new(values: &Values<'_>) -> Self {
        let strict = usize::try_from(values.number("strict")).unwrap_or(BANDS_MAX);
        let quanta = std::iter::repeat_n(0, strict).chain(quanta(values)).collect();
        Self { strict, quanta }
    }
}

fn choice(values: &Values<'_>) -> Choice {
    let priomap = priomap(values).map(|band| u8::try_from(band).expect("a band below 16"));
    Choice::new(values, bands(values), priomap)
}

impl Ets {
    fn new(values: &Values<'_>) -> Self {
        let NewBands { strict, quanta } = NewBands::new(values);
        let band = |quantum| Turn::new(pfifo_child(values.site), quantum);
        let bands = quanta.into_iter().map(band).collect();
        let choice = choice(values);
        Self {
            choice,
            strict,
            bands,
            rounds: Rounds::default(),
            held: Backlog::default(),
            peeked: None,
        }
    }

    /// If the band `band` is not strict, adds the band to the round robin or removes it, according
    /// to whether the band holds packets.
    fn update_active(&mut self, band: usize) {
        if band >= self.strict {
            self.rounds.update_active(band, &mut self.bands[band]);
        }
    }
}

impl Qdisc for Ets {
    #[inline]
    fn enqueue(&mut self, mut pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        let Some(band) = self.choice.band(&mut pkt, cx.now) else {
            cx.drop(pkt, DropReason::Filter);
            return Verdict::Dropped;
        };
        let verdict = self.bands[band].child.enqueue(pkt, cx, &mut self.held);
        self.update_active(band);
        verdict
    }

    #[inline]
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        if let Some(pkt) = self.peeked.take() {
            return Dequeue::Ready(pkt);
        }
        let mut wait = Dequeue::Empty;
        for band in &mut self.bands[..self.strict] {
            if band.child.is_idle() {
                continue;
            }
            match band.child.dequeue(cx, &mut self.held) {
                Dequeue::Ready(pkt) => return Dequeue::Ready(pkt),
                later => wait = wait.or_sooner(later),
            }
        }
        match self.rounds.dequeue(&mut self.bands, cx, &mut self.held) {
            Dequeue::Ready(pkt) => Dequeue::Ready(pkt),
            later => wait.or_sooner(later),
        }
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        peek_by_dequeue(self, |qdisc| &mut qdisc.peeked, cx)
    }

    fn backlog(&self) -> Backlog {
        let mut held = self.held;
        self.peeked.iter().for_each(|pkt| held.add(pkt));
        held
    }

    fn change(&mut self, values: &Values<'_>, cx: &mut Cx<'_>) -> bool {
        let NewBands { strict, quanta } = NewBands::new(values);
        for band in quanta.len()..self.bands.len() {
            self.bands[band].child.reset(cx, &mut self.held);
            self.update_active(band);
        }
        self.bands.truncate(quanta.len());
        let new = quanta.iter().skip(self.bands.len());
        self.bands.extend(new.map(|quantum| Turn::new(pfifo_child(values.site), *quantum)));
        self.strict = strict;
        for (band, quantum) in quanta.into_iter().enumerate() {
            let turn = &mut self.bands[band];
            turn.quantum = bounded(quantum);
            if band < strict {
                self.rounds.leave(band, turn);
            } else {
                self.rounds.update_active(band, turn);
            }
        }
        let before = std::mem::replace(&mut self.choice, choice(values));
        self.choice.filters = before.filters;
        true
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        cx.purge_one(&mut self.peeked);
        for band in 0..self.bands.len() {
            self.bands[band].child.reset(cx, &mut self.held);
            self.update_active(band);
        }
    }

    fn classes(&mut self) -> Option<&mut dyn Classes> {
        Some(self)
    }

    fn filters(&mut self, minor: u16) -> Option<&mut Filters> {
        (minor == 0).then_some(&mut self.choice.filters)
    }
}

impl Classes for Ets {
    fn child(&mut self, minor: u16) -> Option<&mut Child> {
        let band = self.bands.get_mut(usize::from(minor).wrapping_sub(1));
        band.map(|band| &mut band.child)
    }

    fn stats(&self, minor: u16, out: &mut dyn FnMut(&'static str, i64)) {
        let band = usize::from(minor).wrapping_sub(1);
        if let Some(turn) = self.bands.get(band).filter(|_| band >= self.strict) {
            out("quantum", i64::try_from(turn.quantum).unwrap_or(i64::MAX));
        }
    }

    fn recount(&mut self, minor: u16) {
        let band = usize::from(minor).wrapping_sub(1);
        if let Some(turn) = self.bands.get_mut(band) {
            turn.child.recount(&mut self.held);
            self.update_active(band);
        }
    }
}
