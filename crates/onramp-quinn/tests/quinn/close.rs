//! The ends of links, sockets and endpoints.

use std::time::Duration;

use onramp_quinn::Options;
use quinn::{ConnectionError, EndpointConfig};

use crate::common::{
    client, client_config, connect, exchange, patient, plain_client, run, server, server_config,
    socket,
};

/// Nobody sends anything when the link closes, and nothing times out.
#[test]
fn connections_of_a_closed_link_end_though_idle() {
    run(async {
        let socket = socket("127.0.0.1:0", "fq", Options::default());
        let mut config = server_config();
        config.transport_config(patient());
        let server = socket.endpoint(EndpointConfig::default(), Some(config)).expect("an endpoint");
        let mut client = plain_client("127.0.0.1:0");
        let mut config = client_config();
        config.transport_config(patient());
        client.set_default_client_config(config);
        let addr = server.local_addr().expect("an address");
        let (at_server, at_client) = connect(&server, &client, addr).await;
        exchange(&at_server, &at_client, 1_000).await;
        socket.link().close(Duration::ZERO);
        // Of the reasons that quinn has for this, the later one stays.
        let error = at_server.closed().await;
        let expected =
            matches!(error, ConnectionError::TransportError(_) | ConnectionError::LocallyClosed);
        assert!(expected, "{error:?}");
        assert!(server.accept().await.is_none());
    });
}

/// Tasks that wait for room, or for data, end with an error.
#[test]
fn transfers_of_a_closed_link_end() {
    run(async {
        let options = Options::default();
        let sockets = [(); 2].map(|()| socket("127.0.0.1:0", "fq maxrate 1mbit", options));
        let (server, client) = (server(&sockets[0]), client(&sockets[1]));
        let addr = server.local_addr().expect("an address");
        let (at_server, at_client) = connect(&server, &client, addr).await;
        let mut sending = at_server.open_uni().await.expect("a stream");
        let writing =
            tokio::spawn(async move { while sending.write_all(&[1; 10_000]).await.is_ok() {} });
        let mut receiving = at_client.accept_uni().await.expect("a stream");
        receiving.read_exact(&mut [0; 50_000]).await.expect("data");
        while sockets[0].stats().full == 0 {
            tokio::task::yield_now().await;
        }
        for socket in &sockets {
            socket.link().close(Duration::ZERO);
        }
        writing.await.expect("no panic");
        while receiving.read(&mut [0; 50_000]).await.is_ok() {}
    });
}

/// Everything that was sent before an orderly close arrives, also what a slow qdisc holds.
#[test]
fn an_endpoint_that_closes_is_drained() {
    run(async {
        let tbf = "tbf rate 5mbit burst 20kb limit 200kb";
        let sockets = [(); 2].map(|()| socket("127.0.0.1:0", tbf, Options::default()));
        let (server, client) = (server(&sockets[0]), client(&sockets[1]));
        let addr = server.local_addr().expect("an address");
        let (at_server, at_client) = connect(&server, &client, addr).await;
        exchange(&at_server, &at_client, 100_000).await;
        server.close(7_u32.into(), b"bye");
        let error = at_client.closed().await;
        let ConnectionError::ApplicationClosed(close) = error else { panic!("{error:?}") };
        assert_eq!((close.error_code, &*close.reason), (7_u32.into(), &b"bye"[..]));
        server.wait_idle().await;
        client.wait_idle().await;
        drop((at_server, at_client, server, client));
        for socket in sockets {
            let link = socket.link().clone();
            drop(socket);
            let report = tokio::task::spawn_blocking(move || link.close(Duration::from_secs(60)));
            let report = report.await.expect("no panic");
            assert!(report.flushed, "{report:?}");
        }
    });
}
