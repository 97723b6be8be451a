//! The designs in which requests and answers pass a link of Onramp. If packets are left after a
//! quota, the link's runner sends them at once. Senders wake the runner only if it sleeps and is
//! needed.

use std::time::Duration;

use onramp::{Credits, Flow, Link, Mode};
use onramp_dev::Network;

use super::{Counts, Design, PACKETS_MAX, PAYLOAD, Plan, QDISC, address};
use crate::Error;
use crate::exchange::{self, Path};

/// The path of requests and answers through a link of Onramp.
#[derive(Debug)]
pub(super) struct InLink {
    link: Link,
    design: Design,
    places: usize,
}

impl InLink {
    pub(super) fn new(network: &Network, plan: &Plan, design: Design) -> Result<Self, Error> {
        let packets = u32::try_from(plan.burst.min(PACKETS_MAX)).unwrap_or(u32::MAX);
        let mode = match design {
            Design::OnrampInline => Mode::Inline,
            Design::OnrampDedicated => Mode::Dedicated,
            _ => Mode::Hybrid,
        };
        let link = Link::devices([Box::new(network.queue()) as Box<_>])
            .qdisc(QDISC)
            .mode(mode)
            .credits(Credits { packets, bytes: 1 << 24 })
            .build()
            .map_err(Error::Link)?;
        Ok(Self { link, design, places: 2 * plan.clients })
    }
}

impl Path for InLink {
    type End<'a> = End;
    type Counts = Counts;

    fn name(&self) -> String {
        format!("softirq, {}", self.design.name())
    }

    fn end(&self, number: usize, burst: usize) -> End {
        let sender = self.link.sender();
        // Server `n` answers client `n`, and client `n` asks server `n`.
        let to = (number + self.places / 2) % self.places;
        let flow = sender.flow(address(self.places, to));
        let payloads = vec![[0x5a; PAYLOAD]; burst];
        End { sender, flow, to, payloads, flushes: self.design == Design::OnrampFlush }
    }

    fn counts(&self) -> Counts {
        let stats = self.link.stats();
        Counts {
            calls: stats.runner_calls,
            notifies: stats.runner_notifies,
            wakeups: stats.runner_wakeups,
            idle: stats.runner_idle_wakeups,
            restarts: stats.runner_restarts,
        }
    }
}

/// One thread's end of the path: a sender of the link.
#[derive(Debug)]
pub(super) struct End {
    sender: onramp::Sender,
    flow: Flow,
    to: usize,
    payloads: Vec<[u8; PAYLOAD]>,
    flushes: bool,
}

impl exchange::End for End {
    fn submit(&mut self, place: usize, count: usize) {
        assert_eq!(place, self.to, "each has one partner");
        // Ignore an error: sending fails only if the link's port has died. Then no answer arrives,
        // and the run reports that.
        let _ = self.sender.send_batch(&self.flow, &self.payloads[..count]);
        if self.flushes {
            self.sender.flush(Duration::ZERO);
        }
    }
}
