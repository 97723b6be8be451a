//! The description of a kind of qdisc.

use crate::base::params::{Options, Param, Value, Values};
use crate::base::show::Out;
use crate::base::{Clash, Extra, Fault, shown};
use crate::sched::qdisc::Qdisc;

/// A row of the table of qdisc kinds, [`KINDS`](crate::qdisc::KINDS). It contains all that other
/// code knows about one kind of qdisc.
#[derive(Debug)]
pub struct Kind {
    /// Name of the kind in the command language.
    pub id: &'static str,
    /// Description in one line, for users.
    pub about: &'static str,
    /// The options of the kind, in the order in which they are shown.
    pub params: &'static [Param],
    /// Which program (`tc` or the kernel) refuses an option that the kind does not have.
    pub unknown: Fault,
    /// Whether Linux lets users change the parameters of an existing qdisc of this kind.
    pub changes: Changes,
    /// Checks the parameters of a qdisc against each other.
    pub check: Check,
    /// Where the classes of a qdisc of this kind come from.
    pub classes: ClassKind,
    /// Builds a qdisc of this kind with the given values.
    pub build: fn(&Values<'_>) -> Box<dyn Qdisc>,
    /// How `tc` shows a qdisc of this kind, as far as the table of options does not determine it.
    pub shown: Shown,
    /// Properties that only few kinds of qdisc have in Linux; for example, `ingress` holds no
    /// packets. Most kinds have none of them: [`Quirks::NONE`].
    pub quirks: Quirks,
}

/// Whether Linux lets users change the parameters of an existing qdisc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// Parameters can be changed.
    Yes,
    /// Parameters cannot be changed: the kernel refuses a change command that gives options. A
    /// change command without options succeeds.
    Bare,
    /// Every change command fails. The kernel refuses a change command that contains options, and
    /// for this kind `tc` puts options into every change command, even if the user gives none.
    No,
}

