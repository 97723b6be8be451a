//! The command `ip link show`.

use std::fmt::Write as _;

use onramp_core::show::{Out, Style};

use super::words::{Fault, Words};
use super::{Done, Options};
use crate::What;
use crate::device::{Carried, RelayView, Value};
use crate::netdev::{Netdev, Netdevs};

/// Which devices the command `ip link show` shows.
#[derive(Debug, Default)]
struct Filter<'a> {
    name: Option<&'a str>,
    up: bool,
    kind: Option<&'a str>,
    /// Whether the command asked for a property that no device of this host has: a group other than
    /// the default, or a master.
    none: bool,
}

impl<'a> Filter<'a> {
    fn read(words: &mut Words<'a>) -> Result<Self, Fault> {
        let mut filter = Self::default();
        while let Some(word) = words.next() {
            match word {
                "up" => filter.up = true,
                "type" => filter.kind = Some(words.value()?),
                "group" => filter.none |= !matches!(words.value()?, "default" | "0"),
                "master" | "vrf" => {
                    words.value()?;
                    filter.none = true;
                }
                "nomaster" => {}
                "help" => return Err(Fault::usage(&super::help::link())),
                _ => {
                    let name = if word == "dev" { words.value()? } else { word };
                    if filter.name.replace(name).is_some() {
                        return Err(Fault::twice("dev", name));
                    }
                }
            }
        }
        Ok(filter)
    }

    fn takes(&self, device: &Netdev) -> bool {
        !self.none
            && (device.up || !self.up)
            && self.kind.is_none_or(|kind| kind == device.kind.name)
    }
}

pub(super) fn run(devices: &Netdevs, words: &mut Words<'_>, options: Options) -> Done {
    let filter = Filter::read(words)?;
    let missing = |name| Fault::said(1, format!("Device \"{name}\" does not exist."));
    let one = match filter.name {
        Some(name) => Some(devices.get(name).ok_or_else(|| missing(name))?),
        None => None,
    };
    let all = one.is_none();
    let mut out = Out::new(options.style);
    for device in one.into_iter().chain(devices.iter().filter(|_| all)) {
        // Like iproute2, write an empty JSON object for each device that is not shown.
        out.open(None);
        if filter.takes(device) {
            match options.brief {
                true => brief(devices, device, &mut out),
                false => entry(devices, device, options, &mut out),
            }
        }
        out.close();
    }
    Ok(out.finish())
}

/// Records an event of a device, for the host's listeners, with the line that `ip` shows for the
/// device.
pub(super) fn tell(devices: &mut Netdevs, what: What, name: &str) {
    let Some(device) = devices.get(name) else { return };
    let mut out = Out::new(Style::default());
    head(devices, device, &mut out);
    let line = out.finish().trim_end().to_owned();
    devices.happened.push((what, name.to_owned(), line));
}

/// The parts of a device's output that depend on the state of its peer.
struct State<'a> {
    peer: Option<&'a str>,
    flags: Vec<&'static str>,
    word: &'static str,
}

impl<'a> State<'a> {
    fn of(devices: &'a Netdevs, device: &Netdev) -> Self {
        let peer = device.peer.and_then(|peer| devices.by_index(peer));
        let is_apart = device.end.is_gone() || peer.is_some_and(|peer| !peer.up);
        let cut = device.kind.carrier && is_apart;
        let mut flags = Vec::new();
        if device.up && cut {
            flags.push("NO-CARRIER");
        }
        flags.extend_from_slice(device.kind.flags);
        if device.up {
            flags.push("UP");
        }
        if device.up && !cut {
            flags.push("LOWER_UP");
        }
        if cut {
            flags.push("M-DOWN");
        }
        let word = match (device.up, cut, device.kind.carrier) {
            (false, ..) => "DOWN",
            (true, true, _) => "LOWERLAYERDOWN",
            (true, false, true) => "UP",
            (true, false, false) => "UNKNOWN",
        };
        Self { peer: peer.map(|peer| &*peer.name), flags, word }
    }

    fn show_name(&self, device: &Netdev, out: &mut Out) {
        if let Some(peer) = self.peer {
            out.json(|json| json.string(Some("link"), peer));
        }
        out.json(|json| json.string(Some("ifname"), &device.name));
    }

