//! Reads the options of filters from the words of `tc filter`.

use std::sync::Arc;

use onramp_queue::Packet;

use super::action::{self, Action};
use super::bpf::Bpf;
use super::ebpf::Ebpf;
use super::ematch::Tree;
use super::flow::Flow;
use super::flower::{self, Flower};
use super::head::Head;
use super::protocol::ALL;
use super::reader::{Reader, count, is, masked};
use super::text::{Marks, Text, with_link};
use super::{Look, Matcher, words};
use crate::base::error::{Errno, Fault};
use crate::base::{ConfigError, Handle};

/// The order of the filters of one preference: filters with a lower rank are asked first.
pub(super) type Rank = (u64, u64);
/// The numbers by which filters are sorted: chain, preference and rank.
pub(super) type Place = (u32, u16, Rank);

/// A filter with its options, which have been checked. A copy that comes from a running tree
/// includes the filter's counters.
#[derive(Clone, Debug)]
pub struct FilterSpec {
    pub(super) chain: u32,
    /// How many filters had been added to the qdisc or class when this filter's chain got its first
    /// filter. `tc filter show` lists the chains in this order.
    pub(super) chain_born: u64,
    /// The preference: filters with a smaller number are asked first. 0 means that a preference is
    /// still to be assigned.
    pub(super) pref: u16,
    /// Decides the position of this filter among those of its preference: see [`Rank`].
    pub(super) rank: Rank,
    pub(super) protocol: u16,
    /// The handle, which names the filter among those of its preference. 0 means that a handle is
    /// still to be assigned.
    pub(super) handle: u32,
    pub(super) kind: &'static str,
    /// The kind and the options, as the user wrote them.
    pub(super) text: Text,
    /// A number that distinguishes this filter from others that were described by the same words.
    pub(super) serial: u64,
    pub(super) matcher: Matcher,
    /// The class that the user named for packets that match.
    pub(super) class: Option<Handle>,
    /// The name that the device has now by which a packet must have come in (`indev`), if one was
    /// given.
    pub(super) indev: Option<Arc<str>>,
    /// Whether `indev` names the device to which the filter belongs.
    pub(super) indev_is_own: bool,
    pub(super) skip_hw: bool,
    pub(super) actions: Vec<Action>,
    /// Whether the only action is a policer that was written without the word `action` before it.
    pub(super) bare_police: bool,
    /// How often the filter has matched.
    pub(super) hits: u64,
}

pub(super) const KINDS: &[&str] = &["matchall", "fw", "u32", "basic", "flower", "flow", "bpf"];

/// Turns `error` into an `EINVAL` of the kernel without a message: `tc` does not find this kind of
/// error, but sends the line to the kernel, which refuses it.
fn invalid(error: ConfigError) -> ConfigError {
    error.kernel(Errno::Invalid, "")
}

impl FilterSpec {
    /// Returns the name of the device by which a packet must have come in (`indev`), if one was
    /// given.
    pub(crate) fn indev(&self) -> Option<&str> {
        self.indev.as_deref()
    }

    /// Returns a copy with the counters of `counted`, which is a copy of this filter in a running
    /// tree.
    pub(crate) fn with_counters(&self, counted: &Self) -> Self {
        // The running filter may still have the name that a device had when it was added.
        Self { indev: self.indev.clone(), ..counted.clone() }
    }

    /// Returns the first `u32` hash table for the preference of this filter. The filter's options
    /// do not apply to the table.
    pub(super) fn table(&self, handle: u32, rank: Rank, serial: u64) -> Self {
        Self {
            rank,
            handle,
            text: Text::bare("u32"),
            serial,
            matcher: Matcher::Table(1),
            class: None,
            indev: None,
            indev_is_own: false,
            skip_hw: false,
            actions: Vec::new(),
            bare_police: false,
            ..self.clone()
        }
    }

    /// Returns a copy as it is listed among the filters of the chain and preference of `home`.
    pub(super) fn seen_from(&self, home: &Self) -> Self {
        let (chain, chain_born) = (home.chain, home.chain_born);
        Self { chain, chain_born, pref: home.pref, protocol: home.protocol, ..self.clone() }
    }

