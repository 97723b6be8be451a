//! The command `ip link add`.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use onramp_core::{Facts, Setup};

use super::ask::{Ask, check_address};
use super::words::{Fault, Words, numbered, splits};
use super::{Done, begins, help, show};
use crate::What;
use crate::device::{
    self, Feeder, Given, LinkEnd, Listener, Operand, Refusal, Relay, Request, Type, Value,
};
use crate::follow::List;
use crate::netdev::{DEFAULT_LENGTH, NAME_MAX, Netdev, Netdevs, default_qdisc};
use onramp::{Link, LinkBuilder};

pub(super) fn run(devices: &mut Netdevs, words: &mut Words<'_>) -> Done {
    let ask = Ask::read(words)?;
    if ask.dev.is_some() && ask.name.is_some_and(|name| Some(name) != ask.dev) {
        let why = "both \"name\" and \"dev\" cannot be used when creating devices.";
        return Err(Fault::said(255, why));
    }
    let Some(kind) = ask.kind else { return Err(Fault::missing(1, "type", "")) };
    let Some(kind) = device::find(kind) else {
        let names: Vec<&str> = device::TYPES.iter().map(|kind| kind.name).collect();
        let why = format!("{kind:?}: expected one of {}", names.join(", "));
        return Err(Fault::kernel("Error: Unknown device type.", &why));
    };
    let (given, peer) = options(kind, words)?;
    let pair = kind.always_pair || peer.is_some();
    let first = Wanted::new(kind, &ask, &given)?;
    let second = Wanted::new(kind, &peer.unwrap_or_default(), &given)?;
    let request = Request {
        queues: [first.queues, second.queues],
        mtu: [first.mtu, second.mtu],
        pair,
        given: &given,
    };
    create(devices, kind, [first, second], &given, &request)?;
    Ok(String::new())
}

/// Reads the words after the type: the options of the type.
fn options<'a>(
    kind: &'static Type,
    words: &mut Words<'a>,
) -> Result<(Given, Option<Ask<'a>>), Fault> {
    let (mut given, mut peer) = (Given::default(), None);
    let usage = || Fault::said(1, help::of(kind).trim_end());
    while let Some(word) = words.next() {
        let option = kind.options.iter().find(|option| option.key == word).ok_or_else(usage)?;
        match option.what {
            Operand::Peer => {
                let others = kind.options.iter().filter(|option| option.what != Operand::Peer);
                let ask = Ask::read_until(words, |word| others.clone().any(|it| it.key == word))?;
                if let Some(kind) = ask.kind {
                    return Err(Fault::again("type", kind));
                }
                if peer.replace(ask).is_some() {
                    return Err(Fault::again(option.key, words.peek().unwrap_or_default()));
                }
            }
            what => {
                let word = words.value()?;
                let value = value(what, word).map_err(|why| {
                    Fault::argument(word, &format!("Invalid \"{}\" value: {why}", option.key))
                })?;
                if given.get(option.key).is_some() {
                    return Err(Fault::again(option.key, word));
                }
                given.0.push((option.key, value));
            }
        }
    }
    for option in kind.options.iter().filter(|option| option.needed) {
        if given.get(option.key).is_none() {
            return Err(Fault::missing(1, option.key, ""));
        }
    }
    Ok((given, peer))
}

/// Reads the operand of an option. If it is wrong, returns an error that says what is expected.
fn value(what: Operand, word: &str) -> Result<Value, String> {
    match what {
        Operand::Number { least, most, .. } => {
            let number = word.parse().ok().filter(|number| (least..=most).contains(number));
            number.map(Value::Number).ok_or_else(|| format!("expected {least} to {most}"))
        }
        // With a `%`, the kernel would choose another name; with a `/`, it has none.
        Operand::Interface
            if (1..=NAME_MAX).contains(&word.len())
                && !word.contains(['%', '/'])
                && !splits(word) =>
        {
            Ok(Value::Interface(word.to_owned()))
        }
        Operand::Interface => Err(format!(
            "expected a name of at most {NAME_MAX} bytes, without %, /, spaces, quotes, # and \\"
        )),
        Operand::File if word.starts_with('/') && !splits(word) => Ok(Value::File(word.to_owned())),
        Operand::File => {
            Err("expected an absolute path without spaces, quotes, # and \\, because \
                              the daemon has a directory of its own"
                .to_owned())
        }
        Operand::Address | Operand::Peer => {
            let alone = || word.parse::<IpAddr>().map(|address| SocketAddr::new(address, 0));
            let address = word.parse().or_else(|_| alone()).map(Value::Address);
            let expected = "expected an address and a port, such as 127.0.0.1:4000";
            address.map_err(|_| expected.to_owned())
        }
    }
}

