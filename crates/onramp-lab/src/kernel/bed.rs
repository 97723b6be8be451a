//! The test bed on the kernel's side: a separate network namespace with a device that swallows
//! packets.
//!
//! Nothing needs to be removed after a run. The namespace belongs to one thread and the threads
//! that it starts. When these threads end, the namespace disappears and takes its device along,
//! even after a failure, Ctrl-C or a kill.

use std::fs;
use std::io::ErrorKind;
use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::LinkAddr;
use serde_json::Value;

use crate::Error;

/// Name of the device that swallows packets.
const NAME: &str = "swallow";
/// Name of the device's other end, if the device is a pair (`veth`).
const PEER: &str = "beyond";
/// How long to wait for packets that a qdisc still holds to leave the qdisc.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long to sleep between two checks whether the qdisc still holds packets.
const LOOK: Duration = Duration::from_millis(2);

/// A kind of Linux device that takes packets and sends them nowhere.
#[derive(Debug)]
pub(super) struct Kind {
    /// Name of the kind for `ip link`.
    id: &'static str,
    /// Further arguments of `ip link add`.
    options: &'static str,
    /// The fields of the device's line in `/proc/net/dev` that together count the packets that the
    /// device took.
    counters: &'static [usize],
}

/// The kinds of devices to try, cheapest first.
pub(super) const DEVICES: [Kind; 3] = [
    Kind { id: "dummy", options: "", counters: &[TX_PACKETS] },
    // An ifb forwards packets that an action redirected to it. It counts any other packet as
    // received and drops it.
    Kind { id: "ifb", options: "", counters: &[RX_PACKETS] },
    // The peer of a veth device gets every packet. It has no address, so the kernel drops the
    // packet there, in a softirq that runs on the sender's processor.
    Kind { id: "veth", options: " peer name beyond", counters: &[TX_PACKETS, TX_DROPPED] },
];

/// Indices of the fields of a device's line in `/proc/net/dev`, not counting the device's name.
const RX_PACKETS: usize = 1;
const TX_PACKETS: usize = 9;
const TX_DROPPED: usize = 11;

/// The network namespace of the calling thread, with its device.
#[derive(Debug)]
pub(super) struct Bed {
    kind: &'static Kind,
    /// The link address that packets are sent to.
    pub(super) address: LinkAddr,
}

/// A root qdisc that the kernel confirmed to be on the device.
#[derive(Debug)]
pub(super) struct Laid<'a> {
    bed: &'a Bed,
    kind: String,
}

/// A root qdisc's own counters, as `tc` reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Number of packets that the qdisc dropped.
    pub(crate) drops: u64,
    /// Number of packets that the qdisc holds.
    pub(crate) packets: u64,
}

/// The only class of `htb`; the qdisc puts all packets into it.
const CLASS: &str = "1:1";

/// Returns the `tc` commands that install `qdisc` at the root of a device that has no qdisc yet.
pub(super) fn lines(qdisc: &str) -> Vec<String> {
    let root = |qdisc: &str| format!("qdisc replace dev {NAME} root {qdisc}");
    match qdisc {
        // A rate far above any rate that a sender can reach, because the experiment measures cost
        // and not shaping.
        "htb" => {
            let class = "htb rate 100gbit ceil 100gbit burst 1mb cburst 1mb quantum 60000";
            let class = format!("class add dev {NAME} parent 1: classid {CLASS} {class}");
            vec![root("handle 1: htb default 1"), class]
        }
        qdisc => vec![root(qdisc)],
    }
}

