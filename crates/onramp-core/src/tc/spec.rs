//! Reads and writes the description of a single qdisc, such as `fq maxrate 8mbit limit 1000`.

use std::fmt;
use std::str::FromStr;

use crate::base::handle::FIRST_OWN_HANDLE;
use crate::base::params::{self, Default, Options, Param, Site, Value, Values};
use crate::base::show::{Out, Style};
use crate::base::{ConfigError, Errno, Extra, Fault, Handle};
use crate::qdisc::KINDS;
use crate::sched::{Changes, Check, Kind, Qdisc};
use crate::tc::kinds::Kinds;

/// A checked description of a qdisc: its kind and options. Building a qdisc from a `Spec` cannot
/// fail.
///
/// [`FromStr`] reads the words that follow `root` in a command `tc qdisc add dev DEVICE root …`,
/// and no others. [`Kinds::spec`] also reads kinds of the program's own.
///
/// ```
/// use onramp_core::Spec;
/// let spec: Spec = "fq maxrate 8mbit limit 1000".parse()?;
/// assert_eq!(spec.to_string(), "fq limit 1000 maxrate 8mbit");
/// assert!(spec.show(1514).starts_with("fq limit 1000p flow_limit 100p"));
/// let qdisc = spec.build(1514);
/// # drop(qdisc);
/// # Ok::<(), onramp_core::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Spec {
    kind: &'static Kind,
    /// The values of the options that were given, in the order of the kind's table of options.
    given: Vec<Option<Value>>,
}

impl Spec {
    /// Creates the description of a qdisc of this kind, without any options.
    #[must_use]
    pub fn new(kind: &'static Kind) -> Self {
        Self { kind, given: vec![None; kind.params.len()] }
    }

    /// Creates the description of a qdisc of the kind with the name `id`, without any options. The
    /// kind must exist.
    pub(crate) fn named(id: &str) -> Self {
        let kind = KINDS.iter().find(|kind| kind.id == id);
        Self::new(kind.expect("only kinds of the table are asked for"))
    }

    /// Creates the description of an `ingress` or `clsact`. Returns `None` if `id` is another name.
    pub(crate) fn ingress(id: &str) -> Option<Self> {
        crate::qdisc::INGRESS.iter().find(|kind| kind.id == id).map(Self::new)
    }

    /// Returns the kind of the qdisc.
    #[must_use]
    pub fn kind(&self) -> &'static Kind {
        self.kind
    }

    /// Returns the values of all options on a device whose largest packet has `mtu` bytes,
    /// including the link header.
    #[must_use]
    pub fn values(&self, mtu: u32) -> Values<'_> {
        self.values_at(Site { mtu, ..Site::default() })
    }

    /// Returns the values of all options for a qdisc at `site`.
    #[must_use]
    pub fn values_at(&self, site: Site) -> Values<'_> {
        Values { params: self.kind.params, given: &self.given, site }
    }

    /// Returns the values of all options without regard to a device: defaults that depend on the
    /// device count as zero.
    pub(crate) fn values_anywhere(&self) -> Values<'_> {
        self.values_at(Site::default())
    }

    /// Builds the qdisc for a device whose largest packet has `mtu` bytes, including the link
    /// header.
    #[must_use]
    pub fn build(&self, mtu: u32) -> Box<dyn Qdisc> {
        self.build_at(Site { mtu, handle: Handle::new(FIRST_OWN_HANDLE, 0), ..Site::default() })
    }

    /// Builds the qdisc for the place `site` in a tree.
    #[must_use]
    pub fn build_at(&self, site: Site) -> Box<dyn Qdisc> {
        (self.kind.build)(&self.values_at(site))
    }

    /// Returns the part of the line of `tc qdisc show` from the kind on: every option with its
    /// value, rounded as `tc` does. Use [`Display`](fmt::Display) for exact values.
    #[must_use]
    pub fn show(&self, mtu: u32) -> String {
        let mut out = Out::new(Style::default());
        (self.kind.shown.options)(&self.values(mtu), &Extra::default(), &mut out);
        format!("{} {}", self.kind.id, out.finish()).trim_end().to_owned()
    }
}

impl FromStr for Spec {
    type Err = ConfigError;

    fn from_str(line: &str) -> Result<Self, ConfigError> {
        Kinds::default().spec(line)
    }
}

