//! Pacing over real sockets never exceeds the rate, whatever the machine does. The test measures
//! and prints how close the link comes to the rate; that pacing is exact is shown by the port's
//! tests in virtual time.

use std::io::ErrorKind;
use std::net::UdpSocket;

use onramp::Link;

use crate::common::{LONG, SHORT, balanced, credits, in_time, now};

/// The rate of 8 Mbit/s, in bytes per second.
const RATE: u64 = 1_000_000;
const PAYLOAD: usize = 458;
/// Length of a packet on the wire, as qdiscs count it, bytes.
const LEN: u64 = 500;
const PACKETS: u64 = 4_000;

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
        let start = now();
        let arrivals = std::thread::scope(|scope| {
            let sends = scope.spawn(|| {
                let flow = sender.flow(addr);
                for number in 1..=PACKETS {
                    let mut payload = [0; PAYLOAD];
                    payload[..8].copy_from_slice(&number.to_ne_bytes());
                    sender.send(&flow, &payload).unwrap();
                }
                assert!(sender.flush(LONG));
            });
            let mut buffer = [0; 2_000];
            let mut arrivals = Vec::new();
            // If this receiving thread gets no processor for a long time, packets are lost in its
            // socket, which is no fault of the link.
            loop {
                let done = sends.is_finished();
                match receiver.recv(&mut buffer) {
                    Ok(len) => {
                        assert_eq!(len, PAYLOAD);
                        let number = u64::from_ne_bytes(*buffer.first_chunk().unwrap());
                        arrivals.push((number, now()));
                    }
                    Err(_) if done => return arrivals,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
        });
        assert!(arrivals.len() > 100 && arrivals.is_sorted(), "{} arrived", arrivals.len());
        // A packet is received after it was sent, and sent after its time has come. So at any time
        // since the start, no more bytes may have arrived than the rate allows, plus one quantum.
        for (packet, at) in &arrivals {
            let allowed = at.since(start) / (1_000_000_000 / RATE) + 1_000 + LEN;
            assert!(packet * LEN <= allowed, "{packet} packets after {} ns", at.since(start));
        }
        let (first, last) = (arrivals[0], arrivals[arrivals.len() - 1]);
        assert_eq!(link.stats().sent, PACKETS);
        let span_ns = last.1.since(first.1);
        let rate = (last.0 - first.0) * LEN * 8 * 1_000_000_000 / span_ns;
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        let percent = rate as f64 / 8e6 * 100.0 - 100.0;
        println!("fq maxrate 8mbit: {rate} bit/s received, {percent:+.3} %");
        balanced(&link.stats());
    });
}
