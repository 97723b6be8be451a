//! What the rest of the system knows of a kind of qdisc.

use crate::base::params::{Options, Param, Value, Values};
use crate::base::{Clash, Fault};
use crate::sched::{Qdisc, Shown};

/// A row of the table of kinds, [`KINDS`](crate::qdisc::KINDS): all that the rest of the system
/// knows of a qdisc.
#[derive(Debug)]
pub struct Kind {
    /// Name in the command language.
    pub id: &'static str,
    /// One line for people.
    pub about: &'static str,
    /// Its parameters, in the order they are shown.
    pub params: &'static [Param],
    /// Who refuses an option that it does not have.
    pub unknown: Fault,
    /// Whether Linux lets its parameters change while it stands.
    pub changes: Changes,
    /// What must hold between the parameters.
    pub check: Check,
    /// Where its classes come from.
    pub classes: ClassKind,
    /// Builds one.
    pub build: fn(&Values<'_>) -> Box<dyn Qdisc>,
    /// How `tc` shows it, where the table of parameters does not say it all.
    pub shown: Shown,
    /// What Linux does with few kinds.
    pub quirks: Quirks,
}

/// Whether the parameters of a qdisc may change while it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// They may.
    Yes,
    /// They may not; a change that gives none is fine.
    Bare,
    /// No change is taken: `tc` sends the options even if none is given.
    No,
}

