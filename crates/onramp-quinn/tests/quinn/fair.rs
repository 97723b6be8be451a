//! Connections to different addresses are flows of their own.

use std::sync::atomic::{AtomicU64, Ordering};

use onramp_quinn::Options;
use quinn::Connection;

use crate::common::{connect, drops, exchange, plain_client, run, server, socket};

/// Sends without an end.
async fn pour(connection: Connection) {
    let Ok(mut sending) = connection.open_uni().await else { return };
    while sending.write_all(&[7; 16_384]).await.is_ok() {}
}

/// Receives what `pour` sends, until `total` reaches `most`. Returns the number of bytes.
async fn drain(connection: &Connection, total: &AtomicU64, most: u64) -> u64 {
    let mut receiving = connection.accept_uni().await.expect("a stream");
    let (mut buffer, mut received) = ([0; 16_384], 0);
    // Relaxed: the counter stands alone.
    while total.load(Ordering::Relaxed) < most {
        let got = receiving.read(&mut buffer).await.expect("a peer").expect("no end") as u64;
        total.fetch_add(got, Ordering::Relaxed); // Relaxed: as above.
        received += got;
    }
    received
}

#[test]
fn twenty_clients_get_equal_parts() {
    run(async {
        let socket = socket("127.0.0.1:0", "fq maxrate 2mbit", Options::default());
        let server = server(&socket);
        let addr = server.local_addr().expect("an address");
        let (mut clients, mut sides) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            let client = plain_client("127.0.0.1:0");
            let (at_server, at_client) = connect(&server, &client, addr).await;
            sides.push(at_server);
            clients.push((client, at_client));
        }
        sides.into_iter().for_each(|side| drop(tokio::spawn(pour(side))));
        let total = AtomicU64::new(0);
        let mut parts = Vec::new();
        // Each future counts until all together have received enough.
        let mut counts: Vec<_> =
            clients.iter().map(|(_, at)| Box::pin(drain(at, &total, 2_000_000))).collect();
        std::future::poll_fn(|cx| {
            counts.retain_mut(|count| match count.as_mut().poll(cx) {
                std::task::Poll::Ready(part) => {
                    parts.push(part);
                    false
                }
                std::task::Poll::Pending => true,
            });
            if counts.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
        let least = parts.iter().min().expect("20 parts");
        assert!(*least > 40_000, "of 100,000 bytes each: {parts:?}");
        assert_eq!((socket.stats().peers, drops(&socket.link().stats())), (20, 0));
    });
}

/// While one connection has more to send than its rate allows, another one to a different address
/// finds room and an idle flow. If both shared the credits, or the flow, each of the 20 questions
/// and answers would wait for 16 KiB at 1 Mbit/s: 340,000 bytes in all.
#[test]
fn a_full_peer_does_not_keep_others_from_sending() {
    run(async {
        let mut seen = Vec::new();
        // A machine that is busy enough makes the questions as slow: try again.
        for _ in 0..3 {
            let socket = socket("127.0.0.1:0", "fq maxrate 100kbit", Options::default());
            let server = server(&socket);
            let addr = server.local_addr().expect("an address");
            let (busy, idle) = (plain_client("127.0.0.1:0"), plain_client("127.0.0.1:0"));
            let (pouring, draining) = connect(&server, &busy, addr).await;
            let (at_server, at_client) = connect(&server, &idle, addr).await;
            let total = AtomicU64::new(0);
            let pour = tokio::spawn(pour(pouring));
            // The flow is full once the credits are used.
            tokio::select! {
                _ = drain(&draining, &total, u64::MAX) => {}
                () = async {
                    while socket.stats().full == 0 {
                        tokio::task::yield_now().await;
                    }
                    for _ in 0..20 {
                        exchange(&at_server, &at_client, 10).await;
                    }
                } => {}
            }
            pour.abort();
            seen.push(total.load(Ordering::Relaxed)); // Relaxed: the counter stands alone.
            if seen.last().is_some_and(|bytes| *bytes < 200_000) {
                return;
            }
        }
        panic!("the other connection sent {seen:?} bytes during 20 questions and answers");
    });
}

#[test]
fn peers_that_were_idle_for_longest_are_forgotten() {
    run(async {
        let options = Options { peers: 2, ..Options::default() };
        let socket = socket("127.0.0.1:0", "fq", options);
        let server = server(&socket);
        let addr = server.local_addr().expect("an address");
        let mut clients = Vec::new();
        for _ in 0..5 {
            let client = plain_client("127.0.0.1:0");
            let (at_server, at_client) = connect(&server, &client, addr).await;
            clients.push((client, at_server, at_client));
        }
        for (_, at_server, at_client) in &clients {
            exchange(at_server, at_client, 100_000).await;
        }
        let stats = socket.stats();
        assert!(stats.peers == 2 && stats.forgotten >= 3, "{stats:?}");
    });
}
