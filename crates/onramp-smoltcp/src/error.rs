//! Reading descriptions of trees, and what can be wrong with a device or a tree.

use std::fmt;

use onramp_core::{ConfigError, Setup, Spec, Tree};
use onramp_queue::{Layer, PAYLOAD_MAX};
use smoltcp::phy::Medium;

/// Reads the description of a tree: one qdisc, such as `netem delay 20ms rate 10mbit`, or the lines
/// of `tc` that set it up, each beginning with `qdisc`, `class` or `filter` (and `tc`, if you
/// like). Empty lines and comments (`#`) do nothing. For a tree with kinds of your own, use
/// [`Setup`] directly. Filters at the ingress are refused, because frames only leave through a
/// tree.
///
/// # Errors
///
/// A [`ConfigError`] that names the wrong word and what would be right.
///
/// ```
/// let one = onramp_smoltcp::setup("fq_codel")?;
/// let several = onramp_smoltcp::setup(
///     "qdisc add dev eth0 root handle 1: htb default 10
///      class add dev eth0 parent 1: classid 1:10 htb rate 10mbit
///      qdisc add dev eth0 parent 1:10 fq_codel",
/// )?;
/// assert_eq!((one.root_id(), several.root_id()), (Some("fq_codel"), Some("htb")));
/// # Ok::<(), onramp_smoltcp::ConfigError>(())
/// ```
pub fn setup(text: &str) -> Result<Setup, ConfigError> {
    let first = text.split_ascii_whitespace().next().unwrap_or_default();
    if !["tc", "qdisc", "class", "filter"].contains(&first) && !first.starts_with('#') {
        return Ok(Setup::of(Spec::with_units(text)?));
    }
    let mut setup = Setup::default();
    for line in text.lines() {
        setup.apply_leaving(line)?;
    }
    setup.with_root()?;
    Ok(setup)
}

/// Why a device or a pair of devices could not be made.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The description has no qdisc at the root.
    Tree(ConfigError),
    /// The medium is neither Ethernet nor IP, so that qdiscs cannot read the frames.
    Medium,
    /// The device's frames can be larger than 65,535 bytes, the most that a packet carries.
    Mtu(usize),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tree(error) => error.fmt(f),
            Self::Medium => f.write_str(
                "the medium of the device is neither Ethernet nor IP; put the tree in front of a \
                 device of one of these media",
            ),
            Self::Mtu(mtu) => write!(
                f,
                "the device's max_transmission_unit is {mtu}, but a packet carries at most \
                 {PAYLOAD_MAX} bytes; give the device a smaller one"
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Tree(error) => Some(error),
            Self::Medium | Self::Mtu(_) => None,
        }
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::Tree(error)
    }
}

/// Returns the layer at which the frames of a medium begin.
pub(crate) fn layer(medium: Medium) -> Result<Layer, Error> {
    // smoltcp has only the media of its features, which another crate may have switched on.
    if medium == Medium::Ethernet {
        Ok(Layer::Ethernet)
    } else if medium == Medium::Ip {
        Ok(Layer::Ip)
    } else {
        Err(Error::Medium)
    }
}

/// Builds a tree for frames of at most `mtu` bytes.
pub(crate) fn build(setup: &Setup, mtu: usize, seed: u64) -> Result<Tree, Error> {
    let fits = u32::try_from(mtu).ok().filter(|_| mtu <= PAYLOAD_MAX);
    let mtu = fits.ok_or(Error::Mtu(mtu))?;
    setup.with_root()?;
    Ok(Tree::of(setup, mtu, seed).expect("the description has a root"))
}
