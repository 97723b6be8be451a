//! From the words of `tc filter` to a filter, and its place among others.

use onramp_queue::Packet;

use super::action::{self, Action};
use super::bpf::Bpf;
use super::ebpf::Ebpf;
use super::ematch::Tree;
use super::flow::Flow;
use super::flower::{self, Flower};
use super::reader::{ALL, Reader, count, masked, protocol};
use super::words::{self, Selector};
use super::{Look, Matcher};
use crate::{ConfigError, Handle};

/// The first preference that is given out by itself, and the end of such preferences.
const PREF_OWN: u16 = 0xc000;
const PREF_OWN_MIN: u16 = 0x8000;
/// The first node that `u32` gives out by itself.
const NODE_OWN: u32 = 0x800;

/// What stands before the kind of a filter: where it is, and what it is called.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    /// The qdisc or the class where it is asked; none: the root.
    pub(crate) parent: Option<Handle>,
    chain: u32,
    pref: Option<u16>,
    protocol: Option<u16>,
    handle: Option<String>,
}

/// A filter as described by its user, checked.
#[derive(Clone, Debug)]
pub struct FilterSpec {
    pub(super) chain: u32,
    /// Smaller ones are asked first; 0: to be given out.
    pub(super) pref: u16,
    protocol: u16,
    /// Its name among those of its preference; 0: to be given out.
    handle: u32,
    kind: &'static str,
    /// Kind and options, as given.
    text: String,
    pub(super) matcher: Matcher,
    /// What it names.
    pub(super) class: Option<Handle>,
    pub(super) actions: Vec<Action>,
}

impl Head {
    /// Reads what stands before the kind.
    pub(crate) fn read(words: &mut Reader<'_>) -> Result<Self, ConfigError> {
        let mut head = Self { parent: None, chain: 0, pref: None, protocol: None, handle: None };
        while let Some(word) = words.peek() {
            words.next();
            match word {
                "root" => head.parent = None,
                "parent" => {
                    let expected = "a handle such as 1: or 1:20, hexadecimal, 1 to ffff";
                    head.parent = Some(words.value(word, expected, |word| word.parse().ok())?);
                }
                "pref" | "prio" | "preference" | "priority" => {
                    let read = |word: &str| u16::try_from(count(word, 0xffff)?).ok();
                    let pref = words.value("pref", "a whole number, 1 to 65535", |word| {
                        read(word).filter(|pref| *pref > 0)
                    })?;
                    head.pref = Some(pref);
                }
                "protocol" => {
                    let expected = "all, ip, ipv6, arp, 802.1q, 802.1ad or a number";
                    head.protocol = Some(words.value(word, expected, protocol)?);
                }
                "chain" => head.chain = words.number(word, 0x0fff_ffff)?,
                "handle" => {
                    let handle = words.value(word, "a filter's handle", |word| {
                        (!word.is_empty()).then(|| word.to_owned())
                    })?;
                    head.handle = Some(handle);
                }
                _ => {
                    words.back();
                    break;
                }
            }
        }
        Ok(head)
    }

    /// Whether a filter is among those that are meant.
    pub(crate) fn means(&self, filter: &FilterSpec) -> bool {
        let handle = self.handle.as_deref().and_then(|word| filter.handle_of(word));
        self.chain == filter.chain
            && self.pref.is_none_or(|pref| pref == filter.pref)
            && self.protocol.is_none_or(|protocol| protocol == filter.protocol)
            && (self.handle.is_none() || handle == Some(filter.handle))
    }
}

const KINDS: &[&str] = &["matchall", "fw", "u32", "basic", "flower", "flow", "bpf"];

impl FilterSpec {
    /// The class it names.
    pub(crate) fn class(&self) -> Option<Handle> {
        self.class
    }

    /// Whether it wants packets of this protocol.
    #[inline]
    pub(super) fn takes(&self, look: &mut Look, pkt: &Packet) -> bool {
        self.protocol == ALL || look.at(pkt).keys().outer == self.protocol
    }

