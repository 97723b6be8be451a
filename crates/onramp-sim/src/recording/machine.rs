//! A model of the machine that made the recordings: a wire that sends one packet at a time, and the
//! machine's timers.

use onramp_core::filter::FilterSpec;
use onramp_core::qdisc::Dequeue;
use onramp_core::view::QdiscView;
use onramp_core::{Instant, Tree};
use onramp_queue::Packet;

use super::{Case, Change, Event, Outcome, Reason, START_NS, frame};

/// Size in bytes of the largest packet that the recorded device sends, link header included.
pub(super) const MTU: u32 = 1514;
/// The period of the recording machine's clock tick, in nanoseconds.
const TICK_NS: u64 = 10_000_000;
/// The shortest time after which the machine's clock can interrupt the machine, in nanoseconds. In
/// the recordings, it matters only after the recorder (the program that sent the packets) has sent
/// its last packet: see [`Machine::be_late`].
const CLOCK_MIN_NS: u64 = 1_000;
/// How often the recorder (the program that sent the packets), after its last packet, checks
/// whether the last packet has left the tree, in nanoseconds.
const POLL_NS: u64 = 100_000_000;
/// After the recorder (the program that sent the packets) has checked for the last time whether all
/// packets have left the tree, it waits this long, in nanoseconds, and then runs `tc` to list the
/// tree.
const LOOK_NS: u64 = 1_000_000_000;

/// The machine of the recordings: a tree of qdiscs, a wire, and a timer for the qdisc.
///
/// The timer has slack: it may run at any interrupt within the slack, and it runs at the latest
/// when the slack ends. Interrupts come when the recorder (the program that sent the packets) wakes
/// up, when the wire becomes free, and when the clock ticks. An interrupt within the slack does not
/// run the timer if the recorder will wake up or the clock will tick before the slack ends.
///
/// If something keeps the clock ticking, it ticks every 10 ms. Otherwise it ticks once after each
/// time that the recorder was awake. In addition, because of work of the machine itself, it ticks
/// at the second and third of every eleven multiples of 10 ms.
struct Machine {
    tree: Tree,
    /// The rate of the wire in bits per second; 0 means infinitely fast.
    rate: u64,
    /// The time at which the packet on the wire will have been sent; 0 if the wire is idle.
    free_at_ns: u64,
    /// The time at which the timer's slack ends, so that the qdisc is called at the latest; `None`
    /// if the timer is not set.
    timer_ns: Option<u64>,
    /// How much earlier than `timer_ns` the timer may run, in nanoseconds.
    slack_ns: u64,
    /// The time of the next clock tick.
    tick_ns: u64,
    /// Whether the clock ticks even while the machine is idle.
    ticks: bool,
    /// The time at which the recorder (the program that sent the packets) last checked whether the
    /// last packet has left the tree.
    looked_ns: u64,
    outcome: Outcome,
}

/// The outcome of a run of Onramp, and what the tree reports at its end.
#[derive(Debug, Default)]
pub(super) struct Played {
    pub outcome: Outcome,
    pub views: Vec<QdiscView>,
    /// The filters at each of the [`PLACES`], with their counters.
    pub filters: [Vec<FilterSpec>; 2],
}

/// The places whose filters are listed, in the words of `tc filter show`: the root qdisc, and in
/// front of it.
pub(super) const PLACES: [&str; 2] = ["", "egress"];

/// Largest number of recorded events whose times are tried as the instant of a change.
const INSTANTS_MAX: usize = 6;

