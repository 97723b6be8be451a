//! The types of devices: `ip link add … type TYPE`.

mod capture;
mod feeder;
mod frames;
mod link_end;
mod relay;
mod socket;
mod types;
mod worker;

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

use onramp_core::Device;
use onramp_dev::Null;

use onramp::BuildError;

pub(crate) use self::feeder::{Feeder, Frames};
pub use self::frames::interface_address;
pub(crate) use self::link_end::{Carried, LinkEnd};
pub use self::relay::RelayView;
pub(crate) use self::relay::{CREDITS as RELAY_CREDITS, Listener, Relay};
pub(crate) use self::types::TYPES;

use std::sync::Arc;

/// A type of devices, such as `dummy` or `veth`.
#[derive(Debug)]
pub(crate) struct Type {
    /// Name of the type.
    pub(crate) name: &'static str,
    /// Description of the type, one line.
    pub(crate) help: &'static str,
    /// Options that may follow the name of the type.
    pub(crate) options: &'static [Opt],
    /// Name that `ip link` shows for the link layer of devices of this type: `ether`, `loopback`,
    /// `none`.
    pub(crate) layer: &'static str,
    /// Flags that `ip link` shows between `<` and `>` for devices of this type, whether the device
    /// is up or not.
    pub(crate) flags: &'static [&'static str],
    /// Whether a device of this type reports whether it has a carrier. If so, `ip link` shows the
    /// state `UP` instead of `UNKNOWN`.
    pub(crate) carrier: bool,
    /// Size of the link header, bytes.
    pub(crate) header: u32,
    /// Limits and default of the mtu (the largest packet, without its link header) of devices of
    /// this type, bytes: the minimum, the default and the maximum.
    pub(crate) mtu: [u32; 3],
    /// Whether the default qdisc of such devices is `noqueue`, because they send at once or have no
    /// queue to wait in (`IFF_NO_QUEUE`).
    pub(crate) no_queue: bool,
    /// Whether such a device is always one end of a pair. If not, it is one only if the command has
    /// an option with the operand [`Operand::Peer`].
    pub(crate) always_pair: bool,
    /// Makes the parts of devices that lie below their links: one for the new device, and one for
    /// the other end if the device is one end of a pair.
    pub(crate) make: fn(&Request<'_>) -> Result<Vec<End>, Refusal>,
}

/// Returns the error for a device whose socket could not be opened, with the kernel's error text.
fn refusal(what: &str, address: SocketAddr, error: &std::io::Error) -> Refusal {
    let said = error.to_string();
    let said = said.split(" (os error").next().unwrap_or_default();
    Refusal::new(&format!("RTNETLINK answers: {said}"), format!("cannot {what} {address}"))
}

/// Returns the error for options that do not fit together.
fn invalid(why: &str) -> Refusal {
    Refusal::new("RTNETLINK answers: Invalid argument", why)
}

/// An option that devices of a type can have, and the operand that follows the option.
#[derive(Debug)]
pub(crate) struct Opt {
    pub(crate) key: &'static str,
    pub(crate) what: Operand,
    pub(crate) needed: bool,
    pub(crate) help: &'static str,
}

/// The operand of an option of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    /// An address and a port, such as `127.0.0.1:4000`.
    Address,
    /// The name of a network interface of the kernel.
    Interface,
    /// The absolute path of a file.
    File,
    /// The name of the other end of the pair, and other properties that `ip link add` accepts:
    /// `name v1 mtu 1400`.
    Peer,
    /// A whole number between `least` and `most`. Help texts call it `name`.
    Number { name: &'static str, least: u32, most: u32 },
}

impl Operand {
    /// Returns the placeholder for the operand in help texts.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Address => "ADDRESS:PORT",
            Self::Interface => "INTERFACE",
            Self::File => "FILE",
            Self::Peer => "<options>",
            Self::Number { name, .. } => name,
        }
    }
}

/// The value of an option of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Address(SocketAddr),
    Interface(String),
    File(String),
    Number(u32),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Interface(name) | Self::File(name) => name.fmt(f),
            Self::Number(number) => number.fmt(f),
        }
    }
}

/// The options that a command gave after the type of a device, each with its value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Given(pub(crate) Vec<(&'static str, Value)>);