impl Bed {
    /// Moves the calling thread into a network namespace of its own, and makes a device there: the
    /// first of `kinds` that this kernel has. The error text says what failed and what to do about
    /// it.
    pub(super) fn lay(kinds: &'static [Kind]) -> Result<Self, String> {
        for program in ["ip", "tc"] {
            output(program, "-V")?;
        }
        unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| match errno {
            Errno::EPERM => "creating a network namespace is not permitted: run as root, or under \
                             `unshare -Urn`"
                .to_owned(),
            _ => format!("a network namespace cannot be made: {}", errno.desc()),
        })?;
        let mut failed = Vec::new();
        for kind in kinds {
            let Kind { id, options, .. } = kind;
            match ip(&format!("link add {NAME} numtxqueues 1 numrxqueues 1 type {id}{options}")) {
                Ok(()) => return Self::with(kind),
                Err(why) => failed.push(format!("{id}: {why}")),
            }
        }
        Err(format!("cannot create a device that discards packets: {}", failed.join("; ")))
    }

    fn with(kind: &'static Kind) -> Result<Self, String> {
        let ends = if kind.options.is_empty() { &[NAME][..] } else { &[PEER, NAME] };
        for end in ends {
            // Give the device no IPv6 address: with an address, the kernel would send packets of
            // its own through the device, and they would be counted, too.
            ip(&format!("link set {end} addrgenmode none"))?;
            ip(&format!("link set {end} txqueuelen 1000 up"))?;
        }
        let addresses = getifaddrs().map_err(|errno| format!("getifaddrs: {}", errno.desc()))?;
        let address = addresses
            .filter(|interface| interface.interface_name == NAME)
            .find_map(|interface| interface.address?.as_link_addr().copied())
            .ok_or_else(|| format!("{NAME} has no link address"))?;
        Ok(Self { kind, address })
    }

    /// Returns the kind of the device, as `ip link` names it.
    pub(super) fn device(&self) -> &'static str {
        self.kind.id
    }

    /// Installs `qdisc` as the new root qdisc, with one class if the qdisc needs classes. The error
    /// text says why the kernel refused it.
    pub(super) fn set(&self, qdisc: &str) -> Result<Laid<'_>, String> {
        // Removing the old qdisc also removes its counters.
        tc(&format!("qdisc replace dev {NAME} root noqueue"))?;
        if qdisc != "noqueue" {
            lines(qdisc).iter().try_for_each(|line| tc(line))?;
        }
        self.laid(qdisc)
    }

    /// Installs an `htb` without its class, and reads the qdisc back. Returns the result of
    /// reading, which must be an error because the class is missing.
    #[cfg(test)]
    pub(super) fn without_class(&self) -> Result<(), String> {
        tc(&format!("qdisc replace dev {NAME} root noqueue"))?;
        tc(&format!("qdisc replace dev {NAME} root handle 1: htb default 1"))?;
        self.laid("htb").map(drop)
    }

    /// Reads the installed root qdisc back from the kernel, and returns an error if it is not
    /// `qdisc`.
    pub(super) fn laid(&self, qdisc: &str) -> Result<Laid<'_>, String> {
        let kind = qdisc.split(' ').next().unwrap_or(qdisc).to_owned();
        let laid = Laid { bed: self, kind };
        laid.held()?;
        if laid.kind == "htb" {
            let classes = output("tc", &format!("class show dev {NAME}"))?;
            if !classes.lines().any(|line| line.starts_with(&format!("class htb {CLASS} "))) {
                return Err(format!("htb has no class {CLASS}: {classes}"));
            }
        }
        Ok(laid)
    }

    /// Returns the number of packets that the device took since it was made, by the device's own
    /// count.
    pub(super) fn taken(&self) -> Result<u64, Error> {
        let path = "/proc/thread-self/net/dev";
        let text = fs::read_to_string(path)
            .map_err(|error| Error::Usage("the device's counters", error))?;
        counters(&text, NAME, self.kind.counters)
            .ok_or_else(|| Error::Kernel(format!("{path} has no line for {NAME}: {text}")))
    }
}

impl<'a> Laid<'a> {
    pub(super) fn bed(&self) -> &'a Bed {
        self.bed
    }

    fn held(&self) -> Result<Held, String> {
        let text = output("tc", &format!("-s -j qdisc show dev {NAME}"))?;
        held(&text, &self.kind)
            .ok_or_else(|| format!("the root qdisc should be {}, but tc says: {text}", self.kind))
    }

    /// Waits until the root qdisc holds no packet, but no longer than [`PATIENCE`]. Returns how
    /// many packets the qdisc dropped and how many it still holds.
    pub(super) fn settled(&self) -> Result<Held, Error> {
        let mut left = PATIENCE;
        loop {
            let held = self.held().map_err(Error::Kernel)?;
            if held.packets == 0 || left.is_zero() {
                return Ok(held);
            }
            thread::sleep(LOOK);
            left = left.saturating_sub(LOOK);
        }
    }
}

