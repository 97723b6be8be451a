//! `onramp send`.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use onramp::dev::{MonotonicClock, Udp};
use onramp::qdisc::Spec;
use onramp::{Clock, DropReason, Flow, Instant, Link, LinkStats, Sender, TrySendError};
use onramp_core::Rate;

use crate::bench::payload_max;
use crate::error::usage;
use crate::output::{self, Output};
use crate::progress::Progress;
use crate::report::{json, sent};
use crate::send::{Counts, FlowId, read_capture, read_lines};

/// Flows of a capture that are kept apart. Beyond, a new one shares the queue of an old one.
const FLOWS_MAX: usize = 65_536;
/// What fq takes a packet to be at most, bytes, where the path allows more: from it follows how
/// many leave in one go.
const MTU_MAX: u32 = 1_514;
/// How often waiting is interrupted to show progress.
const LOOK: Duration = Duration::from_millis(250);
/// Runs shorter than this show no progress.
const LONG: Duration = Duration::from_secs(3);
/// How long the answer of a near destination, that nobody listens, may take.
const ANSWER: Duration = Duration::from_millis(50);

/// Send the UDP payloads of a capture, or lines of text, as fast as a qdisc lets them go
///
/// Each flow of the capture (addresses and ports) is a flow of the qdisc. All go to one
/// destination; the times in the capture do not matter, the qdisc sets the pace. Of standard
/// input every line is a datagram, without its end.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp send udp://127.0.0.1:4000 --from voice.pcapng --rate 10mbit
  onramp send udp://host.example:514 --from - < messages.txt
  onramp send udp://127.0.0.1:4000 --from burst.pcap --qdisc 'pfifo limit 100' --loop 10")]
pub(crate) struct Args {
    /// Where to: udp://HOST:PORT
    #[arg(value_name = "URL", value_parser = url)]
    to: Url,
    /// A capture (pcap or pcapng), or - for lines of standard input
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
    /// The qdisc, in the syntax of tc [default: fq]
    #[arg(long, value_name = "QDISC")]
    qdisc: Option<String>,
    /// The most that each flow gets on the wire, such as 10mbit: the maxrate of fq
    #[arg(long, value_name = "RATE")]
    rate: Option<String>,
    /// Send the capture so many times
    #[arg(long = "loop", value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    loops: u32,
    /// Write the summary as JSON (docs/json.md says what each key means); - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Host and port of a URL.
#[derive(Clone, Debug)]
struct Url {
    host: String,
    port: u16,
}

/// What was sent, for reports.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) from: String,
    pub(crate) to: SocketAddr,
    pub(crate) qdisc: String,
    pub(crate) loops: u32,
    pub(crate) flows: usize,
    pub(crate) counts: Counts,
    /// Bytes of payload submitted.
    pub(crate) payload_bytes: u64,
    pub(crate) stats: LinkStats,
    pub(crate) seconds: f64,
    /// Why reading or sending ended early, or what the destination answered.
    pub(crate) error: Option<String>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let report = args.json.as_deref().map(Output::new).transpose()?;
    let lines = args.from == Path::new("-");
    if !lines && report.as_ref().is_some_and(|report| report.is_file(&args.from)) {
        return Err(usage("--json and --from name the same file: the summary would replace it"));
    }
    if lines && args.loops > 1 {
        return Err(usage("--loop: standard input can be read only once; give a file"));
    }
    let qdisc = qdisc(args.qdisc.as_deref(), args.rate.as_deref())?;
    let to = resolve(&args.to)?;
    let mut outbox = Outbox::open(to, &qdisc)?;

    let mut counts = Counts::default();
    let mut failure = None;
    for _ in 0..args.loops {
        let read = if lines {
            let line = [(IpAddr::from([0; 4]), 0); 2];
            let longest = outbox.longest;
            read_lines(io::stdin().lock(), longest, &mut counts, |text| outbox.send(line, text))
        } else {
            read_capture(&args.from, &mut counts, |flow, payload| outbox.send(flow, payload))
        };
        if let Err(error) = read {
            failure = Some(error);
            break;
        }
    }
    let from = if lines { "standard input".into() } else { args.from.display().to_string() };
    let (mut summary, answer) = outbox.close(from, &qdisc, args.loops, counts);
    let failure = failure.or_else(|| refusal(&summary, answer));
    summary.error = failure.as_ref().map(|error| format!("{error:#}"));
    // Nothing was read: the failure says it all.
    if failure.is_none() || summary.counts.read > 0 {
        if let Some(output) = &report {
            output.write(&json::pretty(&sent::json(&summary)))?;
        }
        if !report.as_ref().is_some_and(Output::is_stdout) {
            output::print(&sent::text(&summary))?;
        }
    }
    failure.map_or(Ok(()), Err)
}

