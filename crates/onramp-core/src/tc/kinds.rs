//! The kinds of qdiscs that the text of one program may name: the built-in ones, and the program's
//! own.

use crate::base::ConfigError;
use crate::base::params::Param;
use crate::qdisc::{INGRESS, KINDS};
use crate::sched::{Changes, ClassKind, Kind};

/// Words that have another meaning where a line of `tc` may have the name of a kind.
const RESERVED: &[&str] = &[
    "dev",
    "handle",
    "parent",
    "root",
    "classid",
    "estimator",
    "stab",
    "ingress_block",
    "egress_block",
    "help",
];

/// The kinds of qdiscs that a text may name: the built-in ones ([`KINDS`]), and kinds of the
/// program's own. By default, the built-in ones alone.
///
/// A program that wrote a [`Qdisc`](crate::qdisc::Qdisc) describes it in a [`Kind`]. Its options
/// are then read, checked and listed as those of built-in kinds, and a qdisc of the kind may stand
/// wherever a built-in one may: at the root, below a class, in front of every port of a link. What
/// reads text takes the kinds:
///
/// | text | what reads it |
/// |---|---|
/// | one qdisc: `mine limit 100` | [`Kinds::spec`], for `Tree::new` |
/// | lines of `tc` | `Setup::with_kinds`, for `Tree::of` and `LinkBuilder::tree` |
/// | a link's qdisc, and later changes | `LinkBuilder::kind` |
/// | commands on devices with names | `Host::with_kinds` |
///
/// A queue that sends its newest packet first:
///
/// ```
/// use onramp_core::params::{Default, Param, Unit};
/// use onramp_core::qdisc::{Backlog, Cx, Dequeue, Kind, Peek, Qdisc, Verdict};
/// use onramp_core::{Instant, Kinds, Tree};
/// use onramp_queue::{DropReason, Packet};
///
/// const LIMIT: Param = Param::new("limit", Unit::Packets, Default::Number(50), "packets at most");
///
/// static NEWEST: Kind = Kind::new("newest", "sends its newest packet first", &[LIMIT], |values| {
///     Box::new(Newest { limit: values.number("limit"), packets: Vec::new() })
/// });
///
/// #[derive(Debug)]
/// struct Newest {
///     limit: u64,
///     packets: Vec<Packet>,
/// }
///
/// impl Qdisc for Newest {
///     fn enqueue(&mut self, packet: Packet, cx: &mut Cx<'_>) -> Verdict {
///         if self.packets.len() as u64 >= self.limit {
///             cx.drop(packet, DropReason::Overlimit);
///             return Verdict::Dropped;
///         }
///         self.packets.push(packet);
///         Verdict::Queued
///     }
///
///     fn dequeue(&mut self, _cx: &mut Cx<'_>) -> Dequeue {
///         self.packets.pop().map_or(Dequeue::Empty, Dequeue::Ready)
///     }
///
///     fn peek(&mut self, _cx: &mut Cx<'_>) -> Peek {
///         self.packets.last().map_or(Peek::Empty, |packet| Peek::Ready(packet.len))
///     }
///
///     fn backlog(&self) -> Backlog {
///         let bytes = self.packets.iter().map(|packet| u64::from(packet.len)).sum();
///         Backlog { packets: self.packets.len() as u32, bytes }
///     }
///
///     fn reset(&mut self, cx: &mut Cx<'_>) {
///         self.packets.drain(..).for_each(|packet| cx.drop(packet, DropReason::Purged));
///     }
/// }
///
/// let kinds = Kinds::new([&NEWEST])?;
/// let mut tree = Tree::new(&kinds.spec("newest limit 2")?, 1514);
/// for len in [100, 200, 300] {
///     let _ = tree.enqueue(Instant(0), Packet::new(len));
/// }
/// let Dequeue::Ready(packet) = tree.dequeue(Instant(0)) else { panic!("it holds two") };
/// assert_eq!(packet.len, 200);
///
/// let error = kinds.spec("newest limt 2").unwrap_err();
/// assert_eq!(error.to_string(), r#"qdisc newest: unexpected "limt": newest takes limit"#);
/// # Ok::<(), onramp_core::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Kinds(Vec<&'static Kind>);

