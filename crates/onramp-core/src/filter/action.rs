//! Actions: what happens to a packet that a filter has matched.
//!
//! Source: `tc-actions(8)`, `tc-skbedit(8)`, `tc-police(8)`; behaviour of Linux 7.2
//! `net/sched/act_api.c`, `act_gact.c`, `act_skbedit.c`.
//! Differs: filters do not share actions: an `index` belongs to one action only; all actions with
//! `random netrand` start from the same seed.
//! Invariant: for each packet, the actions of a filter end after at most 32 jumps.

use onramp_queue::Packet;

use super::Look;
use super::control::Control;
use super::police::Police;
use super::reader::{Reader, count, masked};
use crate::base::error::Errno;
use crate::base::rng::Rng;
use crate::base::{ConfigError, Counters, Instant, segments};

mod show;

pub(super) use self::show::{class_name, show_all, show_bare, show_bare_stats};

/// The largest number of actions that a filter may have, and of jumps between its actions for one
/// packet.
const ACTIONS_MAX: usize = 32;

/// An action of a filter, its number among the actions of its kind, and its counters.
#[derive(Clone, Debug)]
pub(super) struct Action {
    what: What,
    /// The number (`index`) of this action. 0 means that a number is still to be assigned.
    pub(super) index: u32,
    /// Before which word of its line the number can be written. `None`: the line gives it.
    pub(super) number_at: Option<usize>,
    pub(super) counters: Counters,
    /// Hexadecimal digits that the user stores with the action. They are only shown.
    cookie: String,
    /// Whether the user gave the flag `no_percpu`, which is only shown and changes nothing else.
    no_percpu: bool,
    /// Which hardware counters the user asked for (`hw_stats`). Only shown, because no hardware
    /// runs the action.
    hw_stats: Option<&'static str>,
}

#[derive(Clone, Debug)]
enum What {
    Gact { control: Control, random: Option<Random> },
    Police(Box<Police>),
    Edit(Edit),
}

/// Number of kinds of actions.
pub(super) const KINDS: usize = 3;

/// Replaces the decision of a `gact` action for one in `every` packets, chosen at random or by
/// counting.
#[derive(Clone, Debug)]
struct Random {
    chance: Option<Rng>,
    control: Control,
    every: u32,
    seen: u32,
}

/// The action `skbedit`: changes of a packet's metadata.
#[derive(Clone, Debug)]
struct Edit {
    priority: Option<u32>,
    /// The value and the mask with which the packet's mark is changed: only bits in the mask
    /// change.
    mark: Option<(u32, u32)>,
    queue: Option<u16>,
    /// Whether the packet's DSCP is written to its priority.
    inherit: bool,
    control: Control,
}

impl Random {
    fn draw(&mut self, control: Control) -> Control {
        let hit = match &mut self.chance {
            Some(rng) => rng.below(self.every) == 0,
            None => {
                self.seen = self.seen.wrapping_add(1);
                self.seen.is_multiple_of(self.every)
            }
        };
        if hit { self.control } else { control }
    }
}

impl Edit {
    fn run(&self, look: &mut Look, pkt: &mut Packet) -> Control {
        if let Some(priority) = self.priority {
            pkt.priority = priority;
        }
        if self.inherit {
            let keys = look.at(pkt).keys();
            if keys.addresses.is_some() {
                pkt.priority = u32::from(keys.tos >> 2);
            }
        }
        if let Some(queue) = self.queue {
            pkt.set_queue(queue);
        }
        if let Some((mark, mask)) = self.mark {
            pkt.mark = (pkt.mark & !mask) | (mark & mask);
        }
        self.control
    }
}

impl Action {
    fn new(what: What) -> Self {
        let counters = Counters::default();
        Self {
            what,
            index: 0,
            number_at: None,
            counters,
            cookie: String::new(),
            no_percpu: false,
            hw_stats: None,
        }
    }

    /// Returns the number of this action's kind. Actions of each kind are numbered separately.
    pub(super) fn kind(&self) -> usize {
        match self.what {
            What::Gact { .. } => 0,
            What::Police(_) => 1,
            What::Edit(_) => 2,
        }
    }