impl Kinds {
    /// Reads the description of a qdisc, as [`Spec`]'s [`FromStr`] does.
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] that names the wrong word and what would be right.
    pub fn spec(&self, line: &str) -> Result<Spec, ConfigError> {
        Spec::read_words(self, &mut line.split_ascii_whitespace(), false)
    }

    /// Reads the description of a qdisc, as [`Spec::with_units`] does.
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] that names the wrong word and what would be right.
    pub fn spec_with_units(&self, line: &str) -> Result<Spec, ConfigError> {
        Spec::read_words(self, &mut line.split_ascii_whitespace(), true)
    }
}

impl Spec {
    /// Reads a line as [`FromStr`] does, but refuses rates and times without a unit. `tc` reads
    /// `maxrate 8` as eight bits per second, which hardly any user means.
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] that names the wrong word and what would be right.
    pub fn with_units(line: &str) -> Result<Self, ConfigError> {
        Kinds::default().spec_with_units(line)
    }

    /// Reads a kind and its options, up to the end of the line.
    fn read_words(kinds: &Kinds, words: &mut Words<'_>, units: bool) -> Result<Self, ConfigError> {
        let Some(id) = words.next() else {
            let why = format!("the kind is missing: expected one of {}", kinds.names());
            return Err(ConfigError::new("qdisc", "", "", why));
        };
        let spec = Self::read_kind(kinds, id, words, units)?;
        spec.check()?;
        Ok(spec)
    }

    /// Reads the options of the kind `id`, one of `kinds`, up to the end of the line. Returns an
    /// error if `tc` itself would refuse them.
    pub(crate) fn read_kind(
        kinds: &Kinds,
        id: &str,
        words: &mut Words<'_>,
        units: bool,
    ) -> Result<Self, ConfigError> {
        let Some(kind) = kinds.find(id) else {
            if words.clone().next().is_none() {
                return Err(Self::unknown(kinds, id));
            }
            let why = format!("expected a qdisc kind: {}", kinds.names());
            return Err(ConfigError::new("qdisc", "", id, why));
        };
        let at = format!("qdisc {id}");
        let read = read_options(&at, kind.params, words, units, false);
        let given = read.map_err(|error| match error.key.as_str() {
            "" => ConfigError { fault: kind.unknown, ..error },
            _ => error,
        })?;
        let spec = Self { kind, given };
        match spec.check() {
            Err(error) if !matches!(error.fault, Fault::Kernel(..)) => Err(error),
            _ => Ok(spec),
        }
    }

    /// Creates the error for a kind that does not exist.
    pub(crate) fn unknown(kinds: &Kinds, id: &str) -> ConfigError {
        let why = format!("expected a qdisc kind: {}", kinds.names());
        let error = ConfigError::new("qdisc", "", id, why);
        ConfigError {
            fault: Fault::Kernel(Errno::NoEntry, Some("Specified qdisc kind is unknown")),
            ..error
        }
    }

    /// Checks all that Linux requires of a new qdisc, which is more than Linux requires of a
    /// change.
    pub(crate) fn check_new(&self, at: &str) -> Result<(), ConfigError> {
        self.check()?;
        (self.kind.quirks.check_new)(&self.values_anywhere()).map_err(|clash| ConfigError {
            fault: clash.fault,
            ..ConfigError::new("qdisc", at, self.kind.id, clash.why)
        })
    }

    /// Checks the values of the options against each other.
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] that says which option is wrong, and why.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        check(&format!("qdisc {}", self.kind.id), self.kind.check, &self.values_anywhere())
    }

    /// Whether the option `key` was given.
    pub(crate) fn is_given(&self, key: &str) -> bool {
        self.values_anywhere().is_given(key)
    }

    /// Returns the values of the options that were given, in the order of the kind's table of
    /// options.
    pub(crate) fn given(&self) -> &[Option<Value>] {
        &self.given
    }

    /// Sets the option `key` to `value`. The kind must have such an option.
    pub(crate) fn give(&mut self, key: &str, value: Value) {
        self.options().set(key, Some(value));
    }

    /// Returns the values of the options that were given, to change them.
    fn options(&mut self) -> Options<'_> {
        Options { params: self.kind.params, given: &mut self.given }
    }

    /// Makes explicit the options of a qdisc at `site` that follow from the device.
    pub(crate) fn settle(&mut self, site: Site) {
        params::fill_in(self.kind.params, &mut self.given, site);
        let before = self.clone();
        (self.kind.quirks.settle)(&before.values_at(site), &mut self.options());
    }

    /// Whether an existing qdisc of this kind can be changed by a command with these options.
    pub(crate) fn may_change(&self) -> bool {
        match self.kind.changes {
            Changes::Yes => true,
            Changes::Bare => self.given.iter().all(Option::is_none),
            Changes::No => false,
        }
    }

    /// Returns the limit that a change to these options sets in a fifo below the qdisc, or `None`
    /// if such a change sets no limit.
    pub(crate) fn limit_below(&self) -> Option<u64> {
        self.kind.quirks.limit_below.map(|limit| limit(&self.values(0)))
    }

    /// Returns the description of this qdisc after a change with the options of `other`, which must
    /// be of the same kind. The checks that `tc` makes are applied only to `other`, because `tc`
    /// does not know the options that the change leaves as they are.
    pub(crate) fn changed_by(&self, other: &Self) -> Result<Self, ConfigError> {
        let at = format!("qdisc {}", self.kind.id);
        let (before, given) = (Some(&self.given[..]), other.given.clone());
        let given = params::merged(&at, self.kind.params, before, given)?;
        let mut changed = Self { kind: self.kind, given };
        (self.kind.quirks.change)(&other.values_anywhere(), &mut changed.options());
        match changed.check() {
            Err(error) if matches!(error.fault, Fault::Kernel(..)) => Err(error),
            _ => Ok(changed),
        }
    }
}

