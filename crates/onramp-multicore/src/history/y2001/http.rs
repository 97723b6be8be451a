//! What clients, the cards between them and the server, and the server's processes do.

use super::super::window::Window;
use super::software::Software;
use super::state::{Client, Event, Kind, Line, NET_TX, Packet, Process, Rest, Server, Step, TASK};

impl Server {
    /// A client opens a connection, unless the measured time is over: its first packet comes to the
    /// card after `after_ps`.
    pub(super) fn open(&mut self, client: usize, after_ps: u64) {
        let Window { until, .. } = self.window;
        if self.now < until {
            self.counts.begun += 1;
            self.send_from(client, Kind::Opens, after_ps);
        }
    }

    fn send_from(&mut self, client: usize, kind: Kind, after_ps: u64) {
        self.at(self.now + after_ps, Event::Arrives(Packet { client, kind }));
    }

    pub(super) fn arrives(&mut self, packet: Packet) {
        self.counts.arrived += 1;
        let card = self.card_of(packet.client);
        self.cards[card].received.push(packet);
        self.card_has_more(card);
    }

    fn card_of(&self, client: usize) -> usize {
        client % self.cards.len()
    }

    /// A card has a packet more to tell of.
    fn card_has_more(&mut self, card: usize) {
        if self.random.f64() < self.software.interrupts {
            self.ask(card);
        } else if !std::mem::replace(&mut self.cards[card].is_collecting, true) {
            self.at(self.now + self.software.collect_ps, Event::Collected { card });
        }
    }

    pub(super) fn collected(&mut self, card: usize) {
        let this = &mut self.cards[card];
        this.is_collecting = false;
        if this.sent > 0 || !this.received.is_empty() {
            self.ask(card);
        }
    }

    /// A card interrupts one of the processors, each as likely, unless a handler is about to take
    /// what it has.
    fn ask(&mut self, card: usize) {
        let this = &mut self.cards[card];
        match &mut this.line {
            Line::Quiet => {
                this.line = Line::Asked;
                let cpu = self.random.usize(0..self.cpus.len());
                self.at(self.now, Event::Interrupt { cpu, card });
            }
            Line::Asked => (),
            Line::Handled { again } => *again = true,
        }
    }

    /// A packet has gone to the card.
    fn sends(&mut self, client: usize) {
        let card = self.card_of(client);
        self.cards[card].sent += 1;
        self.card_has_more(card);
    }

    /// A softirq of processor `cpu` has received a packet.
    pub(super) fn receive(&mut self, cpu: usize, packet: Packet) {
        self.counts.received += 1;
        let Packet { client, kind } = packet;
        match kind {
            Kind::Opens => {
                self.clients[client] = Client::default();
                self.sends(client);
                let (answer_ps, gap_ps) = self.client_times();
                self.send_from(client, Kind::Opened, answer_ps);
                self.send_from(client, Kind::Request, answer_ps + gap_ps);
            }
            Kind::Opened | Kind::Request => {
                let this = &mut self.clients[client];
                this.has_asked |= kind == Kind::Request;
                // The request opens the connection too, if another processor was slower with the
                // packet before it.
                let opens = !std::mem::replace(&mut this.is_open, true);
                let reader = if this.has_asked { this.reader.take() } else { None };
                if opens {
                    self.accept(cpu, client);
                } else if let Some(process) = reader {
                    self.wake(process, cpu);
                }
            }
            Kind::Acknowledges => (),
            Kind::Closes => self.sends(client),
        }
    }

    /// Draws how long a client takes to answer, and how long from one of its packets to the next,
    /// picoseconds.
    fn client_times(&mut self) -> (u64, u64) {
        let Software { client_ps, gap_ps, .. } = self.software;
        (self.varied.time(client_ps), self.varied.time(gap_ps))
    }

    /// Wakes the process that has waited longest for a connection. There are always enough.
    fn accept(&mut self, cpu: usize, client: usize) {
        let process = self.accepting.pop_front().unwrap_or_else(|| {
            self.processes.push(Process::new(cpu));
            self.processes.len() - 1
        });
        let left_ps = self.varied.time(self.software.part_ps);
        let this = &mut self.processes[process];
        (this.client, this.left_ps) = (client, left_ps);
        (this.step, this.rest) = (Step::Accepts, Rest::All);
        self.wake(process, cpu);
    }

    /// The work of a step of a process has ended.
    pub(super) fn step_ended(&mut self, cpu: usize, process: usize) {
        if self.processes[process].rest == Rest::All {
            self.processes[process].rest = Rest::Raises;
            self.step_done(process);
            if self.cpus[cpu].pending != 0 {
                return self.do_softirq(cpu);
            }
        }
        if self.processes[process].rest == Rest::Raises {
            self.processes[process].rest = Rest::NextStep;
            let raises = self.raises();
            self.counts.raised_outside += u64::from(raises);
            if raises > 0 {
                self.cpus[cpu].pending |= NET_TX;
                if self.kernel.runs_raised {
                    return self.do_softirq(cpu);
                }
                self.wake_ksoftirqd(cpu);
            }
        }
        self.next_step(cpu, process);
    }

    /// Draws how often a step raises a softirq.
    fn raises(&mut self) -> u32 {
        let mean = self.software.raises;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a cast of a float stays in range, and no count is negative"
        )]
        let whole = mean as u32;
        whole + u32::from(self.random.f64() < mean.fract())
    }

    /// What a step has done for its client.
    fn step_done(&mut self, process: usize) {
        let Process { client, step: Step::Sends { number }, .. } = self.processes[process] else {
            return;
        };
        self.sends(client);
        let answer = self.software.answer;
        let (answer_ps, gap_ps) = self.client_times();
        if answer.is_acknowledged(number) {
            self.send_from(client, Kind::Acknowledges, answer_ps);
        }
        if number == answer.data {
            self.counts.answered += 1;
            self.counts.requests.count(self.window, self.now);
            self.send_from(client, Kind::Closes, answer_ps);
            self.open(client, answer_ps + gap_ps);
        }
    }

    /// A process begins its next step, or sleeps.
    fn next_step(&mut self, cpu: usize, process: usize) {
        let Software { part_ps, send_ps, answer, .. } = self.software;
        let this = &mut self.processes[process];
        this.rest = Rest::All;
        let mean_ps = match this.step {
            Step::Accepts | Step::Closes => part_ps,
            Step::Reads => send_ps,
            Step::Sends { number } if number < answer.data => send_ps,
            Step::Sends { .. } => part_ps,
        };
        let work_ps = self.varied.time(mean_ps);
        match this.step {
            Step::Accepts => {
                this.step = Step::Reads;
                let client = &mut self.clients[this.client];
                if !client.has_asked {
                    this.left_ps = work_ps;
                    client.reader = Some(process);
                    return self.schedule(cpu);
                }
            }
            Step::Reads => this.step = Step::Sends { number: 1 },
            Step::Sends { number } if number < answer.data => {
                this.step = Step::Sends { number: number + 1 };
            }
            Step::Sends { .. } => this.step = Step::Closes,
            Step::Closes => {
                self.accepting.push_back(process);
                return self.schedule(cpu);
            }
        }
        self.cpus[cpu].left[TASK] = work_ps;
    }
}
