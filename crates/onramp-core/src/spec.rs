//! The command language of one qdisc: `fq maxrate 8mbit limit 1000`.

use std::fmt;
use std::str::FromStr;

use crate::ConfigError;
use crate::params::{Value, Values};
use crate::qdisc::{KINDS, Kind, Qdisc};

/// A qdisc as described by its user: kind and options, checked. Building it cannot fail.
///
/// Reads what stands behind `root` in `tc qdisc add dev DEVICE root …`, and nothing else.
///
/// ```
/// use onramp_core::qdisc::Spec;
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
    /// What was given, in the order of the kind's table.
    given: Vec<Option<Value>>,
}

impl Spec {
    /// The kind with all its defaults.
    #[must_use]
    pub fn new(kind: &'static Kind) -> Self {
        Self { kind, given: vec![None; kind.params.len()] }
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> &'static Kind {
        self.kind
    }

    /// The values of all parameters on a device whose largest packet has `mtu` bytes, link header
    /// included.
    #[must_use]
    pub fn values(&self, mtu: u32) -> Values<'_> {
        Values { params: self.kind.params, given: &self.given, mtu }
    }

    /// Builds the qdisc for a device whose largest packet has `mtu` bytes, link header included.
    #[must_use]
    pub fn build(&self, mtu: u32) -> Box<dyn Qdisc> {
        (self.kind.build)(&self.values(mtu))
    }

    /// The line of `tc qdisc show`, from the kind on: every parameter with its value, rounded as
    /// `tc` rounds. [`Display`](fmt::Display) is exact.
    #[must_use]
    pub fn show(&self, mtu: u32) -> String {
        let values = self.values(mtu);
        let mut line = self.kind.id.to_owned();
        for param in self.kind.params {
            if let Some(value) = values.get(param.key) {
                param.write_shown(&mut line, &value);
            }
        }
        line
    }
}

impl FromStr for Spec {
    type Err = ConfigError;

    fn from_str(line: &str) -> Result<Self, ConfigError> {
        Self::read(line, false)
    }
}

impl Spec {
    /// Reads a line as [`FromStr`] does, but takes no rate and no time without a unit: `tc` takes
    /// `maxrate 8` for eight bits a second, which nobody means.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: the word that is wrong, and what would be right.
    pub fn with_units(line: &str) -> Result<Self, ConfigError> {
        Self::read(line, true)
    }

    fn read(line: &str, units: bool) -> Result<Self, ConfigError> {
        let mut words = line.split_ascii_whitespace();
        let kinds = || KINDS.iter().map(|kind| kind.id).collect::<Vec<_>>().join(", ");
        let Some(id) = words.next() else {
            let why = format!("the kind is missing: expected one of {}", kinds());
            return Err(ConfigError::new("qdisc", "", "", why));
        };
        let Some(kind) = KINDS.iter().find(|kind| kind.id == id) else {
            let why = format!("unknown qdisc kind; there are {}", kinds());
            return Err(ConfigError::new("qdisc", "", id, why));
        };
        let at = format!("qdisc {id}");
        let mut spec = Self::new(kind);
        while let Some(word) = words.next() {
            let Some(place) = kind.params.iter().position(|param| param.names().contains(&word))
            else {
                return Err(ConfigError::new(&at, "", word, kind.options()));
            };
            let param = &kind.params[place];
            if let Some(value) = &spec.given[place] {
                let mut before = String::new();
                param.write_exact(&mut before, value);
                let why = format!("given twice: {} stands before it", before.trim_start());
                return Err(ConfigError::new(&at, word, "", why));
            }
            if units && let Some(value) = words.clone().next() {
                param.check_unit(&at, word, value)?;
            }
            spec.given[place] = Some(param.parse(&at, word, &mut words)?);
        }
        Ok(spec)
    }
}

/// The shortest line that reads back as the same.
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