/// The properties of a new device that a command asks for.
#[derive(Debug)]
struct Wanted {
    name: Option<String>,
    index: Option<u32>,
    up: bool,
    mtu: u32,
    txqueuelen: u32,
    queues: usize,
    address: Option<[u8; 6]>,
}

impl Wanted {
    fn new(kind: &Type, ask: &Ask<'_>, given: &Given) -> Result<Self, Fault> {
        let mtu = match ask.mtu {
            None => given.interface_mtu().unwrap_or(kind.mtu[1]),
            Some(mtu) => {
                let fits = |mtu: &u32| mtu_fault(kind, *mtu).is_none();
                let wrong = || {
                    let why = format!("mtu {mtu}: {}", mtu_range(kind));
                    Fault::kernel("RTNETLINK answers: Invalid argument", &why)
                };
                u32::try_from(mtu).ok().filter(fits).ok_or_else(wrong)?
            }
        };
        ask.address.map_or(Ok(()), check_address)?;
        let asked = ask.numtxqueues.unwrap_or(1);
        let queues = u16::try_from(asked).ok().filter(|queues| *queues > 0).ok_or_else(|| {
            let why = format!("numtxqueues {asked}: expected 1 to {}", u16::MAX);
            Fault::kernel("Error: Invalid number of transmit queues.", &why)
        })?;
        Ok(Self {
            name: ask.name.or(ask.dev).map(str::to_owned),
            index: ask.index,
            up: ask.up.unwrap_or(false),
            mtu,
            txqueuelen: ask.txqueuelen.unwrap_or(DEFAULT_LENGTH),
            queues: queues.into(),
            address: ask.address,
        })
    }
}

/// Returns the kernel's error text for an mtu that devices of this type cannot have, or `None` if
/// they can have it.
pub(super) fn mtu_fault(kind: &Type, mtu: u32) -> Option<&'static str> {
    let [least, _, most] = kind.mtu;
    if mtu < least {
        Some("Error: mtu less than device minimum.")
    } else if (1..mtu).contains(&most) {
        Some("Error: mtu greater than device maximum.")
    } else {
        None
    }
}

pub(super) fn mtu_range(kind: &Type) -> String {
    match kind.mtu {
        [least, _, 0] => format!("{} allows {least} or more", kind.name),
        [least, _, most] => format!("{} allows {least} to {most}", kind.name),
    }
}

/// Makes the device that a command asks for and, if its type makes pairs, the other end. If one of
/// them cannot be made, makes none.
fn create(
    devices: &mut Netdevs,
    kind: &'static Type,
    wanted: [Wanted; 2],
    given: &Given,
    request: &Request<'_>,
) -> Result<(), Fault> {
    let names = names(devices, kind, &wanted, request.pair)?;
    let make = if devices.is_trial { device::trial(kind, request) } else { (kind.make)(request) };
    let ends = make?;
    let (mut made, mut listener) = (Vec::<Netdev>::new(), None);
    for ((mut end, wanted), name) in ends.into_iter().zip(wanted).zip(names) {
        // The options belong to the first end of a pair.
        let given = if made.is_empty() { given.clone() } else { Given::default() };
        let listens = end.listener.take();
        let relays = listens.is_some() || listener.is_some();
        listener = listener.or(listens);
        let tree = Setup::with_kinds(devices.kinds.clone());
        let link = builder(kind, end.queues, tree, wanted.txqueuelen, relays);
        let link = devices.catch_up.iter().fold(link, |link, catch_up| link.catch_up(*catch_up));
        let link = devices.slack.iter().fold(link, |link, slack| link.slack(*slack));
        let mut device = build(kind, (end.end, link), wanted, name, given)?;
        let feeder = end.frames.map(|frames| Feeder::start(frames, &device.link));
        device.feeder = feeder.transpose().map_err(|error| no_thread(&error))?;
        made.push(device);
    }
    if let Some(listener) = listener {
        relay(&mut made, listener)?;
    }
    made.iter().for_each(|device| device.end.filter_by(&device.link));
    // The second end of a pair gets its device number before the first end, as in Linux.
    for index in (0..made.len()).rev() {
        if made[index].index == 0 {
            made[index].index = devices.new_index();
        }
    }
    if let [one, two] = &mut made[..] {
        (one.peer, two.peer) = (Some(two.index), Some(one.index));
    }
    for device in made.into_iter().rev() {
        let name = device.name.clone();
        devices.add(device);
        show::tell(devices, What::Added, &name);
    }
    Ok(())
}

