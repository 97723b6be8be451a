//! The types of devices: `ip link add … type TYPE`.

mod link_end;
mod relay;
mod types;

use std::net::SocketAddr;

use onramp_core::Device;
use onramp_dev::Null;

use onramp::BuildError;

pub(crate) use self::link_end::{Carried, LinkEnd};
pub(crate) use self::relay::{Listener, Relay};
pub(crate) use self::types::TYPES;

use std::sync::Arc;

/// A type of devices.
#[derive(Debug)]
pub(crate) struct Type {
    /// Its name.
    pub(crate) name: &'static str,
    /// One line for people.
    pub(crate) help: &'static str,
    /// The words that may follow its name.
    pub(crate) options: &'static [Opt],
    /// How `ip link` shows its link layer: `ether`, `loopback`, `none`.
    pub(crate) layer: &'static str,
    /// What `ip link` shows of it between `<` and `>` whether it is up or not.
    pub(crate) flags: &'static [&'static str],
    /// Whether it knows that its wire works: it is `UP` then, and not of `UNKNOWN` state.
    pub(crate) carrier: bool,
    /// Bytes of its link header.
    pub(crate) header: u32,
    /// Largest packet without its link header, bytes: the least, the default, and the most.
    pub(crate) mtu: [u32; 3],
    /// Whether its default is `noqueue`: it sends at once, or there is nowhere to wait
    /// (`IFF_NO_QUEUE`).
    pub(crate) no_queue: bool,
    /// Makes what is below the links: of the device, and of the other end of a pair.
    pub(crate) make: fn(&Request<'_>) -> Result<Vec<End>, Refusal>,
}

/// A word that may follow a type's name, and what follows it.
#[derive(Debug)]
pub(crate) struct Opt {
    pub(crate) key: &'static str,
    pub(crate) what: Operand,
    pub(crate) needed: bool,
    pub(crate) help: &'static str,
}

/// What follows an option of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    /// An address and a port: `127.0.0.1:4000`.
    Address,
    /// The other end's name and what `ip link add` says of a device: `name v1 mtu 1400`.
    Peer,
}

/// The options of a type that were given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Given(pub(crate) Vec<(&'static str, SocketAddr)>);

impl Given {
    /// The address behind `key`.
    pub(crate) fn address(&self, key: &str) -> Option<SocketAddr> {
        self.0.iter().find(|(given, _)| *given == key).map(|(_, address)| *address)
    }

    /// Puts another address in the place of that behind `key`.
    pub(crate) fn set(&mut self, key: &str, address: SocketAddr) {
        self.0.iter_mut().filter(|(given, _)| *given == key).for_each(|place| place.1 = address);
    }
}

/// What a device of a type shall be.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    /// Transmit queues: of the device, and of the other end of a pair.
    pub(crate) queues: [usize; 2],
    /// Largest packets without the link header: of the device, and of the other end.
    pub(crate) mtu: [u32; 2],
    /// The options of the type.
    pub(crate) given: &'a Given,
}

/// What is below a link.
pub(crate) struct End {
    /// Its transmit queues.
    pub(crate) queues: Vec<Box<dyn Device>>,
    /// What they share.
    pub(crate) end: Arc<LinkEnd>,
    /// What the device shall send of what arrives from outside.
    pub(crate) listener: Option<Listener>,
}

/// Why a device could not be made: what the kernel would have said, and what is to be done.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// As `ip` prints it: `RTNETLINK answers: …`, `Error: ….`
    pub(crate) said: String,
    /// More of it; may be empty.
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

/// What stands for a device, or both ends of a pair, of this type while commands are tried.
pub(crate) fn trial(kind: &Type, request: &Request<'_>) -> Vec<End> {
    let is_pair = kind.options.iter().any(|option| option.what == Operand::Peer);
    let end = |place: usize| {
        let mtu = request.mtu[place].saturating_add(kind.header);
        let queues =
            (0..request.queues[place]).map(|_| Box::new(Null::new(mtu)) as Box<dyn Device>);
        End { queues: queues.collect(), end: Arc::default(), listener: None }
    };
    (0..1 + usize::from(is_pair)).map(end).collect()
}

/// The type of this name.
pub(crate) fn find(name: &str) -> Option<&'static Type> {
    TYPES.iter().find(|kind| kind.name == name)
}