/// Returns the sum of the given fields of `device` in the text of `/proc/net/dev`.
fn counters(text: &str, device: &str, fields: &[usize]) -> Option<u64> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':'))?;
    let values: Vec<&str> = line.split_ascii_whitespace().collect();
    fields.iter().map(|&field| values.get(field)?.parse::<u64>().ok()).sum()
}

/// Returns the counters of the root qdisc from the output of `tc -s -j qdisc show`. Returns
/// `None` if the root qdisc is not of the kind `kind`.
pub(crate) fn held(text: &str, kind: &str) -> Option<Held> {
    let qdiscs: Value = serde_json::from_str(text).ok()?;
    let mut qdiscs = qdiscs.as_array()?.iter();
    let root = qdiscs.find(|qdisc| qdisc["root"] == true && qdisc["kind"] == kind)?;
    Some(Held { drops: root["drops"].as_u64()?, packets: root["qlen"].as_u64()? })
}

pub(crate) fn ip(arguments: &str) -> Result<(), String> {
    output("ip", arguments).map(drop)
}

pub(crate) fn tc(arguments: &str) -> Result<(), String> {
    output("tc", arguments).map(drop)
}

/// Runs a program of iproute2. Returns its output, or the reason why it failed.
pub(crate) fn output(program: &str, arguments: &str) -> Result<String, String> {
    let run = |program: &str| Command::new(program).args(arguments.split(' ')).output();
    // Debian has `tc` in a folder in which the shells of ordinary users do not look.
    let output = run(program).or_else(|error| match error.kind() {
        ErrorKind::NotFound => run(&format!("/usr/sbin/{program}")).map_err(|_| error),
        _ => Err(error),
    });
    let output = output.map_err(|error| {
        format!(
            "cannot run `{program}` of iproute2: {error}; install it (`apt-get install iproute2`)"
        )
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let why = said.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it failed");
    Err(format!("`{program} {arguments}`: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_missing_is_named() {
        let told = output("no-such-program", "link").expect_err("there is none");
        assert!(told.starts_with("cannot run `no-such-program` of iproute2: "), "{told}");
        assert!(told.contains("apt-get install iproute2"), "{told}");
    }

    const DEV: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo
    lo:     100       1    2    3    4    5    6    7   8   9   10   11   12   13   14   15
swallow2:     0       0    0    0    0    0    0    0   0   0    0    0    0    0    0    0
swallow: 122880    1024    0    0    0    0    0    0   0  50    0    7    0    0    0    0
";

    #[test]
    fn counters_are_those_of_the_device_named() {
        assert_eq!(counters(DEV, "swallow", &[RX_PACKETS]), Some(1_024));
        assert_eq!(counters(DEV, "swallow", &[TX_PACKETS, TX_DROPPED]), Some(57));
        assert_eq!(counters(DEV, "lo", &[TX_PACKETS]), Some(9));
        assert_eq!(counters(DEV, "eth0", &[TX_PACKETS]), None);
        assert_eq!(counters(DEV, "swallow", &[16]), None, "there are 16 fields");
    }

    #[test]
    fn the_root_qdisc_is_found_among_others() {
        let text = r#"[{"kind":"pfifo","parent":"1:1","drops":9,"qlen":9},
            {"kind":"htb","handle":"1:","root":true,"drops":3,"backlog":240,"qlen":2}]"#;
        assert_eq!(held(text, "htb"), Some(Held { drops: 3, packets: 2 }));
        assert_eq!(held(text, "pfifo"), None, "it is not the root");
        assert_eq!(held("[]", "htb"), None);
        assert_eq!(held("qdisc htb 1: root", "htb"), None);
    }

    #[test]
    fn a_command_that_fails_says_why() {
        let error = output("onramp-no-such-program", "link show").expect_err("there is none");
        assert!(error.contains("onramp-no-such-program") && error.contains("apt-get"), "{error}");
        let error = output("ls", "/onramp/no/such/folder").expect_err("there is none");
        assert!(error.starts_with("`ls /onramp/no/such/folder`: "), "{error}");
    }
}
