//! A sender with what C adds to it: flows that are plain values, messages with several parts, and
//! completions that wait in a list.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZero;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Context;
use std::time::Duration;

use onramp::dev::Source;
use onramp::{Completion, Flow, Instant, Link, Mapping, Sender};

use crate::abi::FlowValue;
use crate::bell::Bell;
use crate::control::{self, ADDRESS_MAX};
use crate::end::End;
use crate::error::{Error, Result};
use crate::source::{Local, SOURCE_MAX};

/// Why a message of a link over devices has no source.
const NO_SOURCES: &str = "a link over devices has no addresses from which packets leave";

/// Most completions that wait for the caller. A sender with so many accepts no message: otherwise a
/// caller that never reads them would fill the memory.
const COMPLETIONS_MAX: usize = 65_536;

/// The completions that the caller has not read yet. The sender's callback adds to them.
type Completions = Arc<Mutex<VecDeque<Completion>>>;

/// What the senders of a link must know of it.
#[derive(Clone, Debug)]
pub(crate) struct Around {
    pub(crate) link: Link,
    /// The number of the link, by which its flows are recognised.
    pub(crate) id: u64,
    /// The socket of each port; none if the link sends through devices, whose packets have no
    /// destinations.
    pub(crate) ends: Arc<[End]>,
    /// Hashes destinations to flows, for all senders alike. Its keys are random, so nobody can
    /// choose addresses that share a flow.
    pub(crate) hasher: RandomState,
}

impl Around {
    /// Whether packets have destinations.
    fn addressed(&self) -> bool {
        !self.ends.is_empty()
    }

    /// Refuses a destination if packets have none.
    fn check_addressed(&self, dest: Option<SocketAddr>) -> Result<()> {
        if dest.is_none() || self.addressed() {
            return Ok(());
        }
        Err(Error::invalid("a link over devices has no addresses; pass NULL as the destination"))
    }

    /// Refuses a destination to which the socket of this port cannot send. `None`: the peer of the
    /// socket.
    fn check_dest(&self, port: usize, dest: Option<SocketAddr>) -> Result<()> {
        let Some(end) = self.ends.get(port) else { return Ok(()) };
        if end.sends_to(dest) {
            return Ok(());
        }
        end.why_not(port, dest, || {
            let socket = self.link.socket(port);
            socket.is_some_and(|socket| socket.peer_addr().is_ok())
        })
    }
}

/// One message to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    pub(crate) payload: &'a [u8],
    pub(crate) segment: u16,
    /// ECN code point; `None`: that of the flow.
    pub(crate) ecn: Option<u8>,
    pub(crate) txtime_ns: u64,
    pub(crate) cookie: u64,
}

/// Where a message goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Aim<'a> {
    Flow(&'a FlowValue),
    /// The flow of this way.
    Way(Way),
}

/// From where and to where a message without a flow goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// `None`: to the peer to which the socket is connected.
    pub(crate) dest: Option<SocketAddr>,
    /// `None`: the system chooses.
    pub(crate) from: Option<Local>,
}

/// A sender of a link.
#[derive(Debug)]
pub(crate) struct Sending {
    sender: Sender,
    around: Around,
    /// For each port, a flow over IPv4 and one over IPv6. Packets of other flows of the port are
    /// made by them, and then get their own key and destination.
    patterns: Vec<[Flow; 2]>,
    /// The way of the last message without a flow, and its flow.
    last: Option<(Way, Flow)>,
    /// Where the last message with a source left from. The senders of all threads look sources up
    /// under one lock, so a sender asks only if this is not the one.
    last_source: Option<(Local, Source)>,
    /// Whether packets of an earlier call wait in a cork, because they did not fit.
    corked: bool,
    completions: Option<Completions>,
    /// Made when the caller first asks for its descriptor.
    bell: Option<Bell>,
}

