//! The description of a kind of qdisc.

use crate::base::params::{Options, Param, Value, Values};
use crate::base::show::Out;
use crate::base::{Clash, Extra, Fault};
use crate::sched::qdisc::Qdisc;

/// A row of the table of kinds, [`KINDS`](crate::qdisc::KINDS): all that the rest of the system
/// knows of one kind of qdisc.
#[derive(Debug)]
pub struct Kind {
    /// Name of the kind in the command language.
    pub id: &'static str,
    /// Description in one line, for users.
    pub about: &'static str,
    /// Parameters of the kind, in the order in which they are shown.
    pub params: &'static [Param],
    /// Which of `tc` and the kernel refuses an option that the kind does not have.
    pub unknown: Fault,
    /// Whether Linux lets the parameters of an existing qdisc change.
    pub changes: Changes,
    /// Checks the parameters against each other.
    pub check: Check,
    /// Where the classes of such a qdisc come from.
    pub classes: ClassKind,
    /// Builds a qdisc of this kind.
    pub build: fn(&Values<'_>) -> Box<dyn Qdisc>,
    /// How `tc` shows such a qdisc, where that does not follow from the table of parameters.
    pub shown: Shown,
    /// Behaviour that only few kinds have in Linux.
    pub quirks: Quirks,
}

/// Whether the parameters of an existing qdisc may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// The parameters may change.
    Yes,
    /// The parameters may not change. A change command without options succeeds.
    Bare,
    /// Every change command fails, because `tc` sends the options even if none is given.
    No,
}