/// The words of a line that have not been read yet.
pub(crate) type Words<'a> = std::str::SplitAsciiWhitespace<'a>;

/// Reads the options that `params` lists, up to the end of the line, or, if `stops` is true, up to
/// the first word that is no such option. If `units` is true, refuses two things that `tc` accepts
/// but hardly any user means: a number without a unit, where `tc` would assume a unit, and an
/// option given twice, where `tc` takes the last value.
pub(crate) fn read_options(
    at: &str,
    params: &'static [Param],
    words: &mut Words<'_>,
    units: bool,
    stops: bool,
) -> Result<Vec<Option<Value>>, ConfigError> {
    let mut given = vec![None; params.len()];
    while let Some(word) = words.clone().next() {
        let Some(place) = params.iter().position(|param| param.is_named(word)) else {
            if stops {
                break;
            }
            let id = at.split(' ').nth(1).unwrap_or(at);
            return Err(ConfigError::new(at, "", word, params::options(id, params)));
        };
        words.next();
        let param = &params[place];
        if let Some(value) = given[place].as_ref().filter(|_| units || param.single) {
            let mut before = String::new();
            param.write_exact(&mut before, value);
            let why = format!("given twice: the line already has {}", before.trim_start());
            return Err(ConfigError::new(at, word, "", why));
        }
        if units {
            param.check_units(at, word, words.clone())?;
        }
        let value = param.parse(at, word, words)?;
        if let (Some(fold), Value::Number(number)) = (param.folds, &value) {
            fold(params, &mut given, *number);
            continue;
        }
        let value = value.over(given[place].take(), param.unit);
        given[place] = Some(value).filter(|value| !param.is_unsaid(value));
    }
    Ok(given)
}

/// Returns an error if an option is missing that `tc` requires.
pub(crate) fn complete(
    at: &str,
    params: &[Param],
    given: &[Option<Value>],
) -> Result<(), ConfigError> {
    let missing = |(param, given): &(&Param, &Option<Value>)| {
        param.default == Default::Needed && given.is_none()
    };
    match params.iter().zip(given).find(missing) {
        None => Ok(()),
        Some((param, _)) => {
            let why = format!("it is missing: expected {}", param.expected());
            Err(ConfigError::new(at, param.key, "", why))
        }
    }
}

/// Returns an error if an option is missing, or if the values of the options contradict each other.
pub(crate) fn check(at: &str, check: Check, values: &Values<'_>) -> Result<(), ConfigError> {
    complete(at, values.params, values.given)?;
    check(values).map_err(|clash| ConfigError {
        fault: clash.fault,
        ..ConfigError::new(at, clash.key, "", clash.why)
    })
}

/// Prints the shortest line that `FromStr` reads back as the same description.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = self.kind.id.to_owned();
        for (param, value) in self.kind.params.iter().zip(&self.given) {
            if let Some(value) = value {
                param.write_exact(&mut line, value);
            }
        }
        f.write_str(&line)
    }
}

impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Spec({self})")
    }
}

impl PartialEq for Spec {
    fn eq(&self, other: &Self) -> bool {
        self.kind.id == other.kind.id && self.given == other.given
    }
}

impl Eq for Spec {}