    /// Whether the protocol of the packet is the one for which the filter was added.
    #[inline]
    pub(super) fn takes(&self, look: &mut Look, pkt: &Packet) -> bool {
        self.protocol == ALL || look.at(pkt).keys().outer == self.protocol
    }

    /// Reads the kind and the options of a filter of qdisc `major`, up to the end of the line.
    /// `onto` is the filter that the line changes, if any. As in Linux, a changed `u32` or `flow`
    /// filter keeps some options of `onto`, and filters of other kinds keep none.
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] that names the wrong word and what would be right.
    pub(crate) fn read(
        head: &Head,
        words: &mut Reader<'_>,
        major: u16,
        onto: Option<&Self>,
    ) -> Result<Self, ConfigError> {
        let from = words.position() + 1;
        let kind = read_kind(words)?;
        words.at = format!("filter {kind}");
        let mut filter = Self {
            chain: head.chain(),
            chain_born: 0,
            pref: head.pref().unwrap_or(0),
            rank: (0, 0),
            protocol: head.protocol.unwrap_or(ALL),
            handle: 0,
            kind,
            text: Text::bare(kind),
            serial: 0,
            matcher: Matcher::Matchall,
            class: None,
            indev: None,
            indev_is_own: false,
            skip_hw: false,
            actions: Vec::new(),
            bare_police: false,
            hits: 0,
        };
        if let Some(word) = &head.handle {
            filter.handle = read_handle(kind, word, words)?;
        }
        let bare = words.peek().is_none();
        if bare && matches!(kind, "matchall" | "basic") {
            return Err(invalid(words.wrong("", "", "expected a class or an action")));
        }
        let mut marks = Marks::default();
        match kind {
            "matchall" => filter.read_rest(words, "classid, action", |_, _| Ok(false))?,
            "fw" => filter.read_fw(words, head.handle.as_deref(), major)?,
            "u32" => filter.read_u32(words, onto, &mut marks)?,
            "basic" => filter.read_basic(words)?,
            "flower" => filter.read_flower(words)?,
            "flow" => filter.read_flow(words, major, onto, &mut marks)?,
            _ => filter.read_bpf(words)?,
        }
        let text = Text::of(kind, words, from, &marks, &filter.actions);
        filter.text = match onto {
            Some(onto) => filter.changed_text(text, onto),
            None => text,
        };
        filter.indev_is_own =
            filter.indev.is_some() && filter.indev.as_deref() == head.device.as_deref();
        Ok(filter)
    }

    /// Reads the rest of the line: the class, the actions, and the options for which `read` returns
    /// true.
    fn read_rest(
        &mut self,
        words: &mut Reader<'_>,
        knows: &str,
        mut read: impl FnMut(&str, &mut Reader<'_>) -> Result<bool, ConfigError>,
    ) -> Result<(), ConfigError> {
        let mut acted = false;
        loop {
            if self.read_action(words)? {
                acted = true;
                continue;
            }
            let Some(word) = words.next() else { return Ok(()) };
            let fw = self.kind == "fw";
            match word {
                word if word == "flowid" || fw && is(word, "flowid") => {
                    self.class = Some(words.class("classid")?);
                }
                word if is(word, "classid") => self.class = Some(words.class("classid")?),
                "indev" if matches!(self.kind, "fw" | "u32" | "flower") => {
                    let read = |word: &str| (!word.is_empty()).then(|| word.into());
                    self.indev = Some(words.value(word, "the name of a device", read)?);
                }
                "skip_hw" => self.skip_hw = true,
                "skip_sw" => {
                    let why = "no hardware here can run the filter alone: leave it out";
                    return Err(words.wrong(word, "", why).kernel(Errno::NotSupported, ""));
                }
                word => {
                    if !read(word, words)? {
                        let why = format!("{} takes {knows}", self.kind);
                        let error = words.wrong("", word, why);
                        // `tc` takes an unknown word after an action for the name of another
                        // action, and exits with another status than for an unknown option.
                        return Err(if acted { error.argument() } else { error });
                    }
                }
            }
            acted = false;
        }
    }

    /// Reads `action …` or `police …`. Returns false if the next word is neither.
    fn read_action(&mut self, words: &mut Reader<'_>) -> Result<bool, ConfigError> {
        if !matches!(self.kind, "matchall" | "flower") && words.takes("police") {
            self.actions.push(action::read_police(words)?);
            self.bare_police = true;
            return Ok(true);
        }
        action::read(words, &mut self.actions)
    }

    fn read_fw(
        &mut self,
        words: &mut Reader<'_>,
        handle: Option<&str>,
        major: u16,
    ) -> Result<(), ConfigError> {
        let bare = words.peek().is_none();
        self.read_rest(words, "classid, action, police, indev", |_, _| Ok(false))?;
        if self.handle == 0 {
            self.matcher = Matcher::MarkIsClass(major);
            let why = "expected `handle MARK` before fw; without one, fw takes no options";
            return if bare { Ok(()) } else { Err(invalid(words.wrong("handle", "", why))) };
        }
        if bare {
            let why = "expected a class or an action for packets with this mark";
            return Err(invalid(words.wrong("classid", "", why)));
        }
        let (mark, mask) = handle.and_then(read_mark).unwrap_or_default();
        self.matcher = Matcher::Mark(mark, mask);
        Ok(())
    }

    /// Returns the text of this filter, which is `onto` after a change by a line with the options
    /// `text`.
    fn changed_text(&self, text: Text, onto: &Self) -> Text {
        match (&self.matcher, &onto.matcher) {
            (Matcher::U32(node), Matcher::U32(before)) => {
                let kept = onto.text.kept();
                let link = node.link.filter(|_| node.link != before.link);
                let kept = link.map_or_else(|| kept.into(), |link| with_link(kept, link));
                text.with_kept(&kept, self.indev.as_deref())
            }
            (Matcher::Flow(flow), Matcher::Flow(_)) => text.with_kept(&flow.words(), None),
            _ => text,
        }
    }

    fn read_u32(
        &mut self,
        words: &mut Reader<'_>,
        onto: Option<&Self>,
        marks: &mut Marks,
    ) -> Result<(), ConfigError> {
        let mut line = words::Line::default();
        let knows = "match, link, ht, hashkey, offset, sample, divisor, order, classid, action, \
                     police, indev";
        self.read_rest(words, knows, |word, words| {
            let from = words.position() - 1;
            let known = line.read(word, words)?;
            // The lines that make the filter again name its table and number in their own way.
            let is_place = matches!(word, "ht" | "sample" | "order");
            let marks = if is_place { &mut marks.left_out } else { &mut marks.kept };
            marks.push(from..words.position());
            Ok(known)
        })?;
        let acts = self.class.is_some() || !self.actions.is_empty();
        let before = onto.and_then(|filter| match &filter.matcher {
            Matcher::U32(node) => Some(&**node),
            _ => None,
        });
        self.matcher = line.build(words, self.handle, acts, before)?;
        if let (Matcher::U32(_), Some(onto)) = (&self.matcher, onto.filter(|_| before.is_some())) {
            // As in Linux, a change without `indev` keeps the one that is there.
            self.indev = self.indev.take().or_else(|| onto.indev.clone());
        }
        if let Some(order) = line.order() {
            self.handle |= order;
        }
        Ok(())
    }

    fn read_basic(&mut self, words: &mut Reader<'_>) -> Result<(), ConfigError> {
        let mut tree = Tree::default();
        self.read_rest(words, "match, classid, action, police", |word, words| {
            let known = is(word, "match");
            if known {
                tree = Tree::read(words)?;
            }
            Ok(known)
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

    fn read_flow(
        &mut self,
        words: &mut Reader<'_>,
        major: u16,
        onto: Option<&Self>,
        marks: &mut Marks,
    ) -> Result<(), ConfigError> {
        if self.handle == 0 {
            let why = "expected `handle NUMBER` before the kind, other than 0";
            return Err(invalid(words.wrong("handle", "", why)));
        }
        let before = onto.and_then(|filter| match &filter.matcher {
            Matcher::Flow(flow) => Some((**flow).clone()),
            _ => None,
        });
        let mut flow = before.unwrap_or_else(|| Flow::new(major));
        flow.begin();
        while words.peek().is_some() {
            let from = words.position();
            if self.read_action(words)? {
                continue;
            }
            let is_match = words.peek().is_some_and(|word| is(word, "match"));
            flow.read(words)?;
            // A change replaces the expression.
            if !is_match {
                marks.kept.push(from..words.position());
            }
        }
        flow.check(words)?;
        self.matcher = Matcher::Flow(Box::new(flow));
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
                    let why = "this parser reads no files: use `filter::with_files`";
                    return Err(words.wrong(word, "", why));
                }
                "object-pinned" | "pinned" => {
                    return Err(words.wrong(
                        word,
                        "",
                        "there is no kernel here that could hold a pinned program",
                    ));
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let wrong = |key: &str, why: &str| Err(words.wrong(key, "", why));
        self.matcher = match (classic, program) {
            (Some(_), Some(_)) => {
                return wrong("bytecode", "use either bytecode or ebpf-bytecode, not both");
            }
            (Some(program), None) => {
                Matcher::Bpf(program, direct.then(|| self.class.unwrap_or_default()))
            }
            (None, Some(program)) => {
                Matcher::Ebpf(program, direct.then(|| self.class.unwrap_or_default()))
            }
            (None, None) => {
                let why = "expected a program, as `tcpdump -ddd` prints it";
                return Err(invalid(words.wrong("bytecode", "", why)));
            }
        };
        Ok(())
    }

    /// Returns the word after `key` in the options that the user wrote.
    pub(super) fn word_behind(&self, key: &str) -> &str {
        self.text.all().split(' ').skip_while(|word| *word != key).nth(1).unwrap_or_default()
    }

    /// Returns the numbers by which filters are sorted: chain, preference and rank.
    #[inline]
    pub(crate) fn place(&self) -> Place {
        (self.chain, self.pref, self.rank)
    }

    /// Adds the counters of `other`, the copy of this filter that another transmit queue has.
    fn add(&mut self, other: &Self) {
        self.hits += other.hits;
        for (sum, action) in self.actions.iter_mut().zip(&other.actions) {
            sum.counters.add(&action.counters);
        }
    }

    /// Merges the copies that all transmit queues have of the filters of one qdisc or class:
    /// returns each filter once, with the sums of the counters of its copies.
    #[must_use]
    pub fn whole(queues: impl IntoIterator<Item = Vec<Self>>) -> Vec<Self> {
        let mut queues = queues.into_iter();
        let mut sums = queues.next().unwrap_or_default();
        for filter in queues.flatten() {
            match sums.iter_mut().find(|sum| sum.is_same(&filter)) {
                Some(sum) => sum.add(&filter),
                None => sums.push(filter),
            }
        }
        sums
    }

    /// Whether `other` is a copy of the same filter, created by the same line.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.serial == other.serial && self.text == other.text
    }
}

/// Reads the kind of a filter.
pub(super) fn read_kind(words: &mut Reader<'_>) -> Result<&'static str, ConfigError> {
    let kinds = || format!("expected a filter: {}", KINDS.join(", "));
    let Some(word) = words.next() else {
        let said = "Filter kind and protocol must be specified";
        return Err(words.wrong("", "", kinds()).kernel(Errno::NoEntry, said));
    };
    KINDS.iter().find(|kind| **kind == word).copied().ok_or_else(|| {
        let error = words.wrong("", word, kinds());
        // If `tc` does not know the kind and no options follow, `tc` sends the kind to the kernel,
        // which reports the error. If options follow, `tc` itself reports the error.
        match words.peek() {
            Some(_) => error,
            None => error.kernel(Errno::NoEntry, "TC classifier not found"),
        }
    })
}

/// Reads the handle of a filter of this kind.
pub(super) fn read_handle(kind: &str, word: &str, words: &Reader<'_>) -> Result<u32, ConfigError> {
    let (handle, expected) = match kind {
        "u32" => (words::read_handle(word), "TABLE:BUCKET:NODE, hexadecimal, such as 800::800"),
        "fw" => (read_mark(word).map(|(mark, _)| mark), "MARK or MARK/MASK, 0 to 4294967295"),
        _ => (count(word, u32::MAX), "a whole number, 0 to 4294967295"),
    };
    handle.ok_or_else(|| words.wrong("handle", word, format!("expected {expected}")))
}

fn read_mark(word: &str) -> Option<(u32, u32)> {
    masked(word, u32::MAX, |word, _| count(word, u32::MAX))
}

/// Whether only the kernel reports this error: `tc` accepts the line and sends it.
pub(super) fn is_sent(error: &ConfigError) -> bool {
    matches!(error.fault, Fault::Kernel(..))
}