/// Checks parameters against each other; an error names one of them, and says what is wrong.
pub type Check = fn(&Values<'_>) -> Result<(), Clash>;

/// Where the classes of a qdisc come from.
#[derive(Clone, Copy, Debug)]
pub enum ClassKind {
    /// It has none.
    None,
    /// It has so many, numbered from 1.
    Fixed(fn(&Values<'_>) -> u16),
    /// Users add them.
    Added {
        /// Their parameters.
        params: &'static [Param],
        /// What must hold between these.
        check: Check,
        /// Whether a class may stand below another.
        nested: bool,
    },
}

/// What Linux does with few kinds of qdisc. Each kind that needs one states it in its own file, so
/// that nobody else asks for a kind by its name.
#[derive(Clone, Copy, Debug)]
pub struct Quirks {
    /// What a new qdisc must satisfy beside [`Kind::check`], and a change need not.
    pub check_new: Check,
    /// Completes a change: gets the options of the line, and the options that hold after it.
    pub change: fn(&Values<'_>, &mut Options<'_>),
    /// A change of its parameters replaces the qdisc below it by a new one.
    pub renews_child: bool,
    /// It is one queue with a `limit`, which the qdisc above it may set.
    pub fifo: bool,
    /// The limit that a change to these values gives to a fifo below it.
    pub limit_below: Option<fn(&Values<'_>) -> u64>,
    /// It stands at the root alone: its classes are the device's transmit queues.
    pub stands_at_root: bool,
    /// Each transmit queue has a tree of its own, below a class of this qdisc.
    pub has_queue_trees: bool,
    /// It chooses the transmit queue of a packet.
    pub chooses_queue: bool,
    /// It stands in front of each transmit queue by itself, and holds no packets back.
    pub holds_nothing: bool,
    /// The option that says how many bands there are, if a line that leaves it out means a band for
    /// each transmit queue.
    pub bands_of_queues: Option<&'static str>,
    /// It has a place for one child, which is no choice of a class.
    pub has_one_place: bool,
    /// `tc class show` lists that place only while a qdisc stands there that a user named.
    pub hides_empty_place: bool,
    /// `tc class show` lists its classes below `root`.
    pub classes_at_root: bool,
    /// The kind that stands below each class until a user puts a qdisc there, where
    /// `tc qdisc show` lists it (`qdisc_hash_add`, not invisible).
    pub shown_below: Option<&'static str>,
    /// It holds filters and no packets. A qdisc that is no place of packets has one place for its
    /// filters, whatever a line calls it, or two.
    pub filters_only: Option<FilterPlaces>,
    /// What a user can change of classes that follow from its parameters.
    pub class_option: Option<ClassOption>,
    /// What it does with classes that users add.
    pub added: AddedQuirks,
}

/// Where filters of packets that come in are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterPlaces {
    /// Where packets come in.
    In,
    /// Where packets come in, and where they go out.
    InAndOut,
}

/// What Linux does with the classes that users add to few kinds.
#[derive(Clone, Copy, Debug)]
pub struct AddedQuirks {
    /// How many classes may stand below one another at most, and what Linux says of one more.
    pub deepest: (usize, &'static str),
    /// Its root is a class as well, which has number 0.
    pub root_is_class: bool,
    /// A parent that does not exist means the root, and another parent of a class that exists is
    /// ignored.
    pub any_parent: bool,
    /// A class loses its qdisc when its first child is added.
    pub inner_has_no_qdisc: bool,
    /// What Linux says of a new class without options.
    pub options_missing: &'static str,
    /// What Linux says if a class cannot be deleted, as another class or a filter needs it.
    pub in_use: &'static str,
    /// What Linux says of filters at a class, where they can stand at the qdisc alone.
    pub filters_at_class: &'static str,
}

/// Gets the values of a qdisc, the minor number of a class and the number that the class shall
/// have. Gives the parameter of the qdisc that changes, and its value.
pub type SetOption = fn(&Values<'_>, u16, u64) -> Result<(&'static str, Value), Clash>;

/// The option of a class that follows from a qdisc's parameters, and changes one of them.
#[derive(Clone, Copy, Debug)]
pub struct ClassOption {
    /// The option.
    pub params: &'static [Param],
    /// What Linux says of a line without it.
    pub missing: &'static str,
    /// What Linux says of a class that does not exist.
    pub no_class: &'static str,
    /// What it changes of the qdisc.
    pub set: SetOption,
}

impl Quirks {
    /// What most kinds have.
    pub const NONE: Self = Self {
        check_new: |_| Ok(()),
        change: |_, _| {},
        renews_child: false,
        fifo: false,
        limit_below: None,
        stands_at_root: false,
        has_queue_trees: false,
        chooses_queue: false,
        holds_nothing: false,
        bands_of_queues: None,
        has_one_place: false,
        hides_empty_place: false,
        classes_at_root: false,
        shown_below: None,
        filters_only: None,
        class_option: None,
        added: AddedQuirks::NONE,
    };

    /// What kinds have that hold one other qdisc.
    pub(crate) const ONE_PLACE: Self = Self { has_one_place: true, ..Self::NONE };
}

impl AddedQuirks {
    /// What most kinds have.
    pub const NONE: Self = Self {
        deepest: (usize::MAX, ""),
        root_is_class: false,
        any_parent: false,
        inner_has_no_qdisc: false,
        options_missing: "",
        in_use: "",
        filters_at_class: "",
    };
}

impl Kind {
    /// What most kinds do not have, to be written as `..Kind::LEAF`.
    pub(crate) const LEAF: Self = Self {
        id: "",
        about: "",
        params: &[],
        unknown: Fault::Usage,
        changes: Changes::Yes,
        check: |_| Ok(()),
        classes: ClassKind::None,
        build: |_| unreachable!("every kind says how it is built"),
        shown: Shown::TABLE,
        quirks: Quirks::NONE,
    };

    /// Help for people: a line for each option of its classes.
    #[must_use]
    pub fn class_help(&self) -> String {
        let ClassKind::Added { params, .. } = self.classes else {
            return format!("Qdisc \"{}\" is classless.\n", self.id);
        };
        let lines = params.iter().map(|param| format!("  {}\n", param.help()));
        lines.fold(format!("classes of {}:\n", self.id), |text, line| text + &line)
    }

    /// Help for people: a line on the qdisc, then one for each option.
    #[must_use]
    pub fn help(&self) -> String {
        let mut text = format!("{}: {}\n", self.id, self.about);
        for param in self.params {
            text.push_str("  ");
            text.push_str(&param.help());
            text.push('\n');
        }
        text
    }
}