    #[inline]
    fn run(&mut self, look: &mut Look, pkt: &mut Packet, now: Instant) -> Control {
        self.counters.packets += u64::from(segments::count(pkt));
        let len = look.way.len(pkt);
        self.counters.bytes += u64::from(len);
        let control = match &mut self.what {
            What::Gact { control, random: None } => *control,
            What::Gact { control, random: Some(random) } => random.draw(*control),
            What::Police(police) => {
                return police.run(segments::longest(pkt), len, now, &mut self.counters);
            }
            // As in Linux, packets that `skbedit` drops are not included in the action's counter of
            // drops.
            What::Edit(edit) => return edit.run(look, pkt),
        };
        self.counters.drops += u64::from(control == Control::Drop);
        control
    }
}

/// Runs the actions of a filter that has matched, and returns what is to be done with the packet.
pub(super) fn run(
    actions: &mut [Action],
    look: &mut Look,
    pkt: &mut Packet,
    now: Instant,
) -> Control {
    let (mut at, mut jumps) = (0, 0);
    while let Some(action) = actions.get_mut(at) {
        match action.run(look, pkt, now) {
            Control::Pipe => at += 1,
            Control::Jump(to) => {
                jumps += 1;
                at = to as usize;
                if to == 0 || jumps == ACTIONS_MAX {
                    return Control::Ok;
                }
            }
            control => return control,
        }
    }
    Control::Ok
}

/// Reads the word `action` and the actions after it. Returns false if the next word is not
/// `action`.
pub(super) fn read(words: &mut Reader<'_>, actions: &mut Vec<Action>) -> Result<bool, ConfigError> {
    if !words.takes("action") {
        return Ok(false);
    }
    loop {
        let word = words.peek();
        words.next();
        let action = match word {
            Some("police") => read_police(words)?,
            Some("skbedit") => read_edit(words)?,
            Some("gact") => {
                // `gact action drop` and `gact drop` mean the same.
                words.take("action");
                read_gact(words)?
            }
            None => return Err(words.wrong("action", "", EXPECTED).argument()),
            Some(word) if ABSENT.contains(&word) => {
                let error = words.wrong("action", word, format!("not supported; {EXPECTED}"));
                return Err(error.kernel(Errno::NoEntry, "Failed to load TC action module"));
            }
            Some(_) => {
                words.back();
                read_gact(words)?
            }
        };
        actions.push(action);
        if actions.len() > ACTIONS_MAX {
            let why = format!("a filter has at most {ACTIONS_MAX} actions");
            return Err(words.wrong("action", "", why));
        }
        if !words.takes("action") && words.peek().is_none_or(|word| Control::of(word).is_none()) {
            return Ok(true);
        }
    }
}

/// Reads the words of a policer, after the word `police`.
pub(super) fn read_police(words: &mut Reader<'_>) -> Result<Action, ConfigError> {
    let mut action = Action::new(What::Gact { control: Control::Ok, random: None });
    let at = words.position();
    let police = Police::read(words, &mut |words| action.read_own(words))?;
    action.number_at = (action.index == 0).then_some(at);
    action.what = What::Police(Box::new(police));
    Ok(action)
}

const HW_STATS: [&str; 4] = ["any", "immediate", "delayed", "disabled"];

