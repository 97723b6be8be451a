//! Methods that send with Onramp: one link for all threads, and a sender for each thread.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use onramp::{BuildError, Flow, Link, Mode, Sender, TrySendError};

use super::{Closing, PathCounts, Session, Taken, ThreadCx, ThreadRecord, Worker, drive};
use crate::bench::plan::Plan;
use crate::error::usage;

/// How long a sender may wait for room. This time is limited so that a round can end.
const WAIT: Duration = Duration::from_millis(100);
/// Largest number of ports that a link has if the user does not set the number.
const PORTS_DEFAULT_MAX: usize = 64;

/// Returns the number of file descriptors that a link opens.
pub(super) fn files(plan: &Plan) -> usize {
    plan.queues.unwrap_or(PORTS_DEFAULT_MAX)
}

/// Opens a link with the settings of `plan`.
pub(super) fn open(plan: &Plan, mode: Mode, targets: &[SocketAddr]) -> Result<Box<dyn Session>> {
    let ipv4 = targets.first().is_none_or(SocketAddr::is_ipv4);
    let any: IpAddr = if ipv4 { [0; 4].into() } else { [0u16; 8].into() };
    let mut builder = Link::udp((any, 0)).qdisc(&plan.qdisc).mode(mode);
    if let Some(ports) = plan.queues {
        builder = builder.ports(ports);
    }
    let link = builder.build().map_err(|error| match error {
        BuildError::Qdisc(error) => usage(format!("--qdisc {}: {error}", plan.qdisc)),
        error => anyhow::Error::new(error).context("cannot make a link"),
    })?;
    Ok(Box::new(Linked { link, targets: targets.to_vec() }))
}

struct Linked {
    link: Link,
    targets: Vec<SocketAddr>,
}

impl Session for Linked {
    fn run(&self, cx: &ThreadCx<'_>) -> ThreadRecord {
        let sender = self.link.sender();
        let targets = &self.targets[cx.first_flow..][..cx.submitted.len()];
        let flows = targets.iter().map(|target| sender.flow(*target)).collect();
        drive(&mut Staging { sender, flows, batch: cx.plan.batch }, cx)
    }

    fn counts(&self) -> Option<PathCounts> {
        let mut counts = PathCounts::default();
        for port in self.link.udp_stats() {
            counts.sent += port.segments.get();
            counts.messages += port.messages.get();
            counts.calls += port.calls.get();
        }
        Some(counts)
    }

    fn finish(self: Box<Self>, patience: Duration) -> Closing {
        self.link.close(patience);
        let stats = self.link.stats();
        let drops: BTreeMap<_, _> =
            stats.dropped.iter().map(|(reason, count)| (reason.name(), *count)).collect();
        Closing { drops, held: stats.held, deaths: self.link.deaths() }
    }
}

/// The sender of one thread, with the thread's flows.
struct Staging {
    sender: Sender,
    flows: Vec<Flow>,
    batch: usize,
}

impl Worker for Staging {
    fn batch(&self) -> usize {
        self.batch
    }

    fn send(&mut self, flow: usize, payload: &[u8], size: usize) -> Taken {
        let flow = &self.flows[flow];
        let taken = if self.batch == 1 {
            self.sender.try_send(flow, payload).map(|()| 1)
        } else {
            self.sender.try_send_batch(flow, payload.chunks_exact(size))
        };
        match taken {
            Ok(count) => Taken::Datagrams(count),
            Err(TrySendError::Full) => Taken::Full,
            Err(error) => Taken::Lost(1, io::Error::other(error)),
        }
    }

    fn give_way(&mut self) {
        self.sender.give_way();
    }

    fn wait(&mut self, flow: usize, size: usize) {
        self.sender.wait_room_timeout(&self.flows[flow], size, WAIT);
    }
}

#[cfg(test)]
mod tests {
    use onramp::{Device, DeviceInfo, DropReason, Instant, PacketList, Transmitted};

    use super::*;
    use crate::bench::method::Measurement;
    use crate::bench::planted;
    use crate::error::line;
    use onramp_lab::measure::{Gate, Phase, PhaseCell};

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
    fn a_port_that_dies_ends_nobody_and_everything_has_a_reason() {
        let device = Box::new(Mortal(DeviceInfo::new("mortal".to_owned(), 1_514)));
        let link = Link::devices([device as Box<dyn Device>]).build().expect("a link");
        let session = Linked { link, targets: vec![([127, 0, 0, 1], 9).into()] };
        let (plan, gate, phase) = (planted::plan(), Gate::default(), PhaseCell::new());
        let (submitted, calls) = ([Measurement::default()], Measurement::default());
        let cx = ThreadCx {
            plan: &plan,
            gate: &gate,
            phase: &phase,
            thread: 0,
            first_flow: 0,
            submitted: &submitted,
            calls: &calls,
        };
        gate.open();
        let record = std::thread::scope(|scope| {
            let sender = scope.spawn(|| session.run(&cx));
            while submitted[0].0.get() < 1_000 {
                std::thread::yield_now();
            }
            phase.set(Phase::Stop);
            sender.join().expect("the sender lives")
        });
        let closing = Box::new(session).finish(Duration::from_secs(60));
        assert_eq!(closing.deaths, [(0, "it has had enough".to_owned())]);
        let dead = DropReason::PortDead.name();
        let lost = closing.drops[dead] + record.lost[dead];
        assert_eq!(lost, submitted[0].0.get(), "{closing:?} {:?}", record.lost);
        assert_eq!((closing.drops.len(), record.lost.len()), (1, 1));
    }

    #[test]
    fn what_a_link_says_is_said_once_and_with_advice() {
        let mut plan = planted::plan();
        let told = |plan: &Plan| match open(plan, Mode::Hybrid, &[([127, 0, 0, 1], 9).into()]) {
            Ok(_) => panic!("a link that cannot be"),
            Err(error) => line(&format!("{error:#}")),
        };
        plan.queues = Some(70_000);
        assert_eq!(
            told(&plan),
            "cannot make a link: the number of ports is 70000; expected 1 to 65535"
        );
        plan.qdisc = "fq limit many".to_owned();
        assert_eq!(told(&plan).matches("illegal \"limit\" \"many\"").count(), 1);

        // Binding to 192.0.2.1 must fail, because no machine has this address: RFC 5737 reserves it
        // for documentation.
        let error = Link::udp("192.0.2.1:0").ports(1).build().expect_err("not ours");
        let message =
            line(&format!("{:#}", anyhow::Error::new(error).context("cannot make a link")));
        assert_eq!(message.matches("os error").count(), 1, "{message}");
        assert!(message.ends_with("choose an address of this machine"), "{message}");
    }
}