/// Checks parameters against each other. An error names one of the parameters and says what is
/// wrong.
pub type Check = fn(&Values<'_>) -> Result<(), Clash>;

/// Where the classes of a qdisc come from.
#[derive(Clone, Copy, Debug)]
pub enum ClassKind {
    /// The qdisc has no classes.
    None,
    /// The qdisc has as many classes as this function returns, numbered from 1.
    Fixed(fn(&Values<'_>) -> u16),
    /// Users add the classes.
    Added {
        /// Parameters of a class.
        params: &'static [Param],
        /// Checks the parameters of a class against each other.
        check: Check,
        /// Whether a class may stand below another class.
        nested: bool,
    },
}

/// Behaviour that only few kinds of qdisc have in Linux. Each kind states its quirks in its own
/// file, so that no other code tests for the name of a kind.
#[derive(Clone, Copy, Debug)]
pub struct Quirks {
    /// Checks a new qdisc, in addition to [`Kind::check`]. Not called for a change.
    pub check_new: Check,
    /// Completes a change. The arguments are the values that the command line gives, and the
    /// options of the qdisc after the change.
    pub change: fn(&Values<'_>, &mut Options<'_>),
    /// Whether a change of the parameters replaces the child qdisc by a new one.
    pub renews_child: bool,
    /// Whether the qdisc is a single queue with a `limit` that the parent qdisc may set.
    pub fifo: bool,
    /// If set, returns the limit, for the given values, that a change gives to a fifo below the
    /// qdisc.
    pub limit_below: Option<fn(&Values<'_>) -> u64>,
    /// Whether the qdisc can only be the root. Its classes are the transmit queues of the device.
    pub stands_at_root: bool,
    /// Whether each transmit queue has its own tree, below a class of this qdisc.
    pub has_queue_trees: bool,
    /// Whether the qdisc chooses the transmit queue of a packet.
    pub chooses_queue: bool,
    /// Whether a separate copy of the qdisc stands in front of each transmit queue, and holds no
    /// packet back.
    pub holds_nothing: bool,
    /// Name of the option with the number of bands, if a command line without that option means one
    /// band for each transmit queue.
    pub bands_of_queues: Option<&'static str>,
    /// Whether the qdisc has exactly one place for a child, without a choice of classes.
    pub has_one_place: bool,
    /// Whether `tc class show` lists that place only while a qdisc stands there that a command
    /// named.
    pub hides_empty_place: bool,
    /// Whether `tc class show` lists the classes of the qdisc below `root`.
    pub classes_at_root: bool,
    /// Name of the kind that stands below each class until a user puts another qdisc there, if
    /// `tc qdisc show` lists that default (`qdisc_hash_add`, not invisible).
    pub shown_below: Option<&'static str>,
    /// Set if the qdisc holds filters and no packets. Such a qdisc has either one place for its
    /// filters, whatever a command line calls that place, or two places.
    pub filters_only: Option<FilterPlaces>,
    /// The option that a user can change of a class, if the classes follow from the qdisc's
    /// parameters.
    pub class_option: Option<ClassOption>,
    /// Behaviour of the classes that users add.
    pub added: AddedQuirks,
}

/// Where a qdisc that holds only filters asks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterPlaces {
    /// For incoming packets.
    In,
    /// For incoming packets and for outgoing packets.
    InAndOut,
}

/// Behaviour of user-added classes that only few kinds have in Linux.
#[derive(Clone, Copy, Debug)]
pub struct AddedQuirks {
    /// The greatest depth of nested classes, and Linux's error text for a class that is nested
    /// deeper.
    pub deepest: (usize, &'static str),
    /// Whether the root of the class tree is a class as well, with the number 0.
    pub root_is_class: bool,
    /// Whether a parent that does not exist means the root, and a new parent for an existing class
    /// is ignored.
    pub any_parent: bool,
    /// Whether a class loses its qdisc when its first child class is added.
    pub inner_has_no_qdisc: bool,
    /// Linux's error text for a new class without options.
    pub options_missing: &'static str,
    /// Linux's error text for the deletion of a class that another class or a filter needs.
    pub in_use: &'static str,
    /// Linux's error text for a filter at a class, if filters can only stand at the qdisc.
    pub filters_at_class: &'static str,
}

/// Computes which parameter of a qdisc changes when a user sets the option of a class (see
/// [`ClassOption`]). The arguments are the values of the qdisc, the minor number of the class, and
/// the new value of the option. The result is the name of the parameter and its new value.
pub type SetOption = fn(&Values<'_>, u16, u64) -> Result<(&'static str, Value), Clash>;

/// The option of a class that follows from a qdisc's parameters. Setting the option changes one of
/// these parameters.
#[derive(Clone, Copy, Debug)]
pub struct ClassOption {
    /// The option, as a table with a single parameter.
    pub params: &'static [Param],
    /// Linux's error text for a command line without the option.
    pub missing: &'static str,
    /// Linux's error text for a class that does not exist.
    pub no_class: &'static str,
    /// Computes the change of the qdisc's parameters.
    pub set: SetOption,
}

impl Quirks {
    /// The quirks of most kinds.
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

    /// The quirks of kinds that hold one child qdisc.
    pub(crate) const ONE_PLACE: Self = Self { has_one_place: true, ..Self::NONE };
}

impl AddedQuirks {
    /// The quirks that the classes of most kinds have.
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

/// How `tc` shows a kind of qdisc and its classes.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    /// Prints the options of `tc qdisc show`, which follow `refcnt 2 `.
    pub options: fn(&Values<'_>, &Extra, &mut Out),
    /// Prints what `tc -s qdisc show` has below the common statistics.
    pub extra: fn(&Extra, &mut Out),
    /// Prints the options of `tc class show`.
    pub class: fn(&Values<'_>, &Extra, &mut Out),
    /// Prints what `tc -s class show` has below the common statistics.
    pub class_extra: fn(&Extra, &mut Out),
}

impl Shown {
    /// Prints the options in the order of the table of parameters, and no statistics of the kind.
    pub const TABLE: Self = Self {
        options: |values, _, out| values.show(out),
        extra: |_, _| {},
        class: |values, _, out| values.show(out),
        class_extra: |_, _| {},
    };
}

impl Kind {
    /// The defaults for a row of the table, to be used as `..Kind::LEAF`.
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

    /// Returns help text for users: a line for each option of the kind's classes.
    #[must_use]
    pub fn class_help(&self) -> String {
        let ClassKind::Added { params, .. } = self.classes else {
            return format!("Qdisc \"{}\" is classless.\n", self.id);
        };
        let lines = params.iter().map(|param| format!("  {}\n", param.help()));
        lines.fold(format!("classes of {}:\n", self.id), |text, line| text + &line)
    }

    /// Returns help text for users: a line about the kind, then a line for each option.
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