/// The link's qdisc: what the user said, and the rate in it.
fn qdisc(given: Option<&str>, rate: Option<&str>) -> Result<String> {
    let text = given.unwrap_or("fq");
    let spec = Spec::with_units(text).map_err(|error| usage(format!("--qdisc: {error}")))?;
    let Some(rate) = rate else { return Ok(text.to_owned()) };
    match rate.parse::<Rate>() {
        Err(error) => return Err(usage(format!("--rate: {error}"))),
        Ok(_) if rate.parse::<f64>().is_ok() => {
            return Err(usage(format!("--rate: {rate}: the unit is missing, such as in 10mbit")));
        }
        Ok(Rate(0)) => return Err(usage("--rate: nothing leaves at a rate of zero")),
        Ok(_) => {}
    }
    if spec.kind().id != "fq" {
        return Err(usage(format!(
            "--rate: it is the maxrate of fq, and --qdisc names {}: leave one of the two away",
            spec.kind().id
        )));
    }
    let paced = format!("{text} maxrate {rate}");
    match Spec::with_units(&paced) {
        Ok(_) => Ok(paced),
        Err(_) => Err(usage("--rate: --qdisc has a maxrate already: leave one of the two away")),
    }
}

/// Parses `udp://HOST:PORT`.
fn url(text: &str) -> Result<Url, String> {
    let form = "give udp://HOST:PORT, such as udp://127.0.0.1:4000 or udp://[::1]:4000";
    let Some(rest) = text.strip_prefix("udp://") else { return Err(form.to_owned()) };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port)) if !host.ends_with(':') && !port.contains(']') => (host, port),
        _ => return Err(format!("the port is missing: {form}")),
    };
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    if host.is_empty() {
        return Err(format!("the host is missing: {form}"));
    }
    let port = match port.parse::<u16>() {
        Ok(0) => return Err("port 0 cannot be sent to".to_owned()),
        Ok(port) => port,
        Err(_) => return Err(format!("{port:?} is no port (1 to 65535): {form}")),
    };
    Ok(Url { host: host.to_owned(), port })
}

fn resolve(url: &Url) -> Result<SocketAddr> {
    let host = &url.host;
    let found = (host.as_str(), url.port).to_socket_addrs();
    let mut addresses =
        found.with_context(|| format!("cannot resolve {host:?}: check the name"))?;
    addresses.next().with_context(|| format!("{host:?} has no address"))
}

/// The sending end: a link with one port, so that one qdisc holds everything.
struct Outbox {
    to: SocketAddr,
    socket: UdpSocket,
    link: Link,
    sender: Sender,
    flows: HashMap<FlowId, Flow>,
    /// The first flows again, for those beyond [`FLOWS_MAX`] to share.
    shared: Vec<Flow>,
    longest: usize,
    payload_bytes: u64,
    submitted: u64,
    started: Instant,
    looked: Instant,
    progress: Progress,
}

impl Outbox {
    fn open(to: SocketAddr, qdisc: &str) -> Result<Self> {
        let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
        let connected = || {
            let socket = UdpSocket::bind((any, 0))?;
            socket.connect(to)?;
            Ok((socket.try_clone()?, socket))
        };
        let (clone, socket) =
            connected().map_err(|error: io::Error| anyhow!("cannot send to {to}: {error}"))?;
        let mtu = Udp::path_mtu(to).map_or(MTU_MAX, |mtu| (mtu + 14).min(MTU_MAX));
        let link = Link::sockets([clone]).qdisc(qdisc).mtu(mtu).build();
        let link = link.context("cannot make a link")?;
        let now = MonotonicClock.now();
        Ok(Self {
            to,
            socket,
            sender: link.sender(),
            link,
            flows: HashMap::new(),
            shared: Vec::new(),
            longest: payload_max(to.ip()),
            payload_bytes: 0,
            submitted: 0,
            started: now,
            looked: now,
            progress: Progress::new(Duration::MAX),
        })
    }