impl Sending {
    pub(crate) fn new(around: Around, reports: bool) -> Self {
        let mut sender = around.link.sender();
        let pattern = |port| {
            let v6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
            let on = Mapping::Port(port);
            [sender.flow_with(None, on), sender.flow_with(v6, on)]
        };
        let patterns = (0..around.link.ports()).map(pattern).collect();
        let completions = reports.then(Completions::default);
        if let Some(list) = completions.clone() {
            sender.on_complete(move |completion| lock(&list).push_back(completion));
        }
        Self {
            sender,
            around,
            patterns,
            last: None,
            last_source: None,
            corked: false,
            completions,
            bell: None,
        }
    }

    /// Makes a flow to the address in `bytes`; without bytes, to the peer of the socket.
    pub(crate) fn flow(&self, bytes: &[u8]) -> Result<FlowValue> {
        let dest = if bytes.is_empty() { None } else { control::address(bytes)? };
        self.around.check_addressed(dest)?;
        let flow = self.sender.flow(dest);
        // A flow to no address may serve only to wait for room, so a missing peer is an error of
        // the call that sends.
        if let Some(dest) = dest {
            self.around.check_dest(flow.port(), Some(dest))?;
        }
        let mut address = [0; ADDRESS_MAX];
        let len = bytes.len().min(if dest.is_some() { ADDRESS_MAX } else { 0 });
        address[..len].copy_from_slice(&bytes[..len]);
        let port = u32::try_from(flow.port()).unwrap_or(u32::MAX);
        let (link, key) = (self.around.id, flow.key());
        Ok(FlowValue {
            link,
            key,
            pacing_rate: 0,
            port,
            priority: 0,
            mark: 0,
            address,
            ecn: 0,
            reserved: 0,
            source: 0,
            reserved2: [0; 4],
        })
    }

    /// Begins a call that sends `count` messages. They enter their ports together at
    /// [`end`](Self::end). Messages of an earlier call that did not fit into their port enter it
    /// first. If they still do not fit, this call fails or, if `waits`, waits until they do.
    pub(crate) fn begin(&mut self, count: usize, waits: bool) -> Result<()> {
        if let Some(list) = &self.completions
            && lock(list).len() >= COMPLETIONS_MAX
        {
            let text = format!(
                "{COMPLETIONS_MAX} completions wait: read them with onramp_sender_completions"
            );
            return Err(Error::new(libc::ENOBUFS, text));
        }
        self.settle(waits)?;
        if count > 1 {
            self.sender.cork();
            self.corked = true;
        }
        Ok(())
    }

    /// Ends what [`begin`](Self::begin) has begun. If some messages do not fit into their port, the
    /// next call submits them first, because they have been accepted; if `waits`, this call waits
    /// until they fit.
    pub(crate) fn end(&mut self, waits: bool) {
        let _ = self.settle(waits);
    }

    /// Submits the packets that wait in a cork. If some do not fit, fails or, if `waits`, waits.
    fn settle(&mut self, waits: bool) -> Result<()> {
        if self.corked {
            if waits {
                // Without a limit, the call returns only when the cork has ended.
                self.sender.uncork_timeout(Duration::MAX);
            } else {
                self.sender.uncork()?;
            }
            self.corked = false;
        }
        Ok(())
    }

    /// Accepts a message, or says why not.
    pub(crate) fn push(&mut self, aim: Aim<'_>, message: &Message<'_>) -> Result<()> {
        let Self { sender, patterns, .. } = self;
        match aim {
            Aim::Flow(value) => {
                let (pattern, dest) = pattern(&self.around, patterns, value)?;
                if dest.is_none() {
                    self.around.check_dest(pattern.port(), None)?;
                }
                let mut packet = sender.packet(pattern, message.payload)?;
                packet.set_dest(dest);
                packet.set_source(NonZero::new(value.source));
                (packet.flow, packet.pacing_rate) = (value.key, value.pacing_rate);
                (packet.priority, packet.mark) = (value.priority, value.mark);
                packet.ecn = message.ecn.unwrap_or(value.ecn);
                (packet.txtime_ns, packet.cookie) = (message.txtime_ns, message.cookie);
                packet.gso_size = message.gso_size();
                sender.submit(pattern, packet).map_err(|rejected| rejected.why)?;
            }
            Aim::Way(way) => {
                let flow = self.flow_of(way)?.clone();
                let message = onramp::Message {
                    payload: message.payload,
                    segment: message.gso_size(),
                    ecn: message.ecn,
                    txtime: (message.txtime_ns > 0).then_some(Instant(message.txtime_ns)),
                    cookie: message.cookie,
                };
                // A large message leaves without a copy, if nothing makes it wait.
                self.sender.try_send_message(&flow, &message)?;
            }
        }
        Ok(())
    }

