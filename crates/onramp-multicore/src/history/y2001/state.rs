//! What there is in the simulation of 2001: processors, processes, cards, clients, and the events
//! that are to come.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::super::window::{Halves, Varied, Window};
use super::software::{Kernel, Software};

/// What can run on a processor, each interrupted by the next.
pub(super) const TASK: usize = 0;
pub(super) const SOFTIRQ: usize = 1;
pub(super) const HANDLER: usize = 2;

/// The kinds of softirqs, as bits: packets were sent, packets were received.
pub(super) const NET_TX: u32 = 1;
pub(super) const NET_RX: u32 = 2;

/// To whom the scheduler has given a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    Idle,
    Ksoftirqd,
    Process(usize),
}

/// The state of a processor's ksoftirqd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ksoftirqd {
    Asleep,
    /// On the run queue.
    Woken,
    Running,
}

/// A call that handles softirqs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Call {
    /// The kinds of the pass under way, and how often each kind has run in this call.
    pub(super) kinds: u32,
    pub(super) runs: [u32; 2],
    pub(super) passes: u32,
    /// Packets that this pass may still take.
    pub(super) budget: u32,
    pub(super) packet: Option<Packet>,
}

/// A processor.
#[derive(Debug)]
pub(super) struct Cpu {
    pub(super) task: Task,
    /// The work left at each level, picoseconds.
    pub(super) left: [u64; 3],
    /// Work that is added to what goes on next, picoseconds.
    pub(super) debt_ps: u64,
    /// Since when the present level has worked.
    pub(super) since: u64,
    /// The number of the event that ends this work. Events of other numbers are out of date.
    pub(super) turn: u64,
    /// The card whose interrupt is handled, and those that wait for it.
    pub(super) handler: Option<usize>,
    pub(super) waiting: VecDeque<usize>,
    pub(super) softirq: Option<Call>,
    pub(super) pending: u32,
    pub(super) backlog: VecDeque<Packet>,
    pub(super) ksoftirqd: Ksoftirqd,
    /// How often it was woken, and whether it has waited as long as it waits at most.
    pub(super) wakeups: u64,
    pub(super) is_overdue: bool,
    pub(super) needs_schedule: bool,
    pub(super) scheduled_at: u64,
}

impl Cpu {
    pub(super) fn new() -> Self {
        Self {
            task: Task::Idle,
            left: [0; 3],
            debt_ps: 0,
            since: 0,
            turn: 0,
            handler: None,
            waiting: VecDeque::new(),
            softirq: None,
            pending: 0,
            backlog: VecDeque::new(),
            ksoftirqd: Ksoftirqd::Asleep,
            wakeups: 0,
            is_overdue: false,
            needs_schedule: false,
            scheduled_at: 0,
        }
    }

    pub(super) fn level(&self) -> usize {
        match (self.handler, self.softirq) {
            (Some(_), _) => HANDLER,
            (None, Some(_)) => SOFTIRQ,
            (None, None) => TASK,
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.level() == TASK && self.task == Task::Idle && self.left[TASK] == 0
    }

    /// Whether the processor has nothing to do, and will not have without a further event.
    pub(super) fn is_at_rest(&self) -> bool {
        self.is_waiting()
            && self.pending == 0
            && self.backlog.is_empty()
            && self.ksoftirqd == Ksoftirqd::Asleep
    }
}

/// A packet of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Packet {
    pub(super) client: usize,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// The first packet of the handshake, and the last one.
    Opens,
    Opened,
    Request,
    /// Acknowledges packets of the answer.
    Acknowledges,
    Closes,
}

impl Packet {
    /// Whether the softirq itself sends an answer to the packet.
    pub(super) fn is_answered(self) -> bool {
        matches!(self.kind, Kind::Opens | Kind::Closes)
    }
}

/// A client, which has one connection at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Client {
    pub(super) is_open: bool,
    pub(super) has_asked: bool,
    /// The process that waits for the request.
    pub(super) reader: Option<usize>,
}

/// What a card's interrupt is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Line {
    #[default]
    Quiet,
    /// A processor was interrupted, and has not begun the handler yet.
    Asked,
    /// A handler runs. If the card asks again, it runs once more.
    Handled { again: bool },
}

