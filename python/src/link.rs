//! A link over UDP sockets without threads, as a Python class.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd as _, IntoRawFd as _};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use onramp::dev::Source;
use onramp::{Credits, Flow, Instant, Mapping, Message, PortError, Sender};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyDict, PyString};

use crate::args::{self, Payload};
use crate::completion::{Completion, Completions};
use crate::{errors, lines};

/// Bytes of the largest payload of a datagram over IPv4.
const PAYLOAD_BYTES: u32 = 65_507;

/// A link over UDP sockets without threads: ``onramp.Link`` is this class with methods for asyncio.
///
/// A link belongs to the thread and to the process that made it: in another thread, and in a child
/// of ``fork``, every method raises ``RuntimeError``.
#[pyclass(module = "onramp._native", subclass)]
pub(crate) struct Link {
    link: onramp::Link,
    /// The link's only sender. The lock is never contended: it only makes the class `Sync`.
    sender: Mutex<Sender>,
    /// What became of the link's datagrams, if the program wants to know.
    completions: Option<Completions>,
    /// Whether the sockets are of IPv6. They send to IPv4 addresses too.
    is_ipv6: bool,
    closed: bool,
    thread: ThreadId,
    process: u32,
}

/// Reads the address of a socket as Python writes it: a tuple of the host, the port and, for IPv6,
/// optionally the flow label and the scope.
fn address(given: &Bound<'_, PyAny>, name: &str) -> PyResult<SocketAddr> {
    let (host, port, label, scope) = given
        .extract::<(String, u16)>()
        .map(|(host, port)| (host, port, 0, 0))
        .or_else(|_| given.extract::<(String, u16, u32, u32)>())
        .map_err(|_| no_address(given, name))?;
    let host: IpAddr = host.parse().map_err(|_| {
        errors::value(format!(
            "{name}: {host:?} is no IP address; resolve names first, with loop.getaddrinfo"
        ))
    })?;
    Ok(match host {
        IpAddr::V4(_) => SocketAddr::new(host, port),
        IpAddr::V6(host) => SocketAddrV6::new(host, port, label, scope).into(),
    })
}

/// Returns the error for an address that is none.
#[cold]
fn no_address(given: &Bound<'_, PyAny>, name: &str) -> PyErr {
    let port = given.get_item(1).and_then(|port| port.extract::<i64>());
    let is_right = given.get_item(0).is_ok_and(|host| host.is_instance_of::<PyString>());
    errors::value(match port {
        Ok(port) if is_right && u16::try_from(port).is_err() => {
            let least = u16::from(name == "dest");
            format!("{name}: the port number is {port}; expected {least} to 65535")
        }
        _ => format!("{name}: expected (host, port), as a socket has it"),
    })
}

/// Reads the local address from which datagrams to `dest` leave.
fn source(given: &str, dest: SocketAddr) -> PyResult<Source> {
    let address: IpAddr = given.parse().map_err(|_| {
        errors::value(format!("source: {given:?} is no IP address; expected one of this machine"))
    })?;
    // A socket for IPv6 writes addresses of IPv4 as `::ffff:127.0.0.1`.
    let family = |address: IpAddr| if address.to_canonical().is_ipv4() { "IPv4" } else { "IPv6" };
    let (from, to) = (family(address), family(dest.ip()));
    if from != to {
        let text = format!("source: {given} is an address of {from}, but {dest} is one of {to}");
        return Err(errors::value(text));
    }
    Source::new(address, 0).map_err(errors::quota)
}

/// Returns the key by which qdiscs tell a flow from others.
fn key(dest: SocketAddr, flow: Option<u64>) -> u64 {
    flow.unwrap_or_else(|| {
        let mut hasher = DefaultHasher::new();
        dest.hash(&mut hasher);
        hasher.finish()
    })
}

/// Returns the error for a port that has no socket.
fn no_socket(port: usize) -> PyErr {
    errors::value(format!("port: {port}: the link has no socket for it"))
}