/// Returns guesses of the instants at which the kernel made the changes, the best guess first. Each
/// guess has an instant for each change. The recording says only between which times a change was
/// made. If the change dropped or released packets, the times of these events show its instant.
pub(super) fn guesses(case: &Case) -> Vec<Vec<u64>> {
    let recorded = &case.recorded;
    let mut times: Vec<u64> =
        recorded.drops.iter().chain(&recorded.dequeues).map(|event| event.time_ns).collect();
    times.sort_unstable();
    times.dedup();
    let instants = |change: &Change| {
        let within = |at: &&u64| (change.from_ns..=change.to_ns).contains(at);
        let mut instants: Vec<u64> =
            times.iter().filter(within).take(INSTANTS_MAX).copied().collect();
        // The kernel may have read the clock again when it sent the first packet that the change
        // released. In this case it made the change about a nanosecond before the recorded time of
        // that packet.
        let before = instants.iter().map(|at| at - 1).filter(|at| *at >= change.from_ns);
        let before: Vec<u64> = before.collect();
        instants.extend([change.from_ns, change.to_ns]);
        instants.extend(before);
        instants
    };
    let instants: Vec<Vec<u64>> = case.changes.iter().map(instants).collect();
    let longest = instants.iter().map(Vec::len).max().unwrap_or(1);
    let guess = |n: usize| instants.iter().map(|at| at[n.min(at.len() - 1)]).collect();
    (0..longest).map(guess).collect()
}

/// Plays a case (a recorded run of Linux) on the model of the recording machine, with random
/// numbers from `seed`, and makes the changes of the tree at the times in `changes`. Returns which
/// packets were sent and dropped, and what the tree reports at the end.
pub(super) fn replay(case: &Case, seed: u64, changes: &[u64]) -> Played {
    let Some(tree) = Tree::of(&case.setup, MTU, seed) else { return Default::default() };
    let mut machine = Machine {
        // The recorder sent its packets through sockets, so packets are charged to their senders.
        tree: tree.charged_to_senders(),
        rate: case.link_bps,
        free_at_ns: 0,
        timer_ns: None,
        slack_ns: slack_ns(case),
        tick_ns: START_NS,
        ticks: case.ticks,
        looked_ns: 0,
        outcome: Outcome::default(),
    };
    let mut changes = changes.iter().copied().zip(&case.changes).peekable();
    for (index, arrival) in case.arrivals.iter().enumerate() {
        while let Some((at_ns, change)) = changes.next_if(|(at_ns, _)| *at_ns < arrival.time_ns) {
            machine.change(at_ns, change);
        }
        machine.advance(arrival.time_ns);
        let mut pkt = frame::packet(arrival);
        pkt.cookie = index as u64;
        pkt.flow = arrival.flow;
        pkt.priority = arrival.priority;
        pkt.ecn = arrival.ecn & 3;
        pkt.txtime_ns = arrival.txtime_ns;
        pkt.pacing_rate = arrival.pacing_rate;
        machine.arrive(arrival.time_ns, pkt, case.bypass);
    }
    let begun_ns = case.arrivals.last().map_or(START_NS, |last| last.time_ns);
    let mut now_ns = begun_ns;
    let waits = |machine: &Machine| machine.tree.backlog().packets > 0;
    let end_ns = begun_ns.saturating_add(case.patience_ns);
    while (changes.peek().is_some() || waits(&machine)) && now_ns < end_ns {
        machine.looked_ns = now_ns;
        now_ns += POLL_NS;
        while let Some((at_ns, change)) = changes.next_if(|(at_ns, _)| *at_ns < now_ns) {
            machine.change(at_ns, change);
        }
        machine.advance(now_ns);
    }
    machine.outcome.drops.sort();
    machine.outcome = machine.outcome.before(end_ns);
    machine.advance(now_ns + LOOK_NS);
    let views = machine.tree.views();
    let filters = PLACES.map(|place| {
        let (place, _) = case.setup.filter_query(place).expect("each is a place");
        machine.tree.filters(Instant(now_ns + LOOK_NS), place)
    });
    Played { outcome: machine.outcome, views, filters }
}

/// Returns the slack of the timer, in nanoseconds. Only the timers of `fq` have slack.
fn slack_ns(case: &Case) -> u64 {
    let slacks = case.setup.specs().filter(|spec| spec.kind().id == "fq");
    slacks.map(|spec| spec.values(MTU).number("timer_slack")).max().unwrap_or(0)
}

