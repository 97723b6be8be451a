//! Two private network namespaces joined by a veth pair: a wire that touches nothing of the
//! machine's network.
//!
//! Nothing needs to be removed. A namespace lives as long as a thread or a descriptor of ours
//! does, and the pair goes with it: also after a failure, Ctrl-C, or a kill.

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

/// The near end's address: out of the block for benchmarks (RFC 2544, RFC 6890).
const NEAR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The far end's.
const FAR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);

/// Their link addresses, fixed so that no datagram waits for the neighbour's.
const NEAR_LINK: &str = "02:00:00:00:00:01";
const FAR_LINK: &str = "02:00:00:00:00:02";

/// How long one probe may take, and how many there are.
const PROBE_PATIENCE: Duration = Duration::from_millis(50);
const PROBES: u32 = 200;

/// Field of a device's line in `/proc/net/dev`, after its name.
const TX_DROPPED: usize = 11;

/// A veth pair whose near end is in the namespace of the threads that start from now on.
#[derive(Debug)]
pub(crate) struct Wire {
    far: File,
}

impl Wire {
    /// Moves the calling thread into a namespace of its own, and lays a wire from there.
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

    /// A counter of what the wire drops. To be called at the near end.
    pub(crate) fn counter(&self) -> Result<WireCounter> {
        let open = || File::open("/proc/thread-self/net/dev");
        Ok(WireCounter(open().context("cannot read the wire's counters")?))
    }

    /// The address of the far end.
    pub(crate) fn far_address(&self) -> Ipv4Addr {
        FAR
    }

    /// Runs `work` at the far end, in a thread of its own.
    pub(crate) fn at_far_end<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        elsewhere(|| {
            setns(&self.far, CloneFlags::CLONE_NEWNET)
                .context("cannot enter the network namespace of the far end")?;
            work()
        })?
    }

    /// The kernel starts a device's queues a moment after its carrier came, and until then drops
    /// what is sent without a word (`noop_qdisc`).
    fn wait_until_it_carries(&self) -> Result<()> {
        let far = self.at_far_end(|| Ok(UdpSocket::bind((FAR, 0))?))?;
        far.set_read_timeout(Some(PROBE_PATIENCE))?;
        let near = UdpSocket::bind((NEAR, 0))?;
        for _ in 0..PROBES {
            near.send_to(&[], far.local_addr()?)?;
            if far.recv(&mut []).is_ok() {
                // All queues start under one lock, which this takes, too.
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
        // Or they say things of their own, which would be counted, too.
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

/// Counts what was lost between the two ends.
#[derive(Debug)]
pub(crate) struct WireCounter(File);

impl WireCounter {
    /// Messages that the near end sent and the far end had no room for, since the wire was laid.
    pub(crate) fn dropped(&mut self) -> Result<u64> {
        let mut table = String::new();
        self.0.rewind()?;
        self.0.read_to_string(&mut table)?;
        let line = table.lines().find_map(|line| line.trim().strip_prefix("near:"));
        let field = line.and_then(|line| line.split_whitespace().nth(TX_DROPPED)?.parse().ok());
        field.context("the wire's counters are not in /proc/net/dev")
    }
}

/// Runs `work` in a thread of its own, whose namespaces end with it.
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

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn what_the_far_end_refuses_is_counted() {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "CI is root");
            // Past the test harness, which hides what passing tests print.
            let mut stderr = std::io::stderr();
            return writeln!(stderr, "SKIP: --sink veth needs root").expect("it is open");
        }
        // The test's thread stays in the namespace; no other test runs in it.
        let wire = Wire::lay().expect("a wire");
        let mut counter = wire.counter().expect("a counter");
        let near = UdpSocket::bind((NEAR, 0)).expect("a socket at the near end");
        let send = || near.send_to(&[0; 200], (FAR, 9)).expect("the near end takes it");
        let mut dropped = || counter.dropped().expect("a count");
        // Probes may have come before the wire carried.
        let before = dropped();
        assert_eq!((send(), dropped() - before), (200, 0));
        wire.at_far_end(|| ip("link set far mtu 100")).expect("a smaller MTU");
        assert_eq!((send(), send(), dropped() - before), (200, 200, 2));
    }
}