    /// Returns the device's name in the form in which text output shows it, with its peer: `v0@v1`.
    fn name(&self, device: &Netdev) -> String {
        match self.peer {
            Some(peer) => format!("{}@{peer}", device.name),
            None => device.name.clone(),
        }
    }

    fn show_flags(&self, out: &mut Out) {
        out.text(format_args!("<{}> ", self.flags.join(",")));
        out.json(|json| {
            json.open_array(Some("flags"));
            for flag in &self.flags {
                json.string(None, flag);
            }
            json.close_array();
        });
    }
}

/// Writes a hardware address as commands do: `02:00:00:00:00:01`.
pub(crate) fn address(bytes: [u8; 6]) -> String {
    let mut text = String::new();
    for byte in bytes {
        let colon = if text.is_empty() { "" } else { ":" };
        let _ = write!(text, "{colon}{byte:02x}");
    }
    text
}

/// Writes the line of a device for `-br` (brief): name, state, address and flags.
fn brief(devices: &Netdevs, device: &Netdev, out: &mut Out) {
    let state = State::of(devices, device);
    state.show_name(device, out);
    out.text(format_args!("{:<16} ", state.name(device)));
    out.string("operstate", state.word, format_args!("{:<14} ", state.word));
    if device.kind.layer != "none" {
        let own = address(device.address);
        out.string("address", &own, format_args!("{own} "));
    }
    state.show_flags(out);
    out.text(format_args!("\n"));
}

fn entry(devices: &Netdevs, device: &Netdev, options: Options, out: &mut Out) {
    if options.one_line && !out.is_json() {
        let mut whole = Out::new(options.style);
        entry(devices, device, Options { one_line: false, ..options }, &mut whole);
        let text = whole.finish();
        out.text(format_args!("{}\n", text.trim_end_matches('\n').replace('\n', "\\")));
        return;
    }
    head(devices, device, out);
    layer(device, out);
    if options.style.details {
        details(device, out);
    }
    out.text(format_args!("\n"));
    if options.style.stats {
        stats(device, out);
    }
}

/// Writes the first line of a device's output.
fn head(devices: &Netdevs, device: &Netdev, out: &mut Out) {
    let state = State::of(devices, device);
    let Netdev { index, mtu, txqueuelen, .. } = *device;
    out.uint("ifindex", index.into(), format_args!("{index}: "));
    state.show_name(device, out);
    out.text(format_args!("{}: ", state.name(device)));
    state.show_flags(out);
    out.uint("mtu", mtu.into(), format_args!("mtu {mtu} "));
    let qdisc = device.qdisc();
    out.string("qdisc", qdisc, format_args!("qdisc {qdisc} "));
    out.string("operstate", state.word, format_args!("state {} ", state.word));
    out.string("linkmode", "DEFAULT", format_args!("mode DEFAULT "));
    out.string("group", "default", format_args!("group default "));
    // Like iproute2, show the queue length as a signed number.
    let length = txqueuelen.cast_signed();
    if length != 0 {
        out.int("txqlen", length.into(), format_args!("qlen {length}"));
    }
    out.text(format_args!("\n"));
}

/// Writes the type of the link layer and its addresses, if the device has any.
fn layer(device: &Netdev, out: &mut Out) {
    let layer = device.kind.layer;
    out.string("link_type", layer, format_args!("    link/{layer} "));
    if layer == "none" {
        return;
    }
    let own = address(device.address);
    out.string("address", &own, format_args!("{own}"));
    let all = address(if layer == "ether" { [0xFF; 6] } else { [0; 6] });
    out.string("broadcast", &all, format_args!(" brd {all}"));
}