impl Machine {
    fn arrive(&mut self, now_ns: u64, pkt: Packet, bypass: bool) {
        let now = Instant(now_ns);
        if bypass && self.free_at_ns > now_ns {
            let _ = self.tree.keep_or_enqueue(now, pkt);
        } else if bypass {
            if let Ok(pkt) = self.tree.pass_or_enqueue(now, pkt) {
                return self.send(now_ns, &pkt);
            }
        } else {
            // A packet that the tree drops is reported by `drops`, so the result is ignored here.
            let _ = self.tree.enqueue(now, pkt);
        }
        self.run(now_ns);
    }

    /// Makes a change of the tree. As in Linux, the change of a `plug` is followed at once by a
    /// call of the qdisc; after any other change, the qdisc is called at its next event.
    fn change(&mut self, now_ns: u64, change: &Change) {
        self.advance(now_ns);
        // The tree accepts the line, because `read` has checked that it does.
        let _ = self.tree.apply(Instant(now_ns), &change.line);
        if change.line.split_ascii_whitespace().any(|word| word == "plug") {
            self.run(now_ns);
        }
        self.tell_drops(now_ns);
    }

    /// Takes packets from the qdisc and sends them, as long as the wire is free.
    fn run(&mut self, now_ns: u64) {
        while self.free_at_ns <= now_ns {
            match self.tree.dequeue(Instant(now_ns)) {
                Dequeue::Ready(pkt) => self.send(now_ns, &pkt),
                Dequeue::NotBefore(then) => {
                    self.timer_ns = Some(then.0);
                    break;
                }
                Dequeue::Empty => break,
            }
        }
        self.tell_drops(now_ns);
    }

    fn tell_drops(&mut self, now_ns: u64) {
        let drops = self.tree.drops();
        self.outcome.drops.extend(drops.map(|pkt| event(now_ns, &pkt)));
    }

    fn send(&mut self, now_ns: u64, pkt: &Packet) {
        if self.rate > 0 {
            let bits = u64::from(pkt.len) * 8;
            self.free_at_ns = now_ns + (bits * 1_000_000_000).div_ceil(self.rate);
        }
        self.outcome.dequeues.push(event(now_ns, pkt));
    }

    /// Makes everything happen that the wire, the qdisc's timer and the clock do up to the time
    /// `until_ns`, at which the recorder (the program that sent the packets) wakes up.
    fn advance(&mut self, until_ns: u64) {
        loop {
            self.be_late();
            let wire = Some(self.free_at_ns).filter(|at| *at > 0);
            let first = [wire, self.timer_ns, Some(self.tick_ns)].into_iter().flatten().min();
            let Some(now_ns) = first.filter(|at| *at <= until_ns) else { break };
            if self.tick_ns == now_ns {
                let next_ns = (now_ns + 1).next_multiple_of(TICK_NS);
                self.tick_ns = if self.ticks { next_ns } else { idle_tick_after(now_ns) };
            }
            if wire == Some(now_ns) {
                self.free_at_ns = 0;
            }
            self.run_timer(now_ns, until_ns);
            if wire == Some(now_ns) {
                self.run(now_ns);
            }
        }
        self.run_timer(until_ns, u64::MAX);
        self.tick_ns = (until_ns + 1).next_multiple_of(TICK_NS);
    }

    /// Delays events that come too soon for the machine's clock, as the recordings show it. After
    /// its last packet, the recorder (the program that sent the packets) checks from time to time
    /// whether all packets have left the tree, and sleeps after each check. The clock cannot
    /// interrupt that sleep before 1 us (`CLOCK_MIN_NS`) has passed. So if the qdisc's timer is set
    /// for, or the wire becomes free at, a time up to 1 us after the check, this event happens 1 us
    /// after the check. If the time is between 1 us and 2 us after the check, the event happens 2
    /// us after the check.
    fn be_late(&mut self) {
        for at_ns in self.timer_ns.iter_mut().chain([&mut self.free_at_ns]) {
            let after_ns = at_ns.saturating_sub(self.looked_ns);
            if (1..2 * CLOCK_MIN_NS).contains(&after_ns) {
                *at_ns = self.looked_ns + after_ns.next_multiple_of(CLOCK_MIN_NS);
            }
        }
    }

