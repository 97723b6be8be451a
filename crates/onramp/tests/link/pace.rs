//! Pacing: over real sockets, whatever the machine does, and with the link's default qdisc in
//! virtual time. The port's tests in virtual time show that rates are exact.

use std::cell::Cell;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use onramp::dev::Null;
use onramp::{Device, DeviceInfo, Instant, Link, Packet, PacketList, Transmitted};
use onramp_core::{CATCH_UP_NS, Mode, Port, PortOptions, PortWaker, REST_NS};

use crate::common::{LONG, SHORT, balanced, credits, in_time, now};

/// The time that a byte takes at 8 Mbit/s, in nanoseconds.
const NS_PER_BYTE: u64 = 1_000;
const PAYLOAD: usize = 458;
/// Length of a packet on the wire, as qdiscs count it, bytes.
const LEN: u64 = 500;
const PACKETS: u64 = 4_000;
/// How many packets may be sent that the receiving thread has not read yet: fewer than fit into its
/// socket, so that none is lost there, even if the thread gets no processor for a long time.
const UNREAD_MAX: u64 = 64;

/// All packets arrive, at no time more than the rate allows, and the link needs little more time
/// for them than the rate wants. A busy machine may keep threads from the processors. If these are
/// the sending or the receiving one, the link has no packets meanwhile, and this time does not
/// count. If it is the runner, the port catches up on 5 ms, or says how much time it has lost.
#[test]
fn one_flow_keeps_its_rate_over_udp() {
    in_time(|| {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_read_timeout(Some(SHORT)).unwrap();
        let addr = receiver.local_addr().unwrap();
        // The flow is paced from the first packet on; at most a kilobyte leaves at once.
        let qdisc = "fq maxrate 8mbit initial_quantum 0 quantum 1000";
        let link = Link::udp("127.0.0.1:0").ports(1).qdisc(qdisc).credits(credits(64));
        let link = link.build().unwrap();
        let mut sender = link.sender();
        let times = Arc::<Mutex<Vec<_>>>::default();
        let notes = times.clone();
        sender.on_complete(move |done| {
            notes.lock().unwrap().push((done.pushed_ns, done.left_ns.unwrap()));
        });
        let start = now();
        let (reads, read) = channel();
        let arrivals = std::thread::scope(|scope| {
            let sends = scope.spawn(|| {
                let (flow, read) = (sender.flow(addr), read);
                for number in 1..=PACKETS {
                    if number > UNREAD_MAX {
                        read.recv().unwrap();
                    }
                    let mut payload = [0; PAYLOAD];
                    payload[..8].copy_from_slice(&number.to_ne_bytes());
                    sender.send(&flow, &payload).unwrap();
                }
                assert!(sender.flush(LONG));
            });
            let mut buffer = [0; 2_000];
            let mut arrivals = Vec::new();
            loop {
                let done = sends.is_finished();
                match receiver.recv(&mut buffer) {
                    Ok(len) => {
                        assert_eq!(len, PAYLOAD);
                        let number = u64::from_ne_bytes(*buffer.first_chunk().unwrap());
                        arrivals.push((number, now()));
                        // The sending thread needs no word about the last packets.
                        let _ = reads.send(());
                    }
                    Err(_) if done => return arrivals,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
        });
        let numbers = arrivals.iter().map(|(number, _)| *number);
        assert!(numbers.eq(1..=PACKETS), "{} arrived", arrivals.len());
        // A packet is received after it was sent, and sent after its time has come. So at any time
        // since the start, no more bytes may have arrived than the rate allows, plus one quantum.
        for (packet, at) in &arrivals {
            let allowed = at.since(start) / NS_PER_BYTE + 1_000 + LEN;
            assert!(packet * LEN <= allowed, "{packet} packets after {} ns", at.since(start));
        }
        let stats = link.stats();
        assert_eq!(stats.sent, PACKETS);
        let times = std::mem::take(&mut *times.lock().unwrap());
        let (held, periods) = held(times);
        let lost = stats.ports[0].lost_ns;
        // At the end of each period, the runner may come late for the last packets.
        let late = periods * (CATCH_UP_NS + 1_000 * NS_PER_BYTE);
        let most = PACKETS * LEN * NS_PER_BYTE * 11 / 10 + late + lost;
        assert!(held <= most, "{held} ns in {periods} periods, {lost} ns lost");
        balanced(&stats);
    });
}

/// Returns for how long any packet was in the link, in nanoseconds, and in how many periods;
/// `times` are the times at which packets came and left.
fn held(mut times: Vec<(u64, u64)>) -> (u64, u64) {
    times.sort_unstable();
    let (mut held, mut periods, mut end) = (0, 0, 0);
    for (pushed, left) in times {
        periods += u64::from(pushed > end);
        held += left.saturating_sub(pushed.max(end));
        end = end.max(left);
    }
    (held, periods)
}

/// The largest packet of the device in virtual time, in bytes.
const MTU: u32 = 1_514;

/// A device that notes when packets leave.
struct Leaves(DeviceInfo, Arc<Mutex<Vec<u64>>>);

impl Device for Leaves {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        self.1.lock().unwrap().extend((0..burst.len()).map(|_| now.0));
        done.append(burst);
        Transmitted::default()
    }
}

/// Notes the earliest visit that a port asks for.
#[derive(Default)]
struct Asked(Cell<Option<Instant>>);

impl PortWaker for Asked {
    fn visit_by(&self, at: Instant) {
        self.0.set(Some(self.0.get().map_or(at, |due| due.min(at))));
    }
}

/// Sends a flow of packets of 240 bytes at 2 Mbit/s through a port with the qdisc of the link, in
/// virtual time; the runner comes 0 to `late_ns` late. Returns the gaps between the packets in
/// nanoseconds, in order of size.
fn gaps(link: &Link, late_ns: u64) -> Vec<u64> {
    let qdisc = link.setup().build(MTU, 7).unwrap();
    let times = Arc::<Mutex<Vec<_>>>::default();
    let device = Leaves(DeviceInfo::new("leaves".to_owned(), MTU), times.clone());
    let options = PortOptions { mode: Mode::Dedicated, rest_ns: REST_NS, ..PortOptions::default() };
    let (port, asked) = (Port::with_options(qdisc, device, 1_000, options), Asked::default());
    let (mut now, mut seed) = (Instant(1_000_000_000), 1_u64);
    for _ in 0..2_000 {
        // A sender with credits keeps some packets waiting.
        while port.snapshot().held < 50 {
            let mut packet = Packet::new(240);
            (packet.flow, packet.pacing_rate, packet.enqueued_ns) = (1, 250_000, now.0);
            let list = PacketList::from_iter([packet]);
            let _ = port.xmit(list, now, &asked).expect("there is room");
        }
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let late = (seed >> 33) % (late_ns + 1);
        now = now.max(asked.0.take().expect("packets wait")).after(late);
        let ran = port.visit(now, &asked).expect("nobody is inside");
        assert!(!ran.again, "few packets are due at once");
    }
    let times = times.lock().unwrap();
    let mut gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_unstable();
    gaps
}

/// A paced flow leaves evenly through a link for which the program names no qdisc: half of the gaps
/// are within 20 % of those of the rate, and so are 98 of 100. So it is with a punctual runner and
/// with one as late as on an idle machine. Linux's `fq` sends in bursts.
#[test]
fn a_paced_flow_leaves_evenly_by_default() {
    const GAP_NS: u64 = 960_000;
    let builder = || Link::devices([Box::new(Null::new(MTU)) as Box<dyn Device>]);
    let default = builder().build().unwrap();
    for late_ns in [0, 150_000] {
        let gaps = gaps(&default, late_ns);
        for percent in [1, 50, 99] {
            let gap = gaps[(gaps.len() - 1) * percent / 100];
            let off = gap.abs_diff(GAP_NS);
            assert!(off <= GAP_NS / 5, "{percent} %: {gap} ns, {late_ns} ns late");
        }
    }
    let linux = gaps(&builder().qdisc("fq").build().unwrap(), 0);
    assert!(linux[linux.len() / 2] < 100_000, "12 of 13 packets follow at once");
}