    /// Accepts a message as [`push`](Self::push) does; waits for room.
    pub(crate) fn push_waiting(&mut self, aim: Aim<'_>, message: &Message<'_>) -> Result<()> {
        loop {
            match self.push(aim, message) {
                Err(error) if error.errno == libc::EAGAIN => {}
                done => return done,
            }
            self.end(false);
            let flow = match aim {
                Aim::Flow(value) => pattern(&self.around, &self.patterns, value)?.0.clone(),
                Aim::Way(way) => self.flow_of(way)?.clone(),
            };
            self.sender.wait_room(&flow, message.payload.len());
        }
    }

    /// Returns the flow of a way. The key is a hash, so the sender keeps nothing for each
    /// destination. It keeps the last flow, because many messages go the same way in a row.
    fn flow_of(&mut self, way: Way) -> Result<&Flow> {
        let flow = match self.last.take() {
            Some((last, flow)) if last == way => flow,
            _ => self.new_flow(way)?,
        };
        Ok(&self.last.insert((way, flow)).1)
    }

    fn new_flow(&mut self, way: Way) -> Result<Flow> {
        let Way { dest, from } = way;
        self.around.check_addressed(dest)?;
        let source = from.map(|from| self.source(from, dest)).transpose()?;
        let mapping = Mapping::Hash(self.around.hasher.hash_one((dest, source)));
        let flow = self.sender.flow_with(dest, mapping);
        self.around.check_dest(flow.port(), dest)?;
        Ok(match source {
            Some(source) => flow.with_source(source),
            None => flow,
        })
    }

    /// Returns the source of messages to `dest` that are to leave from `from`.
    fn source(&mut self, from: Local, dest: Option<SocketAddr>) -> Result<Source> {
        if !self.around.addressed() {
            return Err(Error::invalid(NO_SOURCES));
        }
        from.check(dest)?;
        let source = match self.last_source {
            Some((last, source)) if last == from => source,
            _ => from.source()?,
        };
        self.last_source = Some((from, source));
        Ok(source)
    }

    /// Waits until `bytes` of payload are likely to have room on the flow. Returns whether they do.
    pub(crate) fn wait(&mut self, value: &FlowValue, bytes: usize, most: Duration) -> Result<bool> {
        self.end(false);
        let flow = pattern(&self.around, &self.patterns, value)?.0;
        Ok(self.sender.wait_room_timeout(flow, bytes, most))
    }

    /// Returns the bell of the sender.
    fn bell(&mut self) -> Result<&Bell> {
        let bell = match self.bell.take() {
            Some(bell) => bell,
            None => Bell::new().map_err(|error| Error::system("make an eventfd", &error))?,
        };
        Ok(self.bell.insert(bell))
    }

    /// Returns the descriptor that becomes readable after [`arm`](Self::arm).
    pub(crate) fn fd(&mut self) -> Result<usize> {
        let fd = self.bell()?.fd();
        usize::try_from(fd).map_err(|_| Error::new(libc::EBADF, format!("{fd} is no descriptor")))
    }

    /// Whether there is room for `bytes` of payload on the flow. If not, the descriptor becomes
    /// readable when there may be.
    pub(crate) fn arm(&mut self, value: &FlowValue, bytes: usize) -> Result<bool> {
        self.end(false);
        let bell = self.bell()?;
        bell.reset();
        let waker = bell.waker.clone();
        let flow = pattern(&self.around, &self.patterns, value)?.0;
        let mut cx = Context::from_waker(&waker);
        Ok(self.sender.poll_ready(&mut cx, flow, bytes).is_ready())
    }

