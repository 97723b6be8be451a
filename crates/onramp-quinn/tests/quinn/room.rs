//! A connection that finds no room goes on when there is some, however little.

use onramp::Credits;
use onramp_quinn::Options;

use crate::common::{client, connect, exchange, run, server, socket};

/// Options with which one batch may be in flight to each peer.
fn tiny() -> Options {
    Options { credits: Credits { packets: 1, bytes: 1 }, ..Options::default() }
}

#[test]
fn tiny_credits_do_not_stall_a_connection() {
    run(async {
        let tbf = "tbf rate 100mbit burst 20kb limit 200kb";
        let sockets = [(); 2].map(|()| socket("127.0.0.1:0", tbf, tiny()));
        let (server, client) = (server(&sockets[0]), client(&sockets[1]));
        let addr = server.local_addr().expect("an address");
        let (at_server, at_client) = connect(&server, &client, addr).await;
        exchange(&at_server, &at_client, 1 << 20).await;
        for socket in sockets {
            let (stats, sent) = (socket.stats(), socket.link().stats().sent);
            assert!(stats.full > 0, "{stats:?}");
            assert!(stats.full < 10 * sent, "{stats:?}: who waits does not try again and again");
        }
    });
}

/// All connections of one endpoint to the same address share a peer, and so wait for the same room
/// at the same time, in tasks that run in two threads.
#[test]
fn connections_that_share_a_peer_wake_each_other() {
    run(async {
        let tbf = "tbf rate 200mbit burst 20kb limit 200kb";
        let sockets = [(); 2].map(|()| socket("127.0.0.1:0", tbf, tiny()));
        let (server, client) = (server(&sockets[0]), client(&sockets[1]));
        let addr = server.local_addr().expect("an address");
        let mut exchanges = Vec::new();
        for _ in 0..20 {
            let (at_server, at_client) = connect(&server, &client, addr).await;
            exchanges.push(tokio::spawn(async move {
                exchange(&at_server, &at_client, 100_000).await;
            }));
        }
        for exchange in exchanges {
            exchange.await.expect("an exchange");
        }
        let stats = sockets[0].stats();
        assert!(stats.peers == 1 && stats.full > 0, "{stats:?}");
    });
}