impl Given {
    /// Returns the value that was given for the option `key`, or `None` if there is none.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(given, _)| *given == key).map(|(_, value)| value)
    }

    /// Returns the address that was given for the option `key`, or `None` if there is none.
    pub(crate) fn address(&self, key: &str) -> Option<SocketAddr> {
        match self.get(key)? {
            Value::Address(address) => Some(*address),
            Value::Interface(_) | Value::File(_) | Value::Number(_) => None,
        }
    }

    /// Returns the name of an interface that was given for the option `key`, or `None` if there is
    /// none.
    pub(crate) fn interface(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Value::Interface(name) => Some(name),
            Value::Address(_) | Value::File(_) | Value::Number(_) => None,
        }
    }

    /// Returns the file that was given for the option `key`, or `None` if there is none.
    pub(crate) fn file(&self, key: &str) -> Option<&Path> {
        match self.get(key)? {
            Value::File(path) => Some(Path::new(path)),
            Value::Address(_) | Value::Interface(_) | Value::Number(_) => None,
        }
    }

    /// Returns the least mtu of the kernel's interfaces that were given, or `None` if there are
    /// none.
    pub(crate) fn interface_mtu(&self) -> Option<u32> {
        let names = self.0.iter().filter_map(|(key, _)| self.interface(key));
        names.filter_map(|name| onramp_dev::interface_mtu(name).ok()).min()
    }

    /// Whether an interface of the kernel was given.
    pub(crate) fn has_interface(&self) -> bool {
        self.0.iter().any(|(_, value)| matches!(value, Value::Interface(_)))
    }

    /// Whether a device with these options can be made only after a device with the options `there`
    /// is closed, because both need the same address, interface or file.
    pub(crate) fn is_hindered_by(&self, there: &Self) -> bool {
        self.0.iter().any(|mine| there.0.iter().any(|other| hinders(other, mine)))
    }

    /// Returns the number that was given for the option `key`, or `None` if there is none.
    pub(crate) fn number(&self, key: &str) -> Option<u32> {
        match self.get(key)? {
            Value::Number(number) => Some(*number),
            Value::Address(_) | Value::Interface(_) | Value::File(_) => None,
        }
    }

    /// Replaces the address that was given for the option `key`.
    pub(crate) fn set(&mut self, key: &str, address: SocketAddr) {
        let places = self.0.iter_mut().filter(|(given, _)| *given == key);
        places.for_each(|(_, value)| *value = Value::Address(address));
    }
}

/// Whether an option of a device hinders the making of another device with the option `new`.
fn hinders((key, there): &(&str, Value), (new_key, new): &(&str, Value)) -> bool {
    match (there, new) {
        (Value::Address(there), Value::Address(new)) => {
            let same_ip =
                there.ip() == new.ip() || there.ip().is_unspecified() || new.ip().is_unspecified();
            // Many devices may send to one address.
            let binds = *key != "remote" && *new_key != "remote";
            binds && same_ip && there.port() == new.port() && new.port() != 0
        }
        (Value::Interface(there), Value::Interface(new)) => there == new,
        (Value::File(there), Value::File(new)) => {
            // Many devices may read a file, and a `file` that exists is refused in any case.
            let both_read = [key, new_key].iter().all(|key| ["read", "fast"].contains(key));
            !both_read && *new_key != "file" && Path::new(there) == Path::new(new)
        }
        _ => false,
    }
}

/// The properties that a new device shall have.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    /// Number of transmit queues of the device, and of the other end if the type makes pairs.
    pub(crate) queues: [usize; 2],
    /// Size of the largest packet without its link header, bytes: of the device, and of the other
    /// end if the type makes pairs.
    pub(crate) mtu: [u32; 2],
    /// Whether the device shall be one end of a pair.
    pub(crate) pair: bool,
    /// The options of the type.
    pub(crate) given: &'a Given,
}

/// The part of a device below its link: what takes the packets that the link sends.
pub(crate) struct End {
    /// The device's transmit queues.
    pub(crate) queues: Vec<Box<dyn Device>>,
    /// State that all queues of the device share.
    pub(crate) end: Arc<LinkEnd>,
    /// A socket, if the device has one, whose received datagrams the device shall send.
    pub(crate) listener: Option<Listener>,
    /// Frames from elsewhere that the device shall send, if there are any.
    pub(crate) frames: Option<Frames>,
}

/// Error: why a device could not be made, with the text that the kernel would print and a hint what
/// to do.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// The error as `ip` prints it: `RTNETLINK answers: …`, `Error: ….`
    pub(crate) said: String,
    /// Explanation of the error; may be empty.
    pub(crate) why: String,
}

impl Refusal {
    pub(crate) fn new(said: &str, why: impl Into<String>) -> Self {
        Self { said: said.to_owned(), why: why.into() }
    }
}

impl From<BuildError> for Refusal {
    fn from(error: BuildError) -> Self {
        Self::new("RTNETLINK answers: Cannot allocate memory", error.to_string())
    }
}

/// Returns stand-ins for the part below the link, for a device of this type or for both ends of a
/// pair. They are used while commands are only tried.
///
/// # Errors
///
/// The mtu that was asked for is not that of the kernel's interfaces.
pub(crate) fn trial(kind: &Type, request: &Request<'_>) -> Result<Vec<End>, Refusal> {
    if let Some(mtu) = request.given.interface_mtu() {
        let ends = &request.mtu[..1 + usize::from(request.pair)];
        if let Some(wrong) = ends.iter().find(|asked| **asked != mtu) {
            return Err(frames::other_mtu("the interface", mtu, *wrong));
        }
    }
    let end = |place: usize| {
        let mtu = request.mtu[place].saturating_add(kind.header);
        let queues =
            (0..request.queues[place]).map(|_| Box::new(Null::new(mtu)) as Box<dyn Device>);
        End { queues: queues.collect(), end: Arc::default(), listener: None, frames: None }
    };
    Ok((0..1 + usize::from(request.pair)).map(end).collect())
}

/// Returns the type with this name, or `None` if there is none.
pub(crate) fn find(name: &str) -> Option<&'static Type> {
    TYPES.iter().find(|kind| kind.name == name)
}