    fn send(&mut self, id: FlowId, payload: &[u8]) -> Result<()> {
        if payload.len() > self.longest {
            let (size, longest) = (payload.len(), self.longest);
            bail!("a payload of {size} bytes: UDP to {} allows {longest}", self.to);
        }
        let flow = self.flow(id);
        loop {
            match self.sender.try_send(&flow, payload) {
                Ok(()) => break,
                Err(TrySendError::Full) => {
                    self.sender.wait_room_timeout(&flow, payload.len(), LOOK);
                    self.look();
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.submitted += 1;
        self.payload_bytes += payload.len() as u64;
        if self.submitted.is_multiple_of(1024) {
            self.look();
        }
        Ok(())
    }

    fn flow(&mut self, id: FlowId) -> Flow {
        if let Some(flow) = self.flows.get(&id) {
            return flow.clone();
        }
        if self.flows.len() < FLOWS_MAX {
            let flow = self.sender.flow(self.to);
            self.flows.insert(id, flow.clone());
            return flow;
        }
        if self.shared.is_empty() {
            self.shared = self.flows.values().cloned().collect();
        }
        let [(_, from), (_, to)] = id;
        self.shared[(usize::from(from) << 16 | usize::from(to)) % FLOWS_MAX].clone()
    }

    /// Shows progress now and then.
    fn look(&mut self) {
        let now = MonotonicClock.now();
        if now < self.looked + LOOK || now < self.started + LONG {
            return;
        }
        self.looked = now;
        let seconds = Duration::from_nanos(now.since(self.started)).as_secs();
        self.progress.show(&format!("{} datagrams in {seconds} s", self.submitted));
    }

    /// Waits until the qdisc has let everything go, however long that takes.
    fn close(
        mut self,
        from: String,
        qdisc: &str,
        loops: u32,
        counts: Counts,
    ) -> (Summary, Option<io::Error>) {
        while !self.link.flush(LOOK) {
            self.look();
        }
        let seconds = Duration::from_nanos(MonotonicClock.now().since(self.started));
        std::thread::sleep(ANSWER);
        let answer = self.socket.take_error().unwrap_or_else(Some);
        self.link.close(Duration::ZERO);
        let earlier = self.link.udp_stats().iter().any(|port| port.earlier_errors.get() > 0);
        let answer = answer.or_else(|| earlier.then(|| io::ErrorKind::ConnectionRefused.into()));
        let summary = Summary {
            from,
            to: self.to,
            qdisc: qdisc.to_owned(),
            loops,
            flows: self.flows.len(),
            counts,
            payload_bytes: self.payload_bytes,
            stats: self.link.stats(),
            seconds: seconds.as_secs_f64(),
            error: None,
        };
        (summary, answer)
    }
}

/// A failure, if the destination or the way there refused datagrams. What a qdisc drops, it was
/// asked to drop.
fn refusal(summary: &Summary, answer: Option<io::Error>) -> Option<anyhow::Error> {
    let to = summary.to;
    let fault = |reason: DropReason| match reason {
        DropReason::Refused => Some("nobody listens there; start a receiver first"),
        DropReason::Unreachable => Some("there is no way there"),
        DropReason::MessageSize => Some("the path does not take datagrams so large"),
        DropReason::NoPermission => Some("the kernel forbids it; look at the firewall"),
        DropReason::NoBuffers => Some("the kernel had no memory for them"),
        DropReason::DeviceError => Some("the socket failed"),
        _ => None,
    };
    for (reason, count) in &summary.stats.dropped {
        if let Some(why) = fault(*reason) {
            return Some(anyhow!("{count} datagrams to {to} were not sent: {why}"));
        }
    }
    answer.map(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            anyhow!("{to} answers that nobody listens there; start a receiver first")
        }
        _ => anyhow!("{to} cannot be reached: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let parsed = |text: &str| url(text).map(|url| (url.host, url.port));
        assert_eq!(parsed("udp://127.0.0.1:4000"), Ok(("127.0.0.1".into(), 4000)));
        assert_eq!(parsed("udp://[::1]:4000/"), Ok(("::1".into(), 4000)));
        assert_eq!(parsed("udp://host.example:9"), Ok(("host.example".into(), 9)));
        let wrong = [
            "127.0.0.1:4000",
            "tcp://127.0.0.1:4000",
            "udp://127.0.0.1",
            "udp://127.0.0.1:",
            "udp://127.0.0.1:0",
            "udp://127.0.0.1:70000",
            "udp://:4000",
            "udp://[::1]",
            "udp://",
            "",
        ];
        for text in wrong {
            assert!(url(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_rate_is_the_maxrate_of_fq() {
        let ok = |given, rate| qdisc(given, rate).expect("a qdisc");
        assert_eq!(ok(None, None), "fq");
        assert_eq!(ok(None, Some("10mbit")), "fq maxrate 10mbit");
        assert_eq!(ok(Some("fq limit 50"), Some("1mbit")), "fq limit 50 maxrate 1mbit");
        assert_eq!(ok(Some("pfifo limit 5"), None), "pfifo limit 5");
        let wrong = [
            (Some("pfifo"), Some("1mbit")),
            (Some("fq maxrate 1mbit"), Some("1mbit")),
            (None, Some("fast")),
            (None, Some("0mbit")),
            (None, Some("1mbit limit 5")),
            (Some("sfq"), None),
            (Some(""), None),
        ];
        for (given, rate) in wrong {
            let error = qdisc(given, rate).expect_err("wrong");
            assert!(error.downcast_ref::<crate::error::Usage>().is_some(), "{error}");
        }
    }
}
