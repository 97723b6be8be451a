//! A wire that does not touch the machine's network: a veth pair between two private network
//! namespaces.
//!
//! Nothing needs to be removed after a run. A namespace lives only as long as a thread or a
//! descriptor of this program uses it, and the veth pair ends with the namespaces, also after a
//! failure, Ctrl-C, or a kill.

use std::fs::File;
use std::io::{Read, Seek};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};

/// The IP address of the near end of the veth pair (the end in the namespace of the thread that
/// made the pair), from the block for benchmarks (RFC 2544, RFC 6890).
const NEAR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The IP address of the far end of the veth pair (the end in the other namespace).
const FAR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);

/// The MAC addresses of both ends of the veth pair. Each end knows the other's MAC address from the
/// beginning, so that no datagram waits for the neighbour resolution (ARP).
const NEAR_LINK: &str = "02:00:00:00:00:01";
const FAR_LINK: &str = "02:00:00:00:00:02";

/// How long to wait for each probe (a datagram that is sent to find out whether the wire works),
/// and the largest number of probes.
const PROBE_PATIENCE: Duration = Duration::from_millis(50);
const PROBES: u32 = 200;

/// The position of the counter of dropped packets in a device's line of `/proc/net/dev`, counted
/// after the device's name.
const TX_DROPPED: usize = 11;

/// A wire: a veth pair. The thread that made the wire, and all threads that it starts afterwards,
/// are in the namespace of the near end.
#[derive(Debug)]
pub(crate) struct Wire {
    far: File,
}

impl Wire {
    /// Moves the calling thread into a new network namespace, and makes a wire from there to
    /// another new namespace.
    pub(crate) fn lay() -> Result<Self> {
        unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| match errno {
            Errno::EPERM => anyhow!(
                "--sink veth may not make a network namespace: run it as root, or as \
                 `unshare -Urn onramp bench udp ...`"
            ),
            _ => anyhow!("--sink veth cannot make a network namespace: {}", errno.desc()),
        })?;
        let far = elsewhere(|| -> Result<File> {
            unshare(CloneFlags::CLONE_NEWNET)?;
            Ok(File::open("/proc/thread-self/ns/net")?)
        })?
        .context("--sink veth cannot make a second network namespace")?;
        let wire = Self { far };
        wire.configure()?;
        wire.wait_until_it_carries()?;
        Ok(wire)
    }

    /// Opens the counter of the messages that the wire drops. Call this in the namespace of the
    /// near end.
    pub(crate) fn counter(&self) -> Result<WireCounter> {
        let open = || File::open("/proc/thread-self/net/dev");
        Ok(WireCounter(open().context("cannot read the wire's counters")?))
    }

    /// Returns the IP address of the end of the veth pair that is in the other namespace.
    pub(crate) fn far_address(&self) -> Ipv4Addr {
        FAR
    }

    /// Runs `work` in a new thread that has entered the namespace of the far end.
    pub(crate) fn at_far_end<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        elsewhere(|| {
            setns(&self.far, CloneFlags::CLONE_NEWNET)
                .context("cannot enter the network namespace of the far end")?;
            work()
        })?
    }

    /// Waits until the wire carries datagrams. The kernel starts a device's queues a moment after
    /// the carrier appeared, and until then silently drops all packets (`noop_qdisc`).
    fn wait_until_it_carries(&self) -> Result<()> {
        let far = self.at_far_end(|| Ok(UdpSocket::bind((FAR, 0))?))?;
        far.set_read_timeout(Some(PROBE_PATIENCE))?;
        let near = UdpSocket::bind((NEAR, 0))?;
        for _ in 0..PROBES {
            near.send_to(&[], far.local_addr()?)?;
            if far.recv(&mut []).is_ok() {
                // One queue has carried a probe. The kernel starts the other queues while it still
                // holds the same lock, RTNL. The command `ip link set` takes that lock, too, so all
                // queues have started when the command returns.
                return ip("link set near up");
            }
        }
        bail!("--sink veth: the wire carries nothing")
    }

    fn configure(&self) -> Result<()> {
        let far = format!("/proc/{}/fd/{}", std::process::id(), self.far.as_raw_fd());
        ip("link set lo up")?;
        let peer = format!("peer name far address {FAR_LINK} netns {far}");
        ip(&format!("link add near address {NEAR_LINK} type veth {peer}"))?;
        // Without an IPv6 address (`addrgenmode none`), the devices send no messages of their own,
        // which the sinks would count.
        ip("link set near addrgenmode none")?;
        ip(&format!("addr add {NEAR}/30 dev near"))?;
        ip("link set near up")?;
        ip(&format!("neigh replace {FAR} lladdr {FAR_LINK} nud permanent dev near"))?;
        self.at_far_end(|| {
            ip("link set lo up")?;
            ip("link set far addrgenmode none")?;
            ip(&format!("addr add {FAR}/30 dev far"))?;
            ip("link set far up")?;
            ip(&format!("neigh replace {NEAR} lladdr {NEAR_LINK} nud permanent dev far"))
        })
    }
}

