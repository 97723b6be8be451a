//! Bands, each with a qdisc, that are served strictly in order.
//!
//! A packet's band is the class that its priority names (`1:1` is the first band), else the class
//! that the filters name, else the band to which `priomap` assigns the low four bits of its
//! priority.
//!
//! Source: `tc-prio(8)`; behaviour of Linux 7.2 `net/sched/sch_prio.c`.
//! Differs: nothing known.
//! Invariant: a packet leaves only when no band before its own has a packet ready.

use onramp_queue::{DropReason, Packet};

use super::{Backlog, ClassKind, Cx, Dequeue, Kind, PRIOMAP_NUMBERS, Peek, Qdisc, Verdict};
use crate::base::error::Clash;
use crate::base::params::{Default, Param, Unit, Values, look};
use crate::base::show::Out;
use crate::base::{Fault, Handle, Instant};
use crate::filter::{Decision, Filters};
use crate::qdisc::pfifo_child;
use crate::sched::{Child, Classes, Shown};

pub(super) const BANDS_MAX: usize = 16;

pub(super) const PRIO: Kind = Kind {
    id: "prio",
    about: "bands with a qdisc each, in strict order",
    params: &[
        Param::new("bands", Unit::Count, Default::Number(3), "bands")
            .within(2, BANDS_MAX as u64)
            .decimal()
            .reset(),
        Param::new(
            "priomap",
            Unit::Many(16),
            Default::List(&PRIOMAP_NUMBERS),
            "the band of each priority, counted from 0",
        )
        .within(0, BANDS_MAX as u64 - 1)
        .refused(Fault::Usage)
        .reset()
        .single(),
        Param::new("multiqueue", Unit::Words(&["multiqueue"]), Default::Off, "without effect")
            .reset()
            .shown(look::never),
    ],
    check,
    classes: ClassKind::Fixed(|values| u16::try_from(values.number("bands")).expect("at most 16")),
    build: |values| {
        Box::new(Prio {
            choice: choice(values),
            bands: (0..values.number("bands")).map(|_| pfifo_child(values.site)).collect(),
            held: Backlog::default(),
        })
    },
    shown: Shown {
        options: |values, _, out| show_bands(values.number("bands"), &priomap(values), out),
        ..Shown::TABLE
    },
    ..Kind::LEAF
};

/// Checks that each entry of the priority map names a band. If the user gave the wrong entry, `tc`
/// reports the error; if it is a default entry, the kernel does.
fn check(values: &Values<'_>) -> Result<(), Clash> {
    let bands = values.number("bands");
    let map = priomap(values);
    let Some(place) = map.iter().position(|band| u64::from(*band) >= bands) else { return Ok(()) };
    let why =
        format!("there is no band {}: the bands are 0 to {}", map[place], bands.saturating_sub(1));
    let given = values.is_given("priomap") && place < values.list("priomap").len();
    Err(if given { Clash::usage("priomap", why) } else { ("priomap", why).into() })
}

/// Shows the number of bands and the priority map as `tc` does, for `prio` and for `pfifo_fast`.
pub(super) fn show_bands(bands: u64, priomap: &[u8; 16], out: &mut Out) {
    out.uint("bands", bands, format_args!("bands {bands} priomap"));
    for band in priomap {
        out.text(format_args!(" {band}"));
    }
    out.json(|json| {
        json.open_array(Some("priomap"));
        priomap.iter().for_each(|band| json.raw(None, format_args!("{band}")));
        json.close_array();
        json.raw(Some("multiqueue"), format_args!("false"));
    });
}

fn choice(values: &Values<'_>) -> Choice {
    Choice::new(values, values.number("bands"), priomap(values))
}

/// Returns the priority map: the entries that were given, and the default for the others.
fn priomap(values: &Values<'_>) -> [u8; 16] {
    let mut priomap = super::PRIOMAP;
    for (band, given) in priomap.iter_mut().zip(values.list("priomap")) {
        *band = u8::try_from(given).unwrap_or(u8::MAX);
    }
    priomap
}

/// Chooses the band of a packet, in `prio` and in `ets`.
#[derive(Debug)]
pub(super) struct Choice {
    handle: Handle,
    bands: usize,
    priomap: [u8; 16],
    pub(super) filters: Filters,
}

impl Choice {
    pub(super) fn new(values: &Values<'_>, bands: u64, priomap: [u8; 16]) -> Self {
        let bands = usize::try_from(bands).unwrap_or(BANDS_MAX);
        Self { handle: values.site.handle, bands, priomap, filters: Filters::default() }
    }

    /// Returns the number of a packet's band, or `None` if a filter's action drops the packet.
    #[inline]
    pub(super) fn band(&mut self, pkt: &mut Packet, now: Instant) -> Option<usize> {
        let named = Handle::from_priority(pkt.priority);
        let class = if named.major == self.handle.major {
            named
        } else {
            match self.filters.classify(pkt, now) {
                Decision::Class(class) => class,
                Decision::Drop => return None,
                Decision::Unknown => {
                    let priority = if named.major == 0 { usize::from(named.minor) } else { 0 };
                    return Some(usize::from(self.priomap[priority & 15]));
                }
            }
        };
        let band = usize::from(class.minor).wrapping_sub(1);
        Some(if band < self.bands { band } else { usize::from(self.priomap[0]) })
    }
}

#[derive(Debug)]
struct Prio {
    choice: Choice,
    bands: Vec<Child>,
    held: Backlog,
}

impl Qdisc for Prio {
    #[inline]
    fn enqueue(&mut self, mut pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        let Some(band) = self.choice.band(&mut pkt, cx.now) else {
            cx.drop(pkt, DropReason::Filter);
            return Verdict::Dropped;
        };
        self.bands[band].enqueue(pkt, cx, &mut self.held)
    }

    #[inline]
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        let mut wait = Dequeue::Empty;
        for band in &mut self.bands {
            if band.is_idle() {
                continue;
            }
            match band.dequeue(cx, &mut self.held) {
                Dequeue::Ready(pkt) => return Dequeue::Ready(pkt),
                later => wait = wait.or_sooner(later),
            }
        }
        wait
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        let mut wait = Peek::Empty;
        for band in &mut self.bands {
            if band.is_idle() {
                continue;
            }
            match band.peek(cx, &mut self.held) {
                Peek::Ready(len) => return Peek::Ready(len),
                later => wait = wait.or_sooner(later),
            }
        }
        wait
    }

    fn backlog(&self) -> Backlog {
        self.held
    }

    fn change(&mut self, values: &Values<'_>, cx: &mut Cx<'_>) -> bool {
        let filters = std::mem::take(&mut self.choice.filters);
        self.choice = Choice { filters, ..choice(values) };
        let (count, new) = (self.choice.bands, || pfifo_child(values.site));
        super::multiq::resize(&mut self.bands, count, new, &mut self.held, cx);
        true
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        for band in &mut self.bands {
            band.reset(cx, &mut self.held);
        }
    }

    fn classes(&mut self) -> Option<&mut dyn Classes> {
        Some(self)
    }

    fn filters(&mut self, minor: u16) -> Option<&mut Filters> {
        (minor == 0).then_some(&mut self.choice.filters)
    }
}

impl Classes for Prio {
    fn child(&mut self, minor: u16) -> Option<&mut Child> {
        self.bands.get_mut(usize::from(minor).wrapping_sub(1))
    }

    fn recount(&mut self, minor: u16) {
        if let Some(band) = self.bands.get_mut(usize::from(minor).wrapping_sub(1)) {
            band.recount(&mut self.held);
        }
    }
}