/// Writes what `-d` (details) adds to a device's output.
fn details(device: &Netdev, out: &mut Out) {
    let [least, _, most] = device.kind.mtu;
    let space = if device.kind.layer == "none" { "" } else { " " };
    out.uint("promiscuity", 0, format_args!("{space}promiscuity 0 "));
    out.uint("allmulti", 0, format_args!(" allmulti 0 "));
    out.uint("min_mtu", least.into(), format_args!("minmtu {least} "));
    out.uint("max_mtu", most.into(), format_args!("maxmtu {most} "));
    out.text(format_args!("\n    "));
    out.open(Some("linkinfo"));
    out.string("info_kind", device.kind.name, format_args!("{} ", device.kind.name));
    if !device.given.0.is_empty() {
        out.open(Some("info_data"));
        for (key, value) in &device.given.0 {
            let text = format_args!("{key} {value} ");
            match value {
                Value::Address(_) | Value::Interface(_) | Value::File(_) => {
                    out.string(key, &value.to_string(), text);
                }
                Value::Number(number) => out.uint(key, u64::from(*number), text),
            }
        }
        for (key, said) in device.end.notes() {
            out.string(key, &said, format_args!("{key} \"{said}\" "));
        }
        out.close();
    }
    out.close();
    let queues = device.queues as u64;
    out.uint("num_tx_queues", queues, format_args!("numtxqueues {queues} "));
    out.uint("num_rx_queues", 1, format_args!("numrxqueues 1 "));
}

/// The columns of counters for one direction, which `-s` shows: each with its key in JSON and its
/// heading in text.
type Columns = [(&'static str, &'static str); 6];

const RECEIVED: Columns = [
    ("bytes", "bytes"),
    ("packets", "packets"),
    ("errors", "errors"),
    ("dropped", "dropped"),
    ("over_errors", "missed"),
    ("multicast", "mcast"),
];
const SENT: Columns = [
    ("bytes", "bytes"),
    ("packets", "packets"),
    ("errors", "errors"),
    ("dropped", "dropped"),
    ("carrier_errors", "carrier"),
    ("collisions", "collsns"),
];

fn stats(device: &Netdev, out: &mut Out) {
    let counters = device.counters();
    let (received, sent) =
        (numbers(counters.received, 0), numbers(counters.sent, counters.sent_errors));
    // Each column is as wide as its widest number, in either direction.
    let least = [10, 7, 6, 7, 7, 7];
    let digits = |number: u64| number.to_string().len();
    let widths: [usize; 6] =
        std::array::from_fn(|i| least[i].max(digits(received[i])).max(digits(sent[i])));
    out.open(Some("stats64"));
    direction("rx", &RECEIVED, received, widths, out);
    direction("tx", &SENT, sent, widths, out);
    out.close();
    if let Some(relay) = &device.relay {
        self::relay(&relay.view(), out);
    }
}

/// Writes the counters of a device's relay.
fn relay(view: &RelayView, out: &mut Out) {
    let RelayView { clients, clients_max, forgotten, errors, answers, answer_bytes, .. } = *view;
    out.open(Some("relay"));
    out.uint("clients", clients, format_args!("    relay: clients {clients}"));
    out.uint("clients_max", clients_max, format_args!(" of {clients_max}"));
    out.uint("forgotten", forgotten, format_args!(", forgotten {forgotten}"));
    out.uint("errors", errors, format_args!(", errors {errors}"));
    refused(&view.refused, out);
    out.open(Some("answers"));
    out.uint("packets", answers, format_args!("\n    answers: packets {answers}"));
    out.uint("bytes", answer_bytes, format_args!(" bytes {answer_bytes}"));
    refused(&view.answers_refused, out);
    out.close();
    out.close();
    out.text(format_args!("\n"));
}

/// Writes how many datagrams were refused for each reason that occurred.
fn refused(counts: &[(&'static str, u64)], out: &mut Out) {
    out.open(Some("refused"));
    let mut before = ", refused:";
    for (reason, count) in counts {
        out.uint(reason, *count, format_args!("{before} {reason} {count}"));
        before = ",";
    }
    out.close();
}

const fn numbers(carried: Carried, errors: u64) -> [u64; 6] {
    [carried.bytes, carried.packets, errors, carried.dropped, 0, 0]
}

fn direction(key: &str, columns: &Columns, numbers: [u64; 6], widths: [usize; 6], out: &mut Out) {
    let mut line = format!("    {}: ", key.to_uppercase());
    for (place, (_, head)) in columns.iter().enumerate() {
        let width = if place == 0 { widths[0] - 4 } else { widths[place] };
        let _ = write!(line, "{head:>width$} ");
    }
    out.text(format_args!("{line}{:10}\n    ", ""));
    out.open(Some(key));
    for (place, (name, _)) in columns.iter().enumerate() {
        let (number, width) = (numbers[place], widths[place]);
        out.uint(name, number, format_args!("{number:>width$} "));
    }
    out.close();
    out.text(format_args!("\n"));
}
