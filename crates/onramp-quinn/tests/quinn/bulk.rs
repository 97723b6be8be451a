//! Bulk transfers through qdiscs arrive intact, in both directions at once.

use std::sync::Arc;
use std::time::Duration;

use onramp::{Credits, Link};
use onramp_quinn::{OnrampSocket, Options};
use onramp_tokio::Driver;
use quinn::{EndpointConfig, TokioRuntime, TransportConfig};

use crate::common::{
    client, client_config, connect, drops, exchange, run, server, server_config, socket,
};

const MB: usize = 1 << 20;

fn transfer(qdisc: &str, bytes: usize, check: impl FnOnce(&onramp::LinkStats)) {
    run(async {
        let sockets = [(); 2].map(|()| socket("127.0.0.1:0", qdisc, Options::default()));
        let (server, client) = (server(&sockets[0]), client(&sockets[1]));
        let addr = server.local_addr().expect("an address");
        let (at_server, at_client) = connect(&server, &client, addr).await;
        exchange(&at_server, &at_client, bytes).await;
        check(&sockets[0].link().stats());
    });
}

#[test]
fn through_fq() {
    transfer("fq", 4 * MB, |stats| {
        assert_eq!(drops(stats), 0, "a short queue on loopback loses nothing");
        // Batches pass the link as one packet.
        assert!(stats.sent < 3 * MB as u64 / 1_200, "{} packets", stats.sent);
    });
}

#[test]
fn through_a_lossy_netem() {
    // Of about 170 batches, none is lost once in a million times.
    transfer("netem loss 8%", 2 * MB, |stats| assert!(drops(stats) > 0));
}

#[test]
fn through_tbf() {
    transfer("tbf rate 200mbit burst 20kb limit 200kb", 2 * MB, |stats| {
        assert_eq!(drops(stats), 0, "what exceeds the credits waits in quinn");
    });
}

/// So many credits would overflow the shaper's queue, if they were not bounded in time.
#[test]
fn credits_in_time_leave_the_queue_short() {
    run(async {
        let credits = Credits { packets: 1_000, bytes: 1 << 20 };
        let options = Options { credits, ..Options::default() };
        let sockets = [(); 2].map(|()| {
            let tbf = "tbf rate 100mbit burst 20kb limit 200kb";
            let builder = Link::udp("127.0.0.1:0").ports(1).qdisc(tbf);
            let link = builder.credit_time(Duration::from_millis(4)).build().expect("a link");
            OnrampSocket::with(link, Arc::new(TokioRuntime), options).expect("a socket")
        });
        let (server, client) = (server(&sockets[0]), client(&sockets[1]));
        let addr = server.local_addr().expect("an address");
        let (at_server, at_client) = connect(&server, &client, addr).await;
        exchange(&at_server, &at_client, 4 * MB).await;
        assert_eq!(sockets.map(|socket| drops(&socket.link().stats())), [0, 0]);
    });
}

/// A task of the runtime does the work of the runner.
#[test]
fn through_links_without_threads() {
    run(async {
        let tbf = "tbf rate 200mbit burst 20kb limit 200kb";
        let (mut sockets, mut drivers) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let link = Link::udp("127.0.0.1:0").ports(1).qdisc(tbf).manual().build();
            let link = link.expect("a link");
            drivers.push(Driver::spawn(&link).expect("a task"));
            sockets.push(OnrampSocket::new(link).expect("a socket"));
        }
        let (server, client) = (server(&sockets[0]), client(&sockets[1]));
        let addr = server.local_addr().expect("an address");
        let (at_server, at_client) = connect(&server, &client, addr).await;
        exchange(&at_server, &at_client, MB).await;
    });
}

/// 10 datagrams of 9,000 bytes do not fit into one message. The socket loses the first such batch,
/// and asks for smaller ones from then on.
#[test]
fn batches_of_large_datagrams_are_made_smaller() {
    run(async {
        let sockets = [(); 2].map(|()| socket("127.0.0.1:0", "fq", Options::default()));
        let mut config = EndpointConfig::default();
        config.max_udp_payload_size(9_000).expect("a good size");
        let transport = || {
            let mut transport = TransportConfig::default();
            transport.initial_mtu(9_000).min_mtu(9_000).mtu_discovery_config(None);
            Arc::new(transport)
        };
        let mut of_server = server_config();
        of_server.transport_config(transport());
        let mut of_client = client_config();
        of_client.transport_config(transport());
        let server = sockets[0].endpoint(config.clone(), Some(of_server)).expect("an endpoint");
        let mut client = sockets[1].endpoint(config, None).expect("an endpoint");
        client.set_default_client_config(of_client);
        let addr = server.local_addr().expect("an address");
        let (at_server, at_client) = connect(&server, &client, addr).await;
        exchange(&at_server, &at_client, 2 * MB).await;
        let too_large = sockets.map(|socket| socket.stats().too_large);
        assert!(too_large.iter().all(|count| (1..100).contains(count)), "{too_large:?}");
    });
}
