//! What a datagram carries besides its data, and what the socket refuses.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use onramp::dev::Null;
use onramp::{Credits, Link};
use onramp_quinn::{OnrampSocket, Options};
use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, TokioRuntime};

use crate::common::{connect, exchange, link, plain_client, run, server, socket};

/// Receives until `len` bytes have come. Returns the descriptions of the buffers.
async fn receive(socket: &OnrampSocket, len: usize) -> Vec<RecvMeta> {
    let (mut all, mut got) = (Vec::new(), 0);
    while got < len {
        let (mut space, mut metas) = (vec![0; 65_535], [RecvMeta::default()]);
        let mut buffers = [IoSliceMut::new(&mut space)];
        let count = std::future::poll_fn(|cx| socket.poll_recv(cx, &mut buffers, &mut metas)).await;
        assert_eq!(count.expect("an open link"), 1);
        got += metas[0].len;
        all.push(metas[0]);
    }
    all
}

#[test]
fn marks_segments_and_addresses_pass() {
    run(async {
        let from = socket("127.0.0.1:0", "fq", Options::default());
        let to = socket("0.0.0.0:0", "fq", Options::default());
        let port = to.local_addr().expect("an address").port();
        let destination = SocketAddr::from(([127, 0, 0, 5], port));
        for ecn in
            [None, Some(EcnCodepoint::Ect0), Some(EcnCodepoint::Ect1), Some(EcnCodepoint::Ce)]
        {
            let contents = &[3; 2_500];
            let batch =
                Transmit { destination, ecn, contents, segment_size: Some(1_000), src_ip: None };
            from.try_send(&batch).expect("room");
            for meta in receive(&to, 2_500).await {
                assert_eq!((meta.ecn, meta.addr), (ecn, from.local_addr().expect("an address")));
                assert!(meta.stride == 1_000 || meta.len == 500, "{meta:?}");
                assert_eq!(meta.dst_ip, Some(destination.ip()));
            }
        }
        assert!(from.link().flush(Duration::from_secs(60)));
        let stats = from.link().stats();
        assert_eq!(stats.sent, 4, "a batch is one packet");
        assert!(from.max_transmit_segments() > 1 && !from.may_fragment());
    });
}

/// `netem` marks what it would lose, if the sender understands marks.
#[test]
fn a_mark_of_a_qdisc_arrives() {
    run(async {
        let from = socket("127.0.0.1:0", "netem loss 100% ecn", Options::default());
        let to = socket("127.0.0.1:0", "fq", Options::default());
        let destination = to.local_addr().expect("an address");
        let (ecn, contents) = (Some(EcnCodepoint::Ect0), &[3; 100]);
        let one = Transmit { destination, ecn, contents, segment_size: None, src_ip: None };
        from.try_send(&one).expect("room");
        assert_eq!(receive(&to, 100).await[0].ecn, Some(EcnCodepoint::Ce));
    });
}

/// The endpoint itself, which waits for nothing, and the connections have the same threads.
#[test]
fn a_connection_waits_for_its_own_refusals_only() {
    run(async {
        let options = Options { credits: Credits { packets: 1, bytes: 1 }, ..Options::default() };
        let socket = socket("127.0.0.1:0", "netem delay 100s", options);
        let to = [(); 2].map(|()| std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket"));
        let send = |to: &std::net::UdpSocket| {
            let destination = to.local_addr().expect("an address");
            let contents = &[1; 1_000];
            let one =
                Transmit { destination, ecn: None, contents, segment_size: None, src_ip: None };
            socket.try_send(&one)
        };
        let mut pollers = [(); 2].map(|()| Arc::clone(&socket).create_io_poller());
        let mut may_send = |poller: usize| {
            let mut cx = Context::from_waker(Waker::noop());
            pollers[poller].as_mut().poll_writable(&mut cx).is_ready()
        };
        // What the qdisc delays keeps its credit.
        while send(&to[0]).is_ok() {}
        assert_eq!((socket.stats().full, socket.stats().replies_dropped), (1, 1));
        assert!(may_send(0), "the refusal was the endpoint's");
        let full = send(&to[0]).expect_err("no room");
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        assert!(!may_send(0), "the refusal was this connection's");
        assert!(may_send(1) && send(&to[1]).is_ok(), "others send to other addresses");
        assert!(!may_send(0), "it still waits");
        assert_eq!(socket.stats().replies_dropped, 1);
    });
}

/// A client of quinn ignores answers that come from another address than the one that it asked.
#[test]
fn a_server_answers_from_the_address_that_was_asked() {
    run(async {
        for (bound, asked) in [
            ("0.0.0.0:0", [127, 0, 0, 2]),
            ("0.0.0.0:0", [127, 0, 0, 1]),
            ("[::]:0", [127, 0, 0, 3]),
        ] {
            let server = server(&socket(bound, "fq", Options::default()));
            let addr = (asked, server.local_addr().expect("an address").port()).into();
            let client = plain_client("127.0.0.1:0");
            let (at_server, at_client) = connect(&server, &client, addr).await;
            exchange(&at_server, &at_client, 10_000).await;
        }
    });
}

#[test]
fn a_device_without_segmentation_gets_no_batches() {
    run(async {
        let options = onramp::dev::UdpOptions { gso: false, ..Default::default() };
        let link = Link::udp("127.0.0.1:0").ports(1).udp_options(options).build().expect("a link");
        let socket = OnrampSocket::new(link).expect("a socket");
        assert_eq!(socket.max_transmit_segments(), 1);
        let options = Options { segments: 3, ..Options::default() };
        let few = crate::common::socket("127.0.0.1:0", "fq", options);
        assert_eq!(few.max_transmit_segments(), 3);
    });
}

#[test]
fn wrong_links_and_options_are_refused() {
    let with = |link, options| {
        let error = OnrampSocket::with(link, Arc::new(TokioRuntime), options).expect_err("wrong");
        (error.kind(), error.to_string())
    };
    run(async move {
        let wrong = io::ErrorKind::InvalidInput;
        let many = Link::udp("127.0.0.1:0").ports(2).build().expect("a link");
        let (kind, text) = with(many, Options::default());
        assert!(kind == wrong && text.contains("one port, not 2"), "{text}");
        let null = Link::devices([Box::new(Null::default()) as _]).build().expect("a link");
        let (kind, text) = with(null, Options::default());
        assert!(kind == wrong && text.contains("no UDP socket"), "{text}");
        for (options, name) in [
            (Options { peers: 0, ..Options::default() }, "peers"),
            (Options { segments: 0, ..Options::default() }, "segments"),
            (
                Options { credits: Credits { packets: 0, bytes: 9 }, ..Options::default() },
                "credits.packets",
            ),
            (
                Options { credits: Credits { packets: 40_000, bytes: 9 }, ..Options::default() },
                "credits.packets",
            ),
        ] {
            let (kind, text) = with(link("127.0.0.1:0", "fq"), options);
            assert!(kind == wrong && text.contains(name), "{text}");
        }
        let error = OnrampSocket::bind("127.0.0.1:0", "fq maxrate").expect_err("wrong");
        assert!(error.kind() == wrong && error.to_string().contains("maxrate"), "{error}");
        let closed = link("127.0.0.1:0", "fq");
        closed.close(Duration::ZERO);
        assert_eq!(with(closed, Options::default()).0, io::ErrorKind::BrokenPipe);
    });
    let outside = OnrampSocket::bind("127.0.0.1:0", "fq").expect_err("no runtime");
    assert_eq!(outside.kind(), io::ErrorKind::Unsupported);
}