/// Counts the datagrams that the wire (the veth pair) lost: its near end sent them, and its far end
/// did not receive them.
#[derive(Debug)]
pub(crate) struct WireCounter(File);

impl WireCounter {
    /// Returns the number of datagrams that the near end of the wire sent and the far end did not
    /// accept, since the wire was made.
    pub(crate) fn dropped(&mut self) -> Result<u64> {
        let mut table = String::new();
        self.0.rewind()?;
        self.0.read_to_string(&mut table)?;
        let line = table.lines().find_map(|line| line.trim().strip_prefix("near:"));
        let field = line.and_then(|line| line.split_whitespace().nth(TX_DROPPED)?.parse().ok());
        field.context("the wire's counters are not in /proc/net/dev")
    }
}

/// Runs `work` in a new thread. Namespaces that this thread enters do not change the calling
/// thread.
fn elsewhere<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    thread::scope(|scope| {
        let helper = thread::Builder::new().name("netns".into()).spawn_scoped(scope, work);
        let helper = helper.context("cannot start a thread")?;
        helper.join().map_err(|_| anyhow!("the thread in the network namespace panicked"))
    })
}

fn ip(arguments: &str) -> Result<()> {
    let output = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .context("--sink veth runs `ip` of iproute2 and cannot: install it, or add it to PATH")?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("--sink veth: `ip {arguments}` failed: {}", error.trim());
    }
    Ok(())
}

/// Whether a test may lay a wire. If not, reports that the test is skipped.
#[cfg(test)]
pub(crate) fn may_lay() -> bool {
    use std::io::Write as _;

    let tried = Command::new("unshare").args(["--net", "true"]).output();
    let may = tried.is_ok_and(|tried| tried.status.success());
    if !may {
        assert!(std::env::var_os("CI").is_none(), "in CI, root may make namespaces");
        // The line goes directly to standard error, because the test harness hides what passing
        // tests print, and nobody would see that this test was skipped.
        writeln!(std::io::stderr(), "SKIP: --sink veth needs root that may make namespaces")
            .expect("standard error is open");
    }
    may
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_far_end_refuses_is_counted() {
        if !may_lay() {
            return;
        }
        // The thread of this test stays in the new network namespace, which does no harm, because
        // no other test runs in that thread.
        let wire = Wire::lay().expect("a wire");
        let mut counter = wire.counter().expect("a counter");
        let near = UdpSocket::bind((NEAR, 0)).expect("a socket at the near end");
        let send = || near.send_to(&[0; 200], (FAR, 9)).expect("the near end takes it");
        let mut dropped = || counter.dropped().expect("a count");
        // The wire may have dropped probes while it started. Only the drops from now on matter.
        let before = dropped();
        assert_eq!((send(), dropped() - before), (200, 0));
        wire.at_far_end(|| ip("link set far mtu 100")).expect("a smaller MTU");
        assert_eq!((send(), send(), dropped() - before), (200, 200, 2));
    }
}