    pub(crate) fn flush(&mut self, most: Duration) -> bool {
        let done = self.sender.flush(most);
        self.end(false);
        done
    }

    /// Returns how many packets are still on their way. Looks which have left since the last call.
    pub(crate) fn in_flight(&mut self) -> usize {
        // What did not fit into its port enters it now: a program that only asks until nothing is
        // in flight makes no other call that would submit it.
        self.end(false);
        self.sender.reclaim();
        self.sender.in_flight() as usize
    }

    /// Calls `put` with the completions that have come, `most` at most.
    pub(crate) fn completions(&mut self, most: usize, put: impl FnMut(Completion)) -> Result<()> {
        self.sender.reclaim();
        let Some(list) = &self.completions else {
            let text = "the sender was made without ONRAMP_COMPLETIONS";
            return Err(Error::invalid(text));
        };
        let mut list = lock(list);
        let count = list.len().min(most);
        list.drain(..count).for_each(put);
        Ok(())
    }
}

impl Message<'_> {
    /// Returns the size of the datagrams into which the payload is cut; 0 if it is one datagram.
    fn gso_size(&self) -> u16 {
        if self.payload.len() > usize::from(self.segment) { self.segment } else { 0 }
    }
}

/// Returns the flow by which packets of the flow `value` are made, and their destination.
fn pattern<'a>(
    around: &Around,
    patterns: &'a [[Flow; 2]],
    value: &FlowValue,
) -> Result<(&'a Flow, Option<SocketAddr>)> {
    if value.link != around.id {
        let text = "the flow belongs to another link; onramp_flow_init makes one of this link";
        return Err(Error::invalid(text));
    }
    if value.ecn > 3 || value.reserved != 0 || value.reserved2 != [0; 4] {
        let text = format!(
            "the flow's ecn is {}, its reserved is {} and its reserved2 is {:?}; expected 0 to 3, \
             and zeros",
            value.ecn, value.reserved, value.reserved2
        );
        return Err(Error::invalid(text));
    }
    if value.source > SOURCE_MAX {
        let text = format!("the flow's source is {}; onramp_flow_from sets it", value.source);
        return Err(Error::invalid(text));
    }
    if value.source > 0 && !around.addressed() {
        return Err(Error::invalid(NO_SOURCES));
    }
    let dest = control::address(&value.address)?;
    let pair = usize::try_from(value.port).ok().and_then(|port| patterns.get(port));
    let Some([v4, v6]) = pair else {
        let text = format!(
            "the flow's port is {}, and the link has {}; onramp_flow_init sets it",
            value.port,
            patterns.len()
        );
        return Err(Error::invalid(text));
    };
    Ok((if dest.is_some_and(|dest| dest.is_ipv6()) { v6 } else { v4 }, dest))
}

/// Makes packets of a flow leave from the address in `bytes`, and from the interface. Without
/// bytes, the system chooses the address.
pub(crate) fn set_source(value: &mut FlowValue, bytes: &[u8], interface: u32) -> Result<()> {
    let dest = control::address(&value.address)?;
    let given = if bytes.is_empty() { None } else { control::address(bytes)? };
    let any = match dest {
        Some(SocketAddr::V6(to)) if to.ip().to_ipv4_mapped().is_none() => {
            IpAddr::V6(Ipv6Addr::UNSPECIFIED)
        }
        _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    };
    let from = Local::new(given.map_or(any, |given| given.ip()), interface);
    value.source = match from {
        Some(from) => {
            from.check(dest)?;
            from.source()?.number().get()
        }
        None => 0,
    };
    Ok(())
}

/// Locks the list of completions. A panic leaves it whole.
fn lock(list: &Completions) -> std::sync::MutexGuard<'_, VecDeque<Completion>> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