    /// Reads kind and options, to the end, for a filter of qdisc `major`.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: the word that is wrong, and what would be right.
    pub(crate) fn read(
        head: &Head,
        words: &mut Reader<'_>,
        major: u16,
    ) -> Result<Self, ConfigError> {
        let text = words.rest();
        let word = words.next().unwrap_or_default();
        let Some(kind) = KINDS.iter().find(|kind| **kind == word) else {
            let why = format!("expected a filter: {}", KINDS.join(", "));
            return Err(words.wrong("", word, why));
        };
        words.at = format!("filter {kind}");
        let mut filter = Self {
            chain: head.chain,
            pref: head.pref.unwrap_or(0),
            protocol: head.protocol.unwrap_or(ALL),
            handle: 0,
            kind,
            text,
            matcher: Matcher::Matchall,
            class: None,
            actions: Vec::new(),
        };
        if let Some(word) = &head.handle {
            filter.handle = filter.handle_of(word).ok_or_else(|| {
                let why = match *kind {
                    "u32" => "expected a node of the one table, such as 800::1",
                    "fw" => "expected MARK or MARK/MASK, 0 to 4294967295",
                    _ => "expected a whole number, 0 to 4294967295",
                };
                words.wrong("handle", word, why)
            })?;
        }
        if filter.handle == 0 && (*kind == "flow" || head.handle.is_some()) {
            return Err(words.wrong("handle", "", "expected one before the kind, other than 0"));
        }
        match *kind {
            "matchall" => filter.read_rest(words, "classid, action, police", |_, _| Ok(false))?,
            "fw" => filter.read_fw(words, head.handle.as_deref(), major)?,
            "u32" => filter.read_u32(words)?,
            "basic" => filter.read_basic(words)?,
            "flower" => filter.read_flower(words)?,
            "flow" => {
                filter.matcher = Matcher::Flow(Box::new(Flow::read(words, major)?));
                filter.read_rest(words, "action, police", |_, _| Ok(false))?;
            }
            _ => filter.read_bpf(words)?,
        }
        if filter.class.is_some() && *kind == "flow" {
            return Err(words.wrong("classid", "", "flow takes baseclass"));
        }
        Ok(filter)
    }

