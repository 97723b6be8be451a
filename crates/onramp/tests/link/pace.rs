//! Pacing over real sockets: never faster than the rate, whatever the machine does. How close to
//! the rate is measured and told; that it is exact is shown in virtual time by the port's tests.

use std::net::UdpSocket;

use onramp::Link;

use crate::common::{LONG, balanced, credits, in_time, now};

/// Bytes per second of 8 Mbit/s.
const RATE: u64 = 1_000_000;
const PAYLOAD: usize = 458;
/// On the wire, as qdiscs count.
const LEN: u64 = 500;
const PACKETS: u64 = 4_000;

#[test]
fn one_flow_keeps_its_rate_over_udp() {
    in_time(|| {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_read_timeout(Some(LONG)).unwrap();
        let addr = receiver.local_addr().unwrap();
        // Paced from the first packet on, and no more than a kilobyte at once.
        let qdisc = "fq maxrate 8mbit initial_quantum 0 quantum 1000";
        let link = Link::udp("127.0.0.1:0").ports(1).qdisc(qdisc).credits(credits(64));
        let link = link.build().unwrap();
        let mut sender = link.sender();
        let start = now();
        let arrivals = std::thread::scope(|scope| {
            scope.spawn(|| {
                let flow = sender.flow(addr);
                (0..PACKETS).for_each(|_| sender.send(&flow, &[0; PAYLOAD]).unwrap());
                assert!(sender.flush(LONG));
            });
            let mut buffer = [0; 2_000];
            let mut arrivals = Vec::new();
            for _ in 0..PACKETS {
                assert_eq!(receiver.recv(&mut buffer).unwrap(), PAYLOAD);
                arrivals.push(now());
            }
            arrivals
        });
        // A packet is seen after it was sent, and sent after it was due: so from the start on,
        // never more than the rate and one quantum.
        for (packet, at) in (1..).zip(&arrivals) {
            let allowed = at.since(start) / (1_000_000_000 / RATE) + 1_000 + LEN;
            assert!(packet * LEN <= allowed, "{packet} packets after {} ns", at.since(start));
        }
        let span_ns = arrivals.last().unwrap().since(arrivals[0]);
        let rate = (PACKETS - 1) * LEN * 8 * 1_000_000_000 / span_ns;
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        let percent = rate as f64 / 8e6 * 100.0 - 100.0;
        println!("fq maxrate 8mbit: {rate} bit/s received, {percent:+.3} %");
        balanced(&link.stats());
    });
}