/// Returns an address as Python writes it.
fn tuple(py: Python<'_>, address: SocketAddr) -> PyResult<Bound<'_, PyAny>> {
    Ok(match address {
        SocketAddr::V4(four) => (four.ip().to_string(), four.port()).into_pyobject(py)?.into_any(),
        SocketAddr::V6(six) => (six.ip().to_string(), six.port(), six.flowinfo(), six.scope_id())
            .into_pyobject(py)?
            .into_any(),
    })
}

impl Link {
    fn sender(&mut self) -> &mut Sender {
        self.sender.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the address of a receiver. Refuses one to which the sockets cannot send.
    fn dest(&self, given: &Bound<'_, PyAny>) -> PyResult<SocketAddr> {
        let dest = address(given, "dest")?;
        if dest.port() == 0 {
            return Err(errors::value("dest: the port number is 0; expected 1 to 65535"));
        }
        match dest.ip() {
            IpAddr::V6(ip) if !self.is_ipv6 && ip.to_ipv4_mapped().is_none() => {
                Err(errors::value(format!(
                    "dest: {ip} is an address of IPv6, but the link is bound to one of IPv4; bind \
                     it with local=(\"::\", 0), which sends to both"
                )))
            }
            _ => Ok(dest),
        }
    }

    /// Gives messages to the link, as many as it has room for, and returns their number.
    fn offer(&mut self, flow: &Flow, messages: &[Message<'_>]) -> PyResult<usize> {
        let sender = self.sender();
        let mut send = || match messages {
            // The sender lends a single large payload to an idle port, and copies those of a batch.
            [message] => sender.try_send_message(flow, message).map(|()| 1),
            _ => sender.try_send_messages(flow, messages.iter().copied()),
        };
        // The second try sends packets that are only staged, if that frees credit.
        let tried = send().or_else(|_| send());
        tried.or_else(|error| errors::send(error).map_or(Ok(0), Err))
    }

    /// Checks that the caller may use the link.
    fn check(&self) -> PyResult<()> {
        if self.process != std::process::id() {
            return Err(PyRuntimeError::new_err(format!(
                "the link was made in process {}, before a fork: make a link in each process",
                self.process
            )));
        }
        if self.thread != thread::current().id() {
            let text = "the link belongs to the thread that made it: use it there, or have the \
                        thread's event loop do so (loop.call_soon_threadsafe)";
            return Err(PyRuntimeError::new_err(text));
        }
        Ok(())
    }
}

#[pymethods]
impl Link {
    #[new]
    #[pyo3(signature = (
        local = None, *, qdisc = None, ports = 1, rate = None, mtu = None, credits = None,
        credit_time = None, completions = false, seed = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    fn new(
        local: Option<&Bound<'_, PyAny>>,
        qdisc: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = args::ports)] ports: usize,
        #[pyo3(from_py_with = args::rate)] rate: Option<PyBackedStr>,
        #[pyo3(from_py_with = args::mtu_or_none)] mtu: Option<u32>,
        #[pyo3(from_py_with = args::credits_or_none)] credits: Option<u32>,
        #[pyo3(from_py_with = args::credit_time)] credit_time: Option<Duration>,
        completions: bool,
        #[pyo3(from_py_with = args::seed_or_none)] seed: Option<u64>,
    ) -> PyResult<Self> {
        let any = SocketAddr::from(([0, 0, 0, 0], 0));
        let local = local.map_or(Ok(any), |local| address(local, "local"))?;
        let mut builder = onramp::Link::udp(local).ports(ports).manual();
        if let Some(qdisc) = qdisc {
            builder = builder.tree(&lines::setup(qdisc, "qdisc")?);
        }
        if let Some(rate) = rate {
            builder = builder.rate(lines::rate(&rate, "rate")?);
        }
        if let Some(mtu) = mtu {
            builder = builder.mtu(mtu);
        }
        if let Some(packets) = credits {
            // The program counts payloads, so their bytes must not be the lower limit.
            let bytes = packets.saturating_mul(PAYLOAD_BYTES);
            builder = builder.credits(Credits { packets, bytes });
        }
        if let Some(time) = credit_time {
            builder = builder.credit_time(time);
        }
        if let Some(seed) = seed {
            builder = builder.seed(seed);
        }
        let link = builder.build().map_err(errors::build)?;
        let mut sender = link.sender();
        let completions = completions.then(|| Completions::of(&mut sender));
        let sender = Mutex::new(sender);
        let (thread, process) = (thread::current().id(), std::process::id());
        let is_ipv6 = local.is_ipv6();
        Ok(Self { link, sender, completions, is_ipv6, closed: false, thread, process })
    }

    /// Gives datagrams to the link, as many as it has room for, and returns their number.
    ///
    /// Never waits. ``dest`` is the address of the receiver: an IP address and a port. A payload is
    /// any object with the buffer protocol, such as ``bytes`` or a ``memoryview``. ``flow`` is
    /// the key of the flow (None: all datagrams to one destination are one flow), ``pacing_rate``
    /// the rate to which ``fq`` paces the flow, such as ``"2mbit"``, headers included. With
    /// ``segment``, each payload is several datagrams of so many bytes, the last one of the rest,
    /// which qdiscs see as one packet. ``fq`` and ``etf`` hold datagrams back until ``txtime``, in
    /// seconds of ``time.monotonic()``. ``cookie`` is a number that the completions have. The
    /// datagrams leave from the IP address ``source``, one of this machine (None: from the address
    /// to which the link is bound, or that the system chooses). The link copies the payloads,
    /// except a single one of 4,096 bytes or more that need not wait.
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    #[pyo3(signature = (
        dest, payloads, *, flow = None, priority = 0, mark = 0, ecn = 0, pacing_rate = None,
        segment = 0, txtime = None, cookie = 0, source = None
    ))]
    fn try_send(
        &mut self,
        dest: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = args::payloads)] payloads: Vec<Payload>,
        #[pyo3(from_py_with = args::flow_or_none)] flow: Option<u64>,
        #[pyo3(from_py_with = args::priority)] priority: u32,
        #[pyo3(from_py_with = args::mark)] mark: u32,
        #[pyo3(from_py_with = args::ecn)] ecn: u8,
        #[pyo3(from_py_with = args::pacing_rate)] pacing_rate: Option<PyBackedStr>,
        #[pyo3(from_py_with = args::segment)] segment: u16,
        #[pyo3(from_py_with = args::txtime)] txtime: Option<Duration>,
        #[pyo3(from_py_with = args::cookie)] cookie: u64,
        #[pyo3(from_py_with = args::source)] source: Option<PyBackedStr>,
    ) -> PyResult<usize> {
        self.check()?;
        let dest = self.dest(dest)?;
        if ecn > 3 {
            return Err(errors::value(format!("ecn: {ecn}: expected 0 to 3")));
        }
        let txtime = txtime.map(|time| Instant(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)));
        if let Some(completions) = &self.completions {
            completions.check()?;
        }
        let flow = self.sender().flow_with(dest, Mapping::Hash(key(dest, flow)));
        let mut flow = flow.with_priority(priority).with_mark(mark).with_ecn(ecn);
        if let Some(rate) = pacing_rate {
            flow.set_pacing_rate(lines::rate(&rate, "pacing_rate")?);
        }
        if let Some(given) = source {
            flow = flow.with_source(self::source(&given, dest)?);
        }
        let messages: Vec<_> = payloads
            .iter()
            .map(|Payload(payload)| {
                // A payload that is no longer than one segment is one datagram.
                let segment = if payload.len() > segment.into() { segment } else { 0 };
                Message { payload, segment, ecn: None, txtime, cookie }
            })
            .collect();
        self.offer(&flow, &messages)
    }

    /// Returns what became of the datagrams that have left, or were dropped, since the last call.
    ///
    /// The link must have been made with ``completions=True``. It accepts no datagrams while 65,536
    /// completions wait. They come in no particular order, one for each payload.
    fn completions(&mut self) -> PyResult<Vec<Completion>> {
        self.check()?;
        self.sender().reclaim();
        match &self.completions {
            Some(completions) => Ok(completions.take()),
            None => Err(errors::value("completions: the link was made without completions=True")),
        }
    }

    /// Sends the datagrams whose time has come. Call it when ``fileno()`` is readable.
    ///
    /// Returns how many seconds later to call it again, which the descriptor tells too; None if
    /// nothing is left to do until the program sends again.
    fn run(&mut self) -> PyResult<Option<f64>> {
        self.check()?;
        let next = self.link.run();
        self.sender().reclaim();
        let now = self.link.now();
        Ok(next.map(|next| Duration::from_nanos(next.since(now)).as_secs_f64()))
    }

    /// Returns the number of the descriptor that is readable when ``run`` has work.
    fn fileno(&self) -> PyResult<i32> {
        self.check()?;
        let descriptor = self.link.descriptor();
        Ok(descriptor.unwrap_or_else(|| unreachable!("the link has no threads")).as_raw_fd())
    }

    /// Returns the number of datagrams that the link has accepted, and that it has neither sent nor
    /// dropped yet.
    fn in_flight(&mut self) -> PyResult<u32> {
        self.check()?;
        self.sender().reclaim();
        Ok(self.sender().in_flight())
    }

    /// Changes the link's tree of qdiscs by a line of tc, such as ``"qdisc replace root fq"``.
    fn tc(&mut self, line: &str) -> PyResult<()> {
        self.check()?;
        let mut tried = (*self.link.setup()).clone();
        lines::apply(&mut tried, line).map_err(errors::value)?;
        let line = lines::whole(&self.link.setup(), line);
        self.link.change(line).map(|_| ()).map_err(errors::port)
    }

    /// Returns the local address of the socket of a port, as ``socket.getsockname`` does.
    #[pyo3(signature = (port = 0))]
    fn local_addr<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = args::port)] port: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.check()?;
        match self.link.local_addr(port) {
            Some(address) => tuple(py, address),
            None => Err(no_socket(port)),
        }
    }

    /// Returns a new socket, to receive the datagrams that come to the socket of a port: a link
    /// only sends.
    ///
    /// The new ``socket.socket`` does not block. Close it when you no longer need it, also if the
    /// link is closed: until then, it keeps the port number. It is a duplicate of the link's
    /// socket, so options (``setsockopt``) and ``connect`` apply to both, and of several
    /// duplicates each datagram comes to one.
    #[pyo3(signature = (port = 0))]
    fn socket<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = args::port)] port: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.check()?;
        if self.closed {
            return Err(errors::port(PortError::Closed));
        }
        let Some(socket) = self.link.socket(port) else { return Err(no_socket(port)) };
        let copy = socket.try_clone()?;
        let options = PyDict::new(py);
        options.set_item("fileno", copy.as_raw_fd())?;
        let made = py.import("socket")?.getattr("socket")?.call((), Some(&options))?;
        // From here on, Python's socket closes the descriptor.
        let _ = copy.into_raw_fd();
        made.call_method1("setblocking", (false,))?;
        Ok(made)
    }

    /// Returns the key of the flow of datagrams to ``dest`` that are given this ``flow``.
    #[pyo3(signature = (dest, flow = None))]
    fn _flow_key(
        &self,
        dest: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = args::flow_or_none)] flow: Option<u64>,
    ) -> PyResult<u64> {
        Ok(key(address(dest, "dest")?, flow))
    }

    /// Returns the counters of the link: while nothing moves, ``submitted`` + ``made`` = ``sent`` +
    /// ``dropped`` (by reason) + ``held``.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.check()?;
        let stats = self.link.stats();
        let dropped = PyDict::new(py);
        for (reason, count) in &stats.dropped {
            dropped.set_item(reason.name(), count)?;
        }
        let counters = PyDict::new(py);
        for (name, count) in [
            ("submitted", stats.submitted),
            ("made", stats.made),
            ("refused", stats.refused),
            ("sent", stats.sent),
            ("sent_bytes", stats.sent_bytes),
            ("held", stats.held),
            ("credits", stats.credits.into()),
            ("waits", stats.waits),
        ] {
            counters.set_item(name, count)?;
        }
        counters.set_item("dropped", dropped)?;
        Ok(counters)
    }

    /// Refuses new datagrams, drops those that are left, and returns their number. Never waits.
    fn shut(&mut self) -> PyResult<u64> {
        self.check()?;
        self.closed = true;
        Ok(self.link.close(Duration::ZERO).purged)
    }
}