    /// Reads the class, the actions, and what `read` knows, to the end.
    fn read_rest(
        &mut self,
        words: &mut Reader<'_>,
        knows: &str,
        mut read: impl FnMut(&str, &mut Reader<'_>) -> Result<bool, ConfigError>,
    ) -> Result<(), ConfigError> {
        loop {
            if action::read(words, &mut self.actions)? {
                continue;
            }
            let Some(word) = words.next() else { return Ok(()) };
            match word {
                "classid" | "flowid" if self.class.is_some() => {
                    return Err(words.wrong("classid", "", "given twice"));
                }
                "classid" | "flowid" => self.class = Some(words.class("classid")?),
                // There is no hardware here to skip.
                "skip_hw" => {}
                word => {
                    if !read(word, words)? {
                        let why = format!("{} takes {knows}", self.kind);
                        return Err(words.wrong("", word, why));
                    }
                }
            }
        }
    }

    fn read_fw(
        &mut self,
        words: &mut Reader<'_>,
        handle: Option<&str>,
        major: u16,
    ) -> Result<(), ConfigError> {
        self.read_rest(words, "classid, action, police", |_, _| Ok(false))?;
        let Some(handle) = handle else {
            self.matcher = Matcher::MarkIsClass(major);
            if self.class.is_some() || !self.actions.is_empty() {
                let why = "expected `handle MARK` before fw; without one, the mark is the class";
                return Err(words.wrong("handle", "", why));
            }
            return Ok(());
        };
        let (mark, mask) = read_mark(handle).unwrap_or_default();
        self.matcher = Matcher::Mark(mark, mask);
        if mark & !mask != 0 {
            return Err(words.wrong("handle", handle, "the mark has bits that the mask has not"));
        }
        Ok(())
    }

    fn read_u32(&mut self, words: &mut Reader<'_>) -> Result<(), ConfigError> {
        let mut selector = Selector::default();
        let mut order = None;
        self.read_rest(words, "match, classid, action, police, order", |word, words| match word {
            "match" => selector.read(words).map(|()| true),
            "order" => {
                order = Some(words.number(word, 0xfff)?);
                Ok(true)
            }
            "divisor" | "ht" | "link" | "hashkey" | "offset" | "sample" => {
                let why = "there is one hash table here: write matches of whole packets";
                Err(words.wrong(word, "", why))
            }
            _ => Ok(false),
        })?;
        if selector.is_empty() {
            return Err(words.wrong("match", "", "expected one at least, such as match u32 0 0"));
        }
        self.handle = order.filter(|order| *order > 0).unwrap_or(self.handle);
        let acts = self.class.is_some() || !self.actions.is_empty();
        self.matcher = Matcher::U32(selector, acts);
        Ok(())
    }

    fn read_basic(&mut self, words: &mut Reader<'_>) -> Result<(), ConfigError> {
        let mut tree = Tree::default();
        self.read_rest(words, "match, classid, action, police", |word, words| {
            if word == "match" {
                tree = Tree::read(words)?;
            }
            Ok(word == "match")
        })?;
        self.matcher = Matcher::Basic(tree);
        Ok(())
    }

    fn read_flower(&mut self, words: &mut Reader<'_>) -> Result<(), ConfigError> {
        let mut flower = Flower::new(self.protocol);
        let knows = format!("{}, classid, action", flower::KEYS);
        self.read_rest(words, &knows, |word, words| flower.read(word, words))?;
        self.matcher = Matcher::Flower(Box::new(flower));
        Ok(())
    }

    fn read_bpf(&mut self, words: &mut Reader<'_>) -> Result<(), ConfigError> {
        let (mut classic, mut program, mut direct) = (None, None, false);
        let knows = "bytecode, ebpf-bytecode, direct-action, classid, action, police";
        self.read_rest(words, knows, |word, words| {
            match word {
                "run" => {}
                "bytecode" | "bc" => classic = Some(Bpf::read(words)?),
                "ebpf-bytecode" => {
                    let digits = words.next().unwrap_or_default();
                    let read = digits.parse::<Ebpf>();
                    program =
                        Some(read.map_err(|error| words.wrong(word, &error.value, error.why))?);
                }
                "direct-action" | "da" => direct = true,
                "bytecode-file" | "bcf" | "object-file" | "obj" => {
                    let why = "files are not read here: `filter::with_files` does";
                    return Err(words.wrong(word, "", why));
                }
                "object-pinned" | "pinned" => {
                    return Err(words.wrong(word, "", "there is no kernel here that has it"));
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let wrong = |key: &str, why: &str| Err(words.wrong(key, "", why));
        self.matcher = match (classic, program) {
            (Some(_), Some(_)) => return wrong("bytecode", "there is ebpf-bytecode, too"),
            (Some(_), None) if direct => return wrong("direct-action", "it is for ebpf-bytecode"),
            (Some(program), None) => Matcher::Bpf(program),
            (None, Some(_)) if direct && !self.actions.is_empty() => {
                return wrong("action", "with direct-action, the program says what happens");
            }
            (None, Some(program)) => {
                Matcher::Ebpf(program, direct.then(|| self.class.unwrap_or_default()))
            }
            (None, None) => {
                return wrong("bytecode", "expected it, as tcpdump -ddd writes it");
            }
        };
        Ok(())
    }

    /// What a word means as a handle of this kind.
    fn handle_of(&self, word: &str) -> Option<u32> {
        match self.kind {
            "u32" => words::read_handle(word),
            "fw" => read_mark(word).map(|(mark, _)| mark),
            _ => count(word, u32::MAX),
        }
    }

    /// Gives it what it has no name for, and says why it cannot stand beside the `others`; or, if
    /// it `replaces` one of them, which.
    pub(crate) fn join<'a>(
        &mut self,
        others: impl Iterator<Item = (usize, &'a Self)> + Clone,
        replaces: bool,
    ) -> Result<Option<usize>, ConfigError> {
        let at = format!("filter {}", self.kind);
        let others = others.filter(|(_, other)| other.chain == self.chain);
        if self.pref == 0 {
            let first = others.clone().map(|(_, other)| other.pref);
            let first = first.filter(|pref| *pref >= PREF_OWN_MIN).min();
            self.pref = first.map_or(PREF_OWN, |first| first - 1);
            if self.pref < PREF_OWN_MIN {
                let why = "32768 is taken: no number is left before it";
                return Err(ConfigError::new(&at, "pref", "", why));
            }
        }
        let pref = self.pref;
        let others = others.filter(|(_, other)| other.pref == pref);
        let beside = others.clone().next().map(|(_, other)| other);
        if let Some(other) = beside
            && (other.kind, other.protocol) != (self.kind, self.protocol)
        {
            let why = format!("other filters there are {} of another protocol or kind", other.kind);
            return Err(ConfigError::new(&at, "pref", &pref.to_string(), why));
        }
        let wrong = |why: &str| Err(ConfigError::new(&at, "pref", &pref.to_string(), why));
        match (&self.matcher, beside.map(|other| &other.matcher)) {
            (Matcher::Mark(..), Some(Matcher::MarkIsClass(_)))
            | (Matcher::MarkIsClass(_), Some(_)) => {
                return wrong("a filter there takes the mark for the class, or is to");
            }
            (Matcher::Mark(_, mask), Some(Matcher::Mark(_, other))) if mask != other => {
                return wrong("filters of one preference share their mask");
            }
            _ => {}
        }
        let taken = |handle| others.clone().find(|(_, other)| other.handle == handle);
        if self.handle == 0 && !matches!(self.matcher, Matcher::Mark(..)) {
            if let (Matcher::Matchall, Some((place, other))) =
                (&self.matcher, others.clone().next())
                && replaces
            {
                self.handle = other.handle;
                return Ok(Some(place));
            }
            let first = if self.kind == "u32" { NODE_OWN } else { 1 };
            self.handle = (first..).find(|handle| taken(*handle).is_none()).unwrap_or(u32::MAX);
        }
        match taken(self.handle) {
            Some((place, _)) if replaces => return Ok(Some(place)),
            Some(_) => return wrong("a filter of this handle is there already"),
            None => {}
        }
        if let Matcher::Matchall = self.matcher
            && beside.is_some()
        {
            return wrong("matchall stands alone at its preference");
        }
        Ok(None)
    }

    /// Whether it was described by the same words.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let name = |spec: &Self| (spec.chain, spec.pref, spec.protocol, spec.handle);
        name(self) == name(other) && self.text == other.text
    }

    /// Where it is to be put in between `filters`.
    pub(super) fn place_in(&self, filters: &[Self]) -> usize {
        let key = |filter: &Self| (filter.chain, filter.pref);
        let first = filters.partition_point(|other| key(other) < key(self));
        let group = &filters[first..];
        let group = &group[..group.partition_point(|other| key(other) == key(self))];
        let inside = match &self.matcher {
            // The last comes first.
            Matcher::Basic(_) | Matcher::Bpf(_) | Matcher::Ebpf(..) => 0,
            // By number.
            Matcher::U32(..) => group.partition_point(|other| other.handle < self.handle),
            // Behind those with the same mask.
            Matcher::Flower(flower) => {
                let same = |other: &Self| match &other.matcher {
                    Matcher::Flower(other) => other.has_mask_of(flower),
                    _ => false,
                };
                group.iter().rposition(same).map_or(group.len(), |place| place + 1)
            }
            _ => group.len(),
        };
        first + inside
    }
}

fn read_mark(word: &str) -> Option<(u32, u32)> {
    masked(word, u32::MAX, |word, _| count(word, u32::MAX))
}
