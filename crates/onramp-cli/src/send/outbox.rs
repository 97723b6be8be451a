//! The sending side of `onramp send`: a link with one port, and the summary of what was sent.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::signal::Signal;
use onramp::dev::{MonotonicClock, Udp};
use onramp::{Clock, DropReason, Flow, Instant, Link, LinkStats, Sender, TrySendError};

use super::{Counts, FlowId};
use crate::bench::payload_max;
use crate::error::{Interrupted, died};
use crate::host::{self, Destination};
use crate::output;
use crate::progress::Line;
use crate::signals::Signals;

/// The flow that all lines of text belong to.
pub(crate) const TEXT_FLOW: FlowId = [(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0); 2];
/// Number of flows of a capture that can be separate flows of the qdisc. Each flow beyond this
/// number shares a flow of the qdisc with an earlier one.
const FLOWS_MAX: usize = 65_536;
/// The largest packet size in bytes for which fq is configured, even if the path allows larger
/// packets. The packet size determines how many packets fq sends at once.
const MTU_MAX: u32 = 1_514;
/// How often a thread that waits for the qdisc wakes up to show progress.
const LOOK: Duration = Duration::from_millis(250);
/// No progress is shown before the run has lasted this long.
const LONG: Duration = Duration::from_secs(3);
/// How long to wait, after the last datagram, for an ICMP "port unreachable", the answer of a
/// machine on which nobody listens. The time is long enough if that machine is near.
const ANSWER: Duration = Duration::from_millis(50);

/// A summary of what `onramp send` sent, for reports.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) from: String,
    pub(crate) to: SocketAddr,
    pub(crate) qdisc: String,
    pub(crate) loops: u32,
    pub(crate) flows: usize,
    pub(crate) counts: Counts,
    /// Number of payload bytes submitted.
    pub(crate) payload_bytes: u64,
    pub(crate) stats: LinkStats,
    pub(crate) seconds: f64,
    /// The error that ended reading or sending early, or the error that the destination answered;
    /// `None` if there was no error.
    pub(crate) error: Option<String>,
}

/// The sending side of `onramp send`: a link with one port, so that one qdisc holds all packets.
#[derive(Debug)]
pub(crate) struct Outbox<'s> {
    to: Destination,
    socket: UdpSocket,
    link: Link,
    sender: Sender,
    flows: HashMap<FlowId, Flow>,
    /// The first [`FLOWS_MAX`] flows as a list. The list is filled when the capture turns out to
    /// have more flows; each further flow of the capture then uses a flow of the list.
    shared: Vec<Flow>,
    longest: usize,
    payload_bytes: u64,
    submitted: u64,
    started: Instant,
    looked: Instant,
    line: Line,
    /// The signals that end the sending; `None` in unit tests.
    signals: Option<&'s Signals>,
    interrupted: Option<Signal>,
}

impl<'s> Outbox<'s> {
    /// Opens a link to `to` with the qdisc `qdisc`. One of `signals` ends the sending early.
    pub(crate) fn open(to: Destination, qdisc: &str, signals: &'s Signals) -> Result<Self> {
        let addr = to.addr;
        let any: IpAddr = if addr.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
        let connected = || {
            let socket = UdpSocket::bind((any, 0))?;
            socket.connect(addr)?;
            Ok((socket.try_clone()?, socket))
        };
        let (clone, socket) = connected().map_err(|error: io::Error| {
            anyhow!("cannot send to {to}: {error}; {}", host::advice(&error))
        })?;
        let mtu = Udp::path_mtu(addr).map_or(MTU_MAX, |mtu| (mtu + 14).min(MTU_MAX));
        let link = Link::sockets([clone]).qdisc(qdisc).mtu(mtu).build();
        let outbox = Self::over(link.context("cannot make a link")?, socket, to);
        Ok(Self { signals: Some(signals), ..outbox })
    }

    /// Creates an outbox that sends over `link`. `socket` is connected to the destination and
    /// reports its errors.
    fn over(link: Link, socket: UdpSocket, to: Destination) -> Self {
        let now = MonotonicClock.now();
        Self {
            longest: payload_max(to.addr.ip()),
            to,
            socket,
            sender: link.sender(),
            link,
            flows: HashMap::new(),
            shared: Vec::new(),
            payload_bytes: 0,
            submitted: 0,
            started: now,
            looked: now,
            line: Line::new(true),
            signals: None,
            interrupted: None,
        }
    }