    /// Calls the qdisc, as its timer does, if the timer may run at `now_ns`: see [`Machine`]. The
    /// recorder (the program that sent the packets) sleeps until `awake_ns`.
    fn run_timer(&mut self, now_ns: u64, awake_ns: u64) {
        let Some(end_ns) = self.timer_ns else { return };
        let kept_back = self.tick_ns.min(awake_ns) < end_ns;
        if end_ns <= now_ns || (end_ns - self.slack_ns <= now_ns && !kept_back) {
            self.timer_ns = None;
            self.run(now_ns);
        }
    }
}

/// Returns the time of the next clock tick after `now_ns` on an idle machine.
fn idle_tick_after(now_ns: u64) -> u64 {
    let mut tick = (now_ns - START_NS) / TICK_NS + 1;
    while !matches!(tick % 11, 2 | 3) {
        tick += 1;
    }
    START_NS + tick * TICK_NS
}

fn event(time_ns: u64, pkt: &Packet) -> Event {
    let packet = usize::try_from(pkt.cookie).unwrap_or(usize::MAX);
    Event { time_ns, packet, ecn: pkt.ecn, reason: pkt.drop_reason.map(Reason::ours) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The instant at which the kernel made a change of the tree is guessed. The recording only
    /// gives two times between which it lies. The guesses for a change are, in this order: the
    /// first six times between them at which the kernel sent or dropped packets (all times, if
    /// there are fewer than six); the two times themselves; and the instants a nanosecond before
    /// the first six, unless that is before the earlier of the two times. If one change has fewer
    /// guesses than another, its last guess is repeated.
    #[test]
    fn changes_are_guessed_where_something_shows() {
        let line = "tc qdisc change dev d root handle 1: pfifo limit 5";
        let case = |changes: &str| {
            let text = format!(
                "== tc.txt\ntc qdisc add dev d root handle 1: pfifo\n== workload.csv\n\
                 time_ns,flow_id,size_bytes,priority,ecn\n{changes}== kernel.csv\n\
                 event,time_ns,idx,ecn,reason\ndrop,12,0,0,GENERIC\ndrop,30,1,0,GENERIC\n\
                 deq,18,2,0,\ndeq,11,3,0,\ndeq,11,4,0,\ndeq,13,5,0,\ndeq,14,6,0,\n\
                 deq,15,7,0,\ndeq,16,8,0,\ndeq,10,9,0,\ndeq,21,9,0,\n"
            );
            let guesses = guesses(&Case::parse("case", &text).expect("a case"));
            let since = |times: &Vec<u64>| times.iter().map(|at| at - START_NS).collect();
            guesses.iter().map(since).collect::<Vec<Vec<u64>>>()
        };
        assert_eq!(case(""), [vec![]]);
        let head = "== changes.csv\nfrom_ns,to_ns,line\n";
        let told = case(&format!("{head}11,20,{line}\n30,31,{line}\n"));
        let firsts = [11, 12, 13, 14, 15, 16, 11, 20, 11, 12, 13, 14, 15];
        let seconds = [30, 30].into_iter().chain([31; 11]);
        let expected: Vec<_> = firsts.into_iter().zip(seconds).map(|(a, b)| [a, b]).collect();
        assert_eq!(told, expected);
    }

    #[test]
    fn an_idle_clock_ticks_twice_of_eleven_times() {
        let ticks = |from_ms: u64| {
            let mut now_ns = START_NS + from_ms * 1_000_000;
            std::iter::repeat_with(|| {
                now_ns = idle_tick_after(now_ns);
                (now_ns - START_NS) / 10_000_000
            })
            .take(6)
            .collect::<Vec<_>>()
        };
        assert_eq!(ticks(0), [2, 3, 13, 14, 24, 25]);
        assert_eq!(ticks(19), [2, 3, 13, 14, 24, 25]);
        assert_eq!(ticks(20), [3, 13, 14, 24, 25, 35]);
        assert_eq!(ticks(30), [13, 14, 24, 25, 35, 36]);
    }
}