/// A function that checks parameters against each other. Its error names one of the parameters and
/// says what is wrong.
pub type Check = fn(&Values<'_>) -> Result<(), Clash>;

/// Where the classes of a qdisc come from.
#[derive(Clone, Copy, Debug)]
pub enum ClassKind {
    /// The qdisc has no classes.
    None,
    /// The classes are numbered from 1 to the number that this function computes from the values of
    /// the qdisc's options.
    Fixed(fn(&Values<'_>) -> u16),
    /// Users add the classes by commands.
    Added {
        /// The options of a class.
        params: &'static [Param],
        /// Checks the parameters of a class against each other.
        check: Check,
        /// Whether a class may stand below another class.
        nested: bool,
    },
}

/// Behaviour in Linux that only few kinds of qdisc have. The source file of each kind gives these
/// values for the kind, so that no other code tests for the name of a kind.
#[derive(Clone, Copy, Debug)]
pub struct Quirks {
    /// Checks the parameters of a new qdisc, in addition to [`Kind::check`]. Not called for a
    /// change.
    pub check_new: Check,
    /// Makes the changes that Linux makes to options that the change command does not give. The
    /// arguments are the values that the command gives, and the options of the qdisc after the
    /// change.
    pub change: fn(&Values<'_>, &mut Options<'_>),
    /// Whether a change of the parameters replaces the qdisc's child by a new one.
    pub renews_child: bool,
    /// Whether the qdisc is a single queue with an option `limit`, which a change of the parent
    /// qdisc may set.
    pub fifo: bool,
    /// A change of such a qdisc also sets the limit of a fifo below it. This function computes that
    /// limit from the values of the change command. `None` for kinds whose change does not affect a
    /// fifo.
    pub limit_below: Option<fn(&Values<'_>) -> u64>,
    /// The limit, in bytes, of the `bfifo` that stands below the class of the qdisc until a command
    /// puts another qdisc there. `None` for the kinds that have a `pfifo` there, or nothing.
    pub bfifo_below: Option<fn(&Values<'_>) -> u64>,
    /// Builds the qdisc that takes the place of a qdisc below a class that a command deletes.
    /// `None` for the kinds whose classes then have a `pfifo`.
    pub default_child: Option<BuildChild>,
    /// Whether the qdisc can only stand at the root. Its classes are the transmit queues of the
    /// device.
    pub stands_at_root: bool,
    /// Whether each transmit queue of the device has a tree of its own, below a class of this
    /// qdisc.
    pub has_queue_trees: bool,
    /// Whether the qdisc chooses the transmit queue of each packet.
    pub chooses_queue: bool,
    /// Whether a qdisc of this kind in front of a transmit queue (at the root, or below an `mq`)
    /// takes over the device's `txqueuelen` when it changes. The kind needs [`Changes::Yes`].
    pub follows_txqueuelen: bool,
    /// Makes explicit those defaults that follow from the device and that the table of options does
    /// not have as [`Default`](crate::params::Default). The arguments are the values of the qdisc
    /// and its options.
    pub settle: fn(&Values<'_>, &mut Options<'_>),
    /// Removes the options that a change has left without effect, and with which a command that
    /// makes the qdisc again would be refused or would make another qdisc.
    pub written: fn(&mut Options<'_>),
    /// Whether the qdisc never holds a packet. Each transmit queue then has its own copy of the
    /// qdisc.
    pub holds_nothing: bool,
    /// The name of the option that gives the number of bands, if a command without this option
    /// means one band for each transmit queue; otherwise `None`.
    pub bands_of_queues: Option<&'static str>,
    /// Whether the qdisc has exactly one child. A command that adds the child may then give any
    /// class number of the qdisc as the parent, such as `1:` or `1:7`.
    pub has_one_place: bool,
    /// Whether `tc class show` hides the class above the qdisc's only child until a command has
    /// added a qdisc below that class.
    pub hides_empty_place: bool,
    /// Whether `tc class show` lists all classes of the qdisc as children of `root`.
    pub classes_at_root: bool,
    /// The name of the kind that stands below each class until a command puts another qdisc there,
    /// if `tc qdisc show` lists such a default qdisc. `None` if `tc qdisc show` hides it, as Linux
    /// does for most kinds.
    pub shown_below: Option<&'static str>,
    /// Set if the qdisc has filters but holds no packets. Such a qdisc has one or two places for
    /// filters: see [`FilterPlaces`].
    pub filters_only: Option<FilterPlaces>,
    /// The option that users can set for a class that follows from the qdisc's parameters, such as
    /// `quantum` for a band of `ets`. `None` if there is no such option.
    pub class_option: Option<ClassOption>,
    /// Properties that the user-added classes of only few kinds have in Linux. Most kinds have none
    /// of them: [`AddedQuirks::NONE`].
    pub added: AddedQuirks,
}

/// The places for filters in a qdisc that has filters but holds no packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterPlaces {
    /// One place, for filters on incoming packets. Whatever class of the qdisc a command names as
    /// the parent of a filter, the filter is in this place.
    In,
    /// Two places, for filters on incoming packets and for filters on outgoing packets.
    InAndOut,
}

/// Behaviour in Linux that only the user-added classes of few kinds have.
#[derive(Clone, Copy, Debug)]
pub struct AddedQuirks {
    /// The greatest depth of nested classes, and Linux's error text for a class that is nested
    /// deeper.
    pub deepest: (usize, &'static str),
    /// Whether the qdisc itself counts as a class, with the minor number 0.
    pub root_is_class: bool,
    /// Whether Linux ignores a wrong parent. A new class whose parent class does not exist is then
    /// added below the qdisc itself, and an existing class stays below its old parent.
    pub any_parent: bool,
    /// Whether the qdisc below a class is removed when the class gets its first child class.
    pub inner_has_no_qdisc: bool,
    /// The options that only a class without child classes has. A change of a class with child
    /// classes leaves them as they are.
    pub of_leaves: &'static [&'static str],
    /// Linux's error text for a new class without options.
    pub options_missing: &'static str,
    /// Linux's error text for the deletion of a class that another class or a filter needs.
    pub in_use: &'static str,
    /// Linux's error text for a filter at a class, if filters can only stand at the qdisc.
    pub filters_at_class: &'static str,
}

/// A function that builds the qdisc which stands below a class before a command adds one, from the
/// values of the qdisc that has the class. The result is `None` if nothing stands there then.
pub type BuildChild = fn(&Values<'_>) -> Option<Box<dyn Qdisc>>;

/// A function that computes which parameter of a qdisc changes when a user sets the option of a
/// class (see [`ClassOption`]). The arguments are the values of the qdisc, the minor number of the
/// class, and the new value of the option. The result is the name of the parameter and its new
/// value.
pub type SetOption = fn(&Values<'_>, u16, u64) -> Result<(&'static str, Value), Clash>;

/// An option that users can set for a class, although the class follows from the qdisc's
/// parameters. Setting it changes one of these parameters.
#[derive(Clone, Copy, Debug)]
pub struct ClassOption {
    /// A table of options whose only entry is this option.
    pub params: &'static [Param],
    /// Linux's error text for a command line without the option.
    pub missing: &'static str,
    /// Linux's error text for a class that does not exist.
    pub no_class: &'static str,
    /// Computes which parameter of the qdisc the option changes.
    pub set: SetOption,
}

impl Quirks {
    /// The values for kinds without special behaviour.
    pub const NONE: Self = Self {
        check_new: |_| Ok(()),
        change: |_, _| {},
        renews_child: false,
        fifo: false,
        limit_below: None,
        bfifo_below: None,
        default_child: None,
        stands_at_root: false,
        has_queue_trees: false,
        chooses_queue: false,
        follows_txqueuelen: false,
        settle: |_, _| {},
        written: |_| {},
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

    /// Whether the kind is tied to the transmit queues of a device, to filters in front of no
    /// qdisc, or to a default child that listings show. Only built-in kinds are.
    pub(crate) fn is_of_a_device(&self) -> bool {
        self.stands_at_root
            || self.has_queue_trees
            || self.chooses_queue
            || self.filters_only.is_some()
            || self.shown_below.is_some()
    }

    /// The values for kinds that hold exactly one child qdisc.
    pub(crate) const ONE_PLACE: Self = Self { has_one_place: true, ..Self::NONE };
}

impl AddedQuirks {
    /// The values for kinds whose classes have no special behaviour.
    pub const NONE: Self = Self {
        deepest: (usize::MAX, ""),
        root_is_class: false,
        any_parent: false,
        inner_has_no_qdisc: false,
        of_leaves: &[],
        options_missing: "",
        in_use: "",
        filters_at_class: "",
    };
}

/// How `tc` shows a kind of qdisc and its classes.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    /// Prints the options of a qdisc as `tc qdisc show` does, at the end of the qdisc's line.
    pub options: fn(&Values<'_>, &Extra, &mut Out),
    /// Prints the statistics that `tc -s qdisc show` has below those that all kinds have.
    pub extra: fn(&Extra, &mut Out),
    /// Prints the options that `tc class show` has for a class.
    pub class: fn(&Values<'_>, &Extra, &mut Out),
    /// Prints the statistics that `tc -s class show` has below those that all classes have.
    pub class_extra: fn(&Extra, &mut Out),
}

impl Shown {
    /// Prints the options in the order in which the kind lists them ([`Kind::params`]), and no
    /// statistics that only this kind has.
    pub const TABLE: Self = Self {
        options: |values, _, out| values.show(out),
        extra: |_, _| {},
        class: |values, _, out| values.show(out),
        class_extra: |_, _| {},
    };
}

impl Kind {
    /// Creates a kind of a program's own: its name, a line about it for users, its options, and the
    /// function that builds a qdisc of the kind. [`Kinds`](crate::Kinds) says how to make use of
    /// the kind by its name.
    ///
    /// The kind has no classes. A qdisc of the kind cannot be changed after it was added
    /// ([`Changes::No`]). Listings show the options in the order of `params`, and below them, with
    /// `tc -s`, all statistics of [`Qdisc::stats`]. If that does not suit the kind, set further
    /// fields. A kind with [`Changes::Yes`] must have a [`Qdisc::change`] that takes over every
    /// value of its options:
    ///
    /// ```
    /// # use onramp_core::{params::Values, qdisc::{Changes, Kind, Qdisc}};
    /// const fn mine(build: fn(&Values<'_>) -> Box<dyn Qdisc>) -> Kind {
    ///     Kind { changes: Changes::Yes, ..Kind::new("mine", "what it does", &[], build) }
    /// }
    /// ```
    #[must_use]
    pub const fn new(
        id: &'static str,
        about: &'static str,
        params: &'static [Param],
        build: fn(&Values<'_>) -> Box<dyn Qdisc>,
    ) -> Self {
        let shown = Shown { extra: shown::statistics, ..Shown::TABLE };
        Self { id, about, params, build, shown, changes: Changes::No, ..Self::LEAF }
    }

    /// The values that most kinds have in common. A row of the table of kinds ends with
    /// `..Kind::LEAF`, and gives only the fields in which the kind differs.
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

    /// Returns a help text for users, with a line for each option of the kind's classes.
    #[must_use]
    pub fn class_help(&self) -> String {
        let ClassKind::Added { params, .. } = self.classes else {
            return format!("Qdisc \"{}\" is classless.\n", self.id);
        };
        let lines = params.iter().map(|param| format!("  {}\n", param.help()));
        lines.fold(format!("classes of {}:\n", self.id), |text, line| text + &line)
    }

    /// Returns a help text for users: a line about the kind, then a line for each of its options.
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