/// A card.
#[derive(Debug, Default)]
pub(super) struct Card {
    pub(super) received: Vec<Packet>,
    pub(super) sent: u32,
    pub(super) line: Line,
    pub(super) is_collecting: bool,
}

impl Card {
    pub(super) fn begins_handler(&mut self) {
        self.line = Line::Handled { again: false };
    }

    /// Hands over the packets that were received, and the number of those that were sent.
    pub(super) fn take(&mut self) -> (Vec<Packet>, u32) {
        (std::mem::take(&mut self.received), std::mem::take(&mut self.sent))
    }

    /// Returns whether the handler runs once more.
    pub(super) fn ends_handler(&mut self) -> bool {
        let again = self.line == Line::Handled { again: true };
        self.line = if again { Line::Asked } else { Line::Quiet };
        again
    }
}

/// What a process does for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// From the connection to the reading of the request.
    Accepts,
    /// From there to the answer.
    Reads,
    /// Sends packet `number` of the answer.
    Sends { number: u32 },
    /// What it does after the answer.
    Closes,
}

/// What is left to do when the work of a step has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    All,
    /// The process has enabled softirqs, and those that were pending have run.
    Raises,
    /// It has raised softirqs itself.
    NextStep,
}

/// A process of the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Process {
    /// The processor on which it runs or ran last.
    pub(super) cpu: usize,
    /// The work with which it begins when it runs again, picoseconds.
    pub(super) left_ps: u64,
    pub(super) client: usize,
    pub(super) step: Step,
    pub(super) rest: Rest,
}

impl Process {
    pub(super) fn new(cpu: usize) -> Self {
        Self { cpu, left_ps: 0, client: 0, step: Step::Accepts, rest: Rest::All }
    }
}

/// What happens at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A packet of a client comes to a card.
    Arrives(Packet),
    /// A card has kept packets back for as long as it does at most.
    Collected {
        card: usize,
    },
    Interrupt {
        cpu: usize,
        card: usize,
    },
    /// The present work of a processor ends.
    Ends {
        cpu: usize,
        turn: u64,
    },
    /// A processor learns that another one has woken somebody for it.
    Told {
        cpu: usize,
    },
    /// A ksoftirqd has waited for as long as it does at most.
    Overdue {
        cpu: usize,
        wakeup: u64,
    },
}

/// What was counted. Switches, runs, requests and idle time are those of the window, the others
/// those of the whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) switches: u64,
    pub(super) ksoftirqd_runs: u64,
    pub(super) requests: Halves,
    pub(super) idle_ps: u64,
    pub(super) begun: u64,
    pub(super) answered: u64,
    pub(super) arrived: u64,
    pub(super) received: u64,
    /// Calls that handled softirqs, and those that found a kind pending again after a pass over it.
    pub(super) calls: u64,
    pub(super) calls_again: u64,
    pub(super) ksoftirqd_wakeups: u64,
    pub(super) unwakeups: u64,
    /// Raises in interrupts and in processes.
    pub(super) raised_inside: u64,
    pub(super) raised_outside: u64,
}

/// The server, its cards and its clients.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) software: Software,
    pub(super) kernel: Kernel,
    pub(super) window: Window,
    pub(super) now: u64,
    pub(super) random: fastrand::Rng,
    pub(super) varied: Varied,
    pub(super) events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Number of events so far. Of two events at the same moment, the older one comes first.
    pub(super) scheduled: u64,
    pub(super) cpus: Vec<Cpu>,
    pub(super) processes: Vec<Process>,
    /// Processes that can run and do not, in the order in which they were woken.
    pub(super) runnable: VecDeque<usize>,
    /// Processes that wait for a connection.
    pub(super) accepting: VecDeque<usize>,
    pub(super) clients: Vec<Client>,
    pub(super) cards: Vec<Card>,
    pub(super) counts: Counts,
}

impl Server {
    pub(super) fn at(&mut self, at: u64, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((at, self.scheduled, event)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_runs_again_if_the_card_asks_meanwhile() {
        let mut card = Card { line: Line::Asked, ..Card::default() };
        card.begins_handler();
        assert!(!card.ends_handler() && card.line == Line::Quiet);
        card.line = Line::Handled { again: true };
        assert!(card.ends_handler() && card.line == Line::Asked);
    }
}