    /// Returns the size of the largest payload that can be sent, in bytes.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// Sends `payload` in the flow `id`. If the link has no room, waits for room. Returns an error
    /// if a signal came.
    pub(crate) fn send(&mut self, id: FlowId, payload: &[u8]) -> Result<()> {
        if payload.len() > self.longest {
            let (size, longest) = (payload.len(), self.longest);
            bail!(
                "a payload has {size} bytes, but UDP to {} allows {longest}; leave it out",
                self.to
            );
        }
        let flow = self.flow(id);
        loop {
            match self.sender.try_send(&flow, payload) {
                Ok(()) => break,
                Err(TrySendError::Full) => {
                    self.sender.wait_room_timeout(&flow, payload.len(), LOOK);
                    self.look()?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.submitted += 1;
        self.payload_bytes += payload.len() as u64;
        if self.submitted.is_multiple_of(1024) { self.look() } else { Ok(()) }
    }

    fn flow(&mut self, id: FlowId) -> Flow {
        if let Some(flow) = self.flows.get(&id) {
            return flow.clone();
        }
        if self.flows.len() < FLOWS_MAX {
            let flow = self.sender.flow(self.to.addr);
            self.flows.insert(id, flow.clone());
            return flow;
        }
        if self.shared.is_empty() {
            self.shared = self.flows.values().cloned().collect();
        }
        let [(_, from), (_, to)] = id;
        self.shared[(usize::from(from) << 16 | usize::from(to)) % FLOWS_MAX].clone()
    }

    /// Returns an error if a signal came, after which the outbox waits for nothing any more.
    pub(crate) fn heed(&mut self) -> Result<()> {
        if let Err(error) = self.signals.map_or(Ok(()), Signals::check) {
            self.interrupted = Some(error.downcast::<Interrupted>()?.0);
        }
        self.interrupted.map_or(Ok(()), |signal| Err(Interrupted(signal).into()))
    }

    /// Shows progress, at most once per [`LOOK`], and only after the run has lasted for [`LONG`].
    /// Returns an error if a signal came.
    fn look(&mut self) -> Result<()> {
        self.heed()?;
        let now = MonotonicClock.now();
        if now >= self.looked + LOOK && now >= self.started + LONG {
            self.looked = now;
            let seconds = Duration::from_nanos(now.since(self.started)).as_secs();
            let stats = self.link.stats();
            let gone = (stats.sent, stats.dropped_total());
            self.line.show(&shown(stats.submitted, gone, seconds));
        }
        Ok(())
    }

    /// Waits until the qdisc has sent all packets, however long that takes, and closes the link.
    /// After a signal it does not wait, and what the qdisc holds is dropped. Returns the summary,
    /// and the error of the link or of the destination if there was one, or that a signal came.
    pub(crate) fn close(
        mut self,
        from: String,
        qdisc: &str,
        loops: u32,
        counts: Counts,
    ) -> (Summary, Result<()>) {
        let mut waited = Ok(());
        while self.interrupted.is_none() && !self.link.flush(LOOK) {
            waited = self.look();
        }
        let seconds = Duration::from_nanos(MonotonicClock.now().since(self.started));
        std::thread::sleep(ANSWER);
        let answer = self.socket.take_error().unwrap_or_else(Some);
        self.link.close(Duration::ZERO);
        let earlier = self.link.udp_stats().iter().any(|port| port.earlier_errors.get() > 0);
        let answer = answer.or_else(|| earlier.then(|| io::ErrorKind::ConnectionRefused.into()));
        let stats = self.link.stats();
        let fault = died(&self.link.deaths()).or_else(|| refusal(&self.to, &stats, answer));
        let summary = Summary {
            from,
            to: self.to.addr,
            qdisc: qdisc.to_owned(),
            loops,
            flows: self.flows.len(),
            counts,
            payload_bytes: self.payload_bytes,
            stats,
            seconds: seconds.as_secs_f64(),
            error: None,
        };
        (summary, output::all([waited, fault.map_or(Ok(()), Err)]))
    }
}

/// Returns what the progress line says after `seconds` seconds, in which so many datagrams were
/// submitted, and so many sent and dropped.
fn shown(submitted: u64, (sent, dropped): (u64, u64), seconds: u64) -> String {
    let waiting = submitted.saturating_sub(sent).saturating_sub(dropped);
    format!("{sent} datagrams sent in {seconds} s, {waiting} wait in the qdisc")
}

/// Returns an error if the destination or the path refused datagrams. Drops by the qdisc are no
/// error, because the user chose that qdisc.
fn refusal(
    to: &Destination,
    stats: &LinkStats,
    answer: Option<io::Error>,
) -> Option<anyhow::Error> {
    let fault = |reason: DropReason| match reason {
        DropReason::Refused => Some(host::advice(&io::ErrorKind::ConnectionRefused.into())),
        DropReason::Unreachable => Some(host::advice(&io::ErrorKind::HostUnreachable.into())),
        DropReason::NoPermission => Some(host::advice(&io::ErrorKind::PermissionDenied.into())),
        DropReason::MessageSize => {
            Some("the path does not take datagrams so large; send smaller ones")
        }
        DropReason::NoBuffers => Some("the kernel had no memory for them; send slower (--rate)"),
        DropReason::DeviceError => Some("the socket failed; try again"),
        _ => None,
    };
    let submitted = stats.submitted;
    for (reason, count) in &stats.dropped {
        if let Some(why) = fault(*reason) {
            let reason = reason.name();
            return Some(anyhow!(
                "{count} of {submitted} datagrams to {to} were not sent ({reason}): {why}"
            ));
        }
    }
    answer.map(|error| {
        let answer = match error.kind() {
            io::ErrorKind::ConnectionRefused => String::new(),
            _ => format!("{error}: "),
        };
        let (sent, dropped) = (stats.sent, stats.dropped_total());
        let why = host::advice(&error);
        anyhow!(
            "{to} refused datagrams: {answer}{why} ({submitted} submitted, {sent} sent, of \
             which some did not arrive, {dropped} dropped)"
        )
    })
}

#[cfg(test)]
mod tests {
    use onramp::{Device, DeviceInfo, PacketList, Transmitted};

    use super::*;
    use crate::host::Host;

    /// A device that panics at its first packet.
    struct Mortal(DeviceInfo);

    impl Device for Mortal {
        fn info(&self) -> &DeviceInfo {
            &self.0
        }

        fn transmit(&mut self, _: &mut PacketList, _: &mut PacketList, _: Instant) -> Transmitted {
            panic!("it has had enough");
        }
    }

    #[test]
    fn progress_counts_what_has_left_and_what_waits() {
        let want = "60 datagrams sent in 7 s, 30 wait in the qdisc";
        assert_eq!(shown(100, (60, 10), 7), want);
        assert!(shown(1, (1, 1), 7).ends_with(", 0 wait in the qdisc"), "the counts may be stale");
    }

    #[test]
    fn a_port_that_died_is_the_failure() {
        let device = Box::new(Mortal(DeviceInfo::new("mortal".to_owned(), 1_514)));
        let link = Link::devices([device as Box<dyn Device>]).build().expect("a link");
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let to = Host::parse("127.0.0.1:9", None).expect("a host").resolve().expect("an address");
        let mut outbox = Outbox::over(link, socket, to);
        // The port accepts the first datagram; the device panics when it sends it, and the port
        // dies. Later datagrams are refused.
        let sent = (0..1_000).find_map(|_| outbox.send(TEXT_FLOW, b"x").err());
        assert!(sent.is_some(), "a dead port takes nothing");
        let (summary, fault) = outbox.close("a test".into(), "fq", 1, Counts::default());
        let message = fault.expect_err("it died").to_string();
        assert!(message.contains("port 0") && message.contains("it has had enough"), "{message}");
        assert_eq!(summary.stats.sent, 0);
        assert!(summary.stats.dropped[&DropReason::PortDead] > 0, "{:?}", summary.stats);
    }
}