impl Action {
    /// Reads one option that every kind of action may have. Returns false if the next word is no
    /// such option.
    fn read_own(&mut self, words: &mut Reader<'_>) -> Result<bool, ConfigError> {
        match words.peek() {
            Some("index") => {
                words.next();
                self.index = words.number("index", u32::MAX)?;
            }
            Some("cookie") => {
                words.next();
                let long = words.peek().is_some_and(|word| word.len() > 32);
                let read = |word: &str| {
                    let hex = word.bytes().all(|digit| digit.is_ascii_hexdigit());
                    let fits = (1..=16).contains(&(word.len() / 2)) && word.len().is_multiple_of(2);
                    (hex && fits).then(|| word.to_ascii_lowercase())
                };
                let expected = "1 to 16 bytes, two hexadecimal digits each";
                let read = words.value("cookie", expected, read);
                self.cookie = read.map_err(|error| if long { error.argument() } else { error })?;
            }
            Some("no_percpu") => {
                words.next();
                self.no_percpu = true;
            }
            Some("hw_stats") => {
                words.next();
                let read = |word: &str| HW_STATS.iter().find(|name| **name == word).copied();
                self.hw_stats = Some(words.value("hw_stats", &HW_STATS.join(", "), read)?);
            }
            Some(key @ ("skip_hw" | "skip_sw")) => {
                let said = "Mismatch between action and filter offload flags";
                let why = "it is an option of the filter: give it before the action";
                return Err(words.wrong(key, "", why).kernel(Errno::Invalid, said));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads all following options that every kind of action may have.
    fn read_end(mut self, words: &mut Reader<'_>) -> Result<Self, ConfigError> {
        let at = words.position();
        while self.read_own(words)? {}
        self.number_at = (self.index == 0).then_some(at);
        Ok(self)
    }
}

/// Actions that Linux has and Onramp does not.
const ABSENT: &[&str] = &[
    "bpf",
    "connmark",
    "csum",
    "ct",
    "ctinfo",
    "gate",
    "ife",
    "ipt",
    "mirred",
    "mpls",
    "nat",
    "pedit",
    "sample",
    "simple",
    "skbmod",
    "tunnel_key",
    "vlan",
    "xt",
];

const EXPECTED: &str = "expected an action: ok, pass, drop, shot, pipe, reclassify, continue, \
                        goto chain N, jump N, police, skbedit";

fn read_gact(words: &mut Reader<'_>) -> Result<Action, ConfigError> {
    let missing = |words: &Reader<'_>| {
        words.wrong("action", words.peek().unwrap_or_default(), EXPECTED).argument()
    };
    let control = match (Control::read(words)?, words.peek()) {
        (Some(control), _) => control,
        // An action that is given only by its `index` lets packets pass.
        (None, Some("index")) => Control::Ok,
        (None, Some("trap")) => {
            let why = "no program here can take trapped packets; use drop";
            return Err(words.wrong("action", "trap", why).kernel(Errno::NotSupported, ""));
        }
        (None, _) => return Err(missing(words)),
    };
    let mut random = None;
    if words.take("random") {
        let chance = words.value("random", "netrand or determ", |word| match word {
            "netrand" => Some(Some(Rng::new(0))),
            "determ" => Some(None),
            _ => None,
        })?;
        let control = Control::read(words)?.ok_or_else(|| missing(words))?;
        let every = words.number("random", 10_000)?.max(1);
        if matches!(control, Control::Goto(_)) {
            let said = "goto chain not allowed on fallback";
            let why = "expected another action than goto chain";
            return Err(words.wrong("random", "goto", why).kernel(Errno::Invalid, said));
        }
        random = Some(Random { chance, control, every, seen: 0 });
    }
    Action::new(What::Gact { control, random }).read_end(words)
}

const EDITS: &str = "expected priority, mark, queue_mapping or inheritdsfield";

fn read_edit(words: &mut Reader<'_>) -> Result<Action, ConfigError> {
    let mut edit =
        Edit { priority: None, mark: None, queue: None, inherit: false, control: Control::Pipe };
    let mut any = false;
    while let Some(word) = words.peek() {
        words.next();
        match word {
            "priority" => {
                let class = words.class("priority")?;
                edit.priority = Some(u32::from(class.major) << 16 | u32::from(class.minor));
            }
            "mark" => {
                let read = |word: &'_ str| masked(word, u32::MAX, |word, _| count(word, u32::MAX));
                edit.mark = Some(words.value("mark", "MARK or MARK/MASK", read)?);
            }
            "queue_mapping" => {
                edit.queue = u16::try_from(words.number("queue_mapping", 0xffff)?).ok();
            }
            "inheritdsfield" => edit.inherit = true,
            "ptype" => {
                let why = "packets have no type in Onramp: leave it out";
                return Err(words.wrong("ptype", "", why).kernel(Errno::NotSupported, ""));
            }
            _ => {
                words.back();
                break;
            }
        }
        any = true;
    }
    if !any {
        let word = words.peek();
        let error = words.wrong("skbedit", word.unwrap_or_default(), EDITS);
        return Err(if word.is_none() { error.argument() } else { error });
    }
    if let Some(control) = Control::read(words)? {
        edit.control = control;
    }
    Action::new(What::Edit(edit)).read_end(words)
}
