//! Actions: what happens to a packet that a filter has matched.
//!
//! Source: `tc-actions(8)`, `tc-skbedit(8)`, `tc-police(8)`; behaviour of Linux 7.2
//! `net/sched/act_api.c`, `act_gact.c`, `act_skbedit.c`.
//! Differs: actions are not shared between filters (`index`); chance has no seed of its own.
//! Invariant: a chain of actions ends, whatever it jumps to.

use onramp_queue::Packet;

use super::Look;
use super::police::Police;
use super::reader::{Reader, count, masked};
use crate::rng::Rng;
use crate::{ConfigError, Instant};

/// Actions of one filter, and jumps between them.
const ACTIONS_MAX: usize = 32;

/// How it goes on after an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    /// With the next filter: this one has not matched after all (`continue`).
    Next,
    /// The filter has matched (`ok`, `pass`).
    Ok,
    /// With the first filter (`reclassify`).
    Again,
    /// The packet dies (`drop`, `shot`).
    Drop,
    /// With the next action (`pipe`).
    Pipe,
    /// With the first filter of a chain.
    Goto(u32),
    /// With the action of this number, the first being 0.
    Jump(u32),
}

#[derive(Clone, Debug)]
pub(super) enum Action {
    Gact { control: Control, random: Option<Random> },
    Police(Box<Police>),
    Edit(Edit),
}

/// Now and then another control: one time of `every`, by chance or by counting.
#[derive(Clone, Debug)]
pub(super) struct Random {
    chance: Option<Rng>,
    control: Control,
    every: u32,
    seen: u32,
}

/// Changes of what the packet says of itself.
#[derive(Clone, Debug)]
pub(super) struct Edit {
    priority: Option<u32>,
    /// Value and mask.
    mark: Option<(u32, u32)>,
    queue: Option<u16>,
    /// The DSCP becomes the priority.
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

/// Runs the actions of a filter that has matched.
pub(super) fn run(
    actions: &mut [Action],
    look: &mut Look,
    pkt: &mut Packet,
    now: Instant,
) -> Control {
    let (mut at, mut jumps) = (0, 0);
    while let Some(action) = actions.get_mut(at) {
        let control = match action {
            Action::Gact { control, random: None } => *control,
            Action::Gact { control, random: Some(random) } => random.draw(*control),
            Action::Police(police) => police.run(pkt, now),
            Action::Edit(edit) => edit.run(look, pkt),
        };
        match control {
            Control::Pipe => at += 1,
            Control::Jump(to) => {
                jumps += 1;
                at = to as usize;
                if to == 0 || at > actions.len() || jumps == ACTIONS_MAX {
                    return Control::Ok;
                }
            }
            control => return control,
        }
    }
    Control::Ok
}

/// Reads `action …` or `police …`, if that comes next.
pub(super) fn read(words: &mut Reader<'_>, actions: &mut Vec<Action>) -> Result<bool, ConfigError> {
    if words.take("police") {
        actions.push(Action::Police(Box::new(Police::read(words)?)));
        return Ok(true);
    }
    if !words.take("action") {
        return Ok(false);
    }
    loop {
        let action = match words.peek() {
            Some("police") => {
                words.next();
                Action::Police(Box::new(Police::read(words)?))
            }
            Some("skbedit") => {
                words.next();
                Action::Edit(read_edit(words)?)
            }
            Some("gact") => {
                words.next();
                // `gact action drop` and `gact drop` are the same.
                words.take("action");
                read_gact(words)?
            }
            _ => read_gact(words)?,
        };
        if words.peek() == Some("index") {
            let why = "actions are not shared here: say what it does at each filter";
            return Err(words.wrong("index", "", why));
        }
        actions.push(action);
        if actions.len() > ACTIONS_MAX {
            let why = format!("a filter has at most {ACTIONS_MAX} actions");
            return Err(words.wrong("action", "", why));
        }
        if !words.take("action") {
            return Ok(true);
        }
    }
}

/// Reads a control, if that comes next.
pub(super) fn read_control(words: &mut Reader<'_>) -> Result<Option<Control>, ConfigError> {
    let Some(word) = words.peek() else { return Ok(None) };
    let control = match word {
        "jump" => {
            words.next();
            return words.number("jump", 0xffff).map(Control::Jump).map(Some);
        }
        "goto" => {
            words.next();
            if !words.take("chain") {
                return Err(words.wrong(
                    "goto",
                    words.peek().unwrap_or_default(),
                    "expected chain",
                ));
            }
            return words.number("goto chain", 0x0fff_ffff).map(Control::Goto).map(Some);
        }
        word => control(word),
    };
    if control.is_some() {
        words.next();
    }
    Ok(control)
}

/// A control of one word.
pub(super) fn control(word: &str) -> Option<Control> {
    Some(match word {
        "continue" => Control::Next,
        "ok" | "pass" => Control::Ok,
        "reclassify" => Control::Again,
        "drop" | "shot" => Control::Drop,
        "pipe" => Control::Pipe,
        _ => return None,
    })
}

fn read_gact(words: &mut Reader<'_>) -> Result<Action, ConfigError> {
    let expected = "expected an action: ok, pass, drop, shot, pipe, reclassify, continue, \
                    goto chain N, jump N, police, skbedit";
    let missing =
        |words: &Reader<'_>| words.wrong("action", words.peek().unwrap_or_default(), expected);
    let control = read_control(words)?.ok_or_else(|| missing(words))?;
    let mut random = None;
    if words.take("random") {
        let chance = words.value("random", "netrand or determ", |word| match word {
            "netrand" => Some(Some(Rng::new(0))),
            "determ" => Some(None),
            _ => None,
        })?;
        let control = read_control(words)?.ok_or_else(|| missing(words))?;
        let every = words.number("random", 10_000)?.max(1);
        random = Some(Random { chance, control, every, seen: 0 });
    }
    Ok(Action::Gact { control, random })
}

fn read_edit(words: &mut Reader<'_>) -> Result<Edit, ConfigError> {
    let mut edit =
        Edit { priority: None, mark: None, queue: None, inherit: false, control: Control::Pipe };
    while let Some(word) = words.peek() {
        if let Some(control) = read_control(words)? {
            edit.control = control;
            continue;
        }
        if !matches!(word, "priority" | "mark" | "queue_mapping" | "inheritdsfield") {
            break;
        }
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
            _ => edit.inherit = true,
        }
    }
    if edit.priority.is_none() && edit.mark.is_none() && edit.queue.is_none() && !edit.inherit {
        let why = "expected priority, mark, queue_mapping or inheritdsfield";
        return Err(words.wrong("skbedit", words.peek().unwrap_or_default(), why));
    }
    Ok(edit)
}