impl Kinds {
    /// Returns the built-in kinds, and the program's own.
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] that says which kind no text could name, or no tree could have:
    /// its name is no word, or the name of another kind, or a word with another meaning in lines of
    /// `tc`; two of its options have the same name; it has [`Quirks`](crate::qdisc::Quirks) that
    /// only built-in kinds may have; or it follows the device's `txqueuelen`, although its
    /// [`Changes`] allow no change.
    pub fn new(own: impl IntoIterator<Item = &'static Kind>) -> Result<Self, ConfigError> {
        let mut kinds = Self::default();
        own.into_iter().try_for_each(|kind| kinds.add(kind))?;
        Ok(kinds)
    }

    /// Returns the built-in kinds, and `kind` if it is none of them.
    pub(crate) fn with(kind: &'static Kind) -> Self {
        Self(if is_built_in(kind.id) { Vec::new() } else { vec![kind] })
    }

    /// Adds kinds of the program's own. A kind that is there already stays as it is.
    ///
    /// # Errors
    ///
    /// Returns an error if two different kinds have the same name. Nothing has changed then.
    pub(crate) fn join(&mut self, others: &Self) -> Result<(), ConfigError> {
        let mut joined = self.clone();
        others.own().try_for_each(|kind| joined.add(kind))?;
        *self = joined;
        Ok(())
    }

    /// Returns the kind with the name `id`, or `None` if there is none.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<&'static Kind> {
        self.iter().find(|kind| kind.id == id)
    }

    /// Returns all kinds: the built-in ones, then the program's own.
    pub fn iter(&self) -> impl Iterator<Item = &'static Kind> {
        KINDS.iter().chain(self.own())
    }

    /// Returns the kinds of the program's own.
    pub fn own(&self) -> impl Iterator<Item = &'static Kind> {
        self.0.iter().copied()
    }

    /// Returns the names of all kinds, for error messages.
    pub(crate) fn names(&self) -> String {
        self.iter().map(|kind| kind.id).collect::<Vec<_>>().join(", ")
    }

    fn add(&mut self, kind: &'static Kind) -> Result<(), ConfigError> {
        if self.0.iter().any(|there| std::ptr::eq(*there, kind)) {
            return Ok(());
        }
        let wrong = |why| Err(ConfigError::new("kind", "", kind.id, why));
        if !is_name(kind.id) {
            return wrong("expected letters, digits, `_`, `-` and `.`, the first of them a letter");
        }
        if RESERVED.contains(&kind.id) {
            return wrong("this word has another meaning in lines of tc; choose another name");
        }
        if is_built_in(kind.id) {
            return wrong("a built-in kind has this name; choose another");
        }
        if self.find(kind.id).is_some() {
            return wrong("two kinds of the program have this name; give one of them another");
        }
        check_options(kind.id, kind.params)?;
        if let ClassKind::Added { params, .. } = kind.classes {
            check_options(kind.id, params)?;
        }
        if let Some(option) = &kind.quirks.class_option {
            check_options(kind.id, option.params)?;
        }
        if kind.quirks.follows_txqueuelen && kind.changes != Changes::Yes {
            return wrong(
                "the quirk follows_txqueuelen changes a running qdisc, so it needs `Changes::Yes`",
            );
        }
        if kind.quirks.is_of_a_device() {
            return wrong(
                "only built-in kinds may have the quirks stands_at_root, has_queue_trees, \
                 chooses_queue, filters_only and shown_below",
            );
        }
        self.0.push(kind);
        Ok(())
    }
}

fn is_built_in(id: &str) -> bool {
    KINDS.iter().chain(INGRESS).any(|kind| kind.id == id)
}

/// Whether `word` is one word in every text that may name a kind.
fn is_name(word: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    word.starts_with(|c: char| c.is_ascii_alphabetic()) && word.chars().all(fits)
}

/// Checks that a line can give each option of a kind or of its classes.
fn check_options(id: &str, params: &[Param]) -> Result<(), ConfigError> {
    let mut names: Vec<&str> = Vec::new();
    for name in params.iter().flat_map(|param| param.names().iter().chain(param.aliases)) {
        let why = match *name {
            "help" => "this word asks for help; choose another name",
            name if !is_name(name) => {
                "expected letters, digits, `_`, `-` and `.`, the first of them a letter"
            }
            name if names.contains(&name) => "two options have this name",
            name => {
                names.push(name);
                continue;
            }
        };
        return Err(ConfigError::new(&format!("kind {id}"), name, "", why));
    }
    Ok(())
}