/// Returns the names of the device and of the other end: names that the command gave, or free ones.
fn names(
    devices: &Netdevs,
    kind: &Type,
    wanted: &[Wanted; 2],
    pair: bool,
) -> Result<[String; 2], Fault> {
    let exists = |why: String| Fault::kernel("RTNETLINK answers: File exists", &why);
    let pattern = format!("{}%d", kind.name);
    let [first, second] =
        wanted.each_ref().map(|wanted| wanted.name.as_deref().unwrap_or(&pattern));
    // The second end of a pair gets its name before the first end, as in Linux.
    let second = if pair { numbered(devices, second, first)? } else { String::new() };
    let first = numbered(devices, first, &second)?;
    let taken = |name: &str| devices.get(name).is_some();
    if taken(&first) || (pair && (taken(&second) || first == second)) {
        let name = if taken(&first) { &first } else { &second };
        return Err(exists(format!("a device {name:?} exists already")));
    }
    for index in wanted.iter().filter_map(|wanted| wanted.index) {
        if devices.is_trial {
            let why = "a configuration cannot choose the index, because a device that has to be \
                       made again gets a new one: leave out index";
            return Err(Fault::kernel("RTNETLINK answers: Operation not supported", why));
        }
        if !devices.is_fresh(index) {
            return Err(exists(format!("index {index} belongs, or belonged, to another device")));
        }
    }
    Ok([first, second])
}

/// Makes a device of the part below its link, and of the builder for this link.
fn build(
    kind: &'static Type,
    (end, link): (Arc<LinkEnd>, LinkBuilder),
    wanted: Wanted,
    name: String,
    given: Given,
) -> Result<Netdev, Fault> {
    let link = link.build().map_err(|error| Fault::from(Refusal::from(error)))?;
    end.set_up(wanted.up);
    Ok(Netdev {
        address: wanted.address.unwrap_or_else(|| new_address(kind)),
        is_address_given: wanted.address.is_some(),
        is_configured: false,
        name,
        index: wanted.index.unwrap_or(0),
        kind,
        given,
        up: wanted.up,
        was_up: wanted.up,
        mtu: wanted.mtu,
        txqueuelen: wanted.txqueuelen,
        queues: wanted.queues,
        peer: None,
        link,
        end,
        relay: None,
        feeder: None,
        followers: List::default(),
    })
}

/// Starts the relay of a new device. If the device has a peer, the answers go through the peer.
fn relay(made: &mut [Netdev], listener: Listener) -> Result<(), Fault> {
    let Some((device, others)) = made.split_first_mut() else { return Ok(()) };
    let back = others.first().map(|peer| &peer.link);
    let relay = Relay::start(listener, &device.link, back).map_err(|error| no_thread(&error))?;
    if let Some(address) = relay.address() {
        // Store the address with the port number that the kernel chose, if the command left the
        // choice to the kernel.
        device.given.set("listen", address);
    }
    device.relay = Some(relay);
    Ok(())
}

fn no_thread(error: &std::io::Error) -> Fault {
    let why = format!("cannot start a thread: {error}");
    Fault::kernel("RTNETLINK answers: Cannot allocate memory", &why)
}

/// Returns a builder for the link of a new device. The default qdisc follows from the device's
/// type, `txqueuelen` and number of queues.
fn builder(
    kind: &Type,
    queues: Vec<Box<dyn onramp::Device>>,
    mut tree: Setup,
    txqueuelen: u32,
    relays: bool,
) -> LinkBuilder {
    let count = queues.len();
    let fallback = default_qdisc(kind, txqueuelen, count).parse().ok();
    tree.of_device("new", Facts { fallback, ..Facts::default() });
    let link = Link::devices(queues).ports_max(count).tree(&tree).measure(true);
    if relays { link.credits(device::RELAY_CREDITS) } else { link }
}

/// Returns a random hardware address: locally administered, and not a group address.
fn new_address(kind: &Type) -> [u8; 6] {
    if !begins(kind.layer, "ether") {
        return [0; 6];
    }
    let [a, b, c, d, e, f, ..] = RandomState::new().hash_one(0).to_be_bytes();
    [(a & 0xFC) | 0x02, b, c, d, e, f]
}
