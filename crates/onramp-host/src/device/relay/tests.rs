use std::thread;
use std::time::Duration;

use onramp_dev::Null;
use rustix::net::{AddressFamily, SocketType};

use super::*;

fn link() -> Link {
    let device = Box::new(Null::new(1500)) as Box<dyn onramp_core::Device>;
    Link::devices([device]).build().expect("a link")
}

fn listener(address: &str, end: &Arc<LinkEnd>) -> Listener {
    let address: SocketAddr = address.parse().expect("an address");
    let limits = Limits { clients: 10, idle: Duration::from_secs(60) };
    let upstream = Upstream { local: address, remote: address, mtu: 1500 };
    Listener::bind(address, end, upstream, Vec::new(), limits).expect("a port")
}

#[test]
fn an_error_that_lasts_is_counted_and_keeps_no_processor_busy() {
    let (link, end) = (link(), Arc::<LinkEnd>::default());
    let mut listener = listener("127.0.0.1:0", &end);
    // The "socket" of this listener is a TCP socket without a peer. It always reports that it is
    // ready, and receiving from it always fails.
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None);
    listener.socket = socket.expect("a socket").into();
    let begun = link.now();
    let relay = Relay::start(listener, &link, None).expect("it starts");
    // If the relay's thread did not sleep after errors, it would count thousands of errors at once.
    let pause = Duration::from_millis(10);
    let counted = (0..6_000).any(|_| {
        thread::sleep(pause);
        relay.view().errors >= 5
    });
    assert!(counted, "errors are counted");
    let counts = relay.counts.clone();
    drop(relay);
    let (errors, took) = (counts.errors.get(), link.now().since(begun));
    assert_eq!(end.received().dropped, errors);
    let rests = took / u64::try_from(pause.as_nanos()).expect("it is short");
    assert!(errors <= rests + 1, "{errors} errors in {took} ns");
    let _ = link.close(Duration::ZERO);
}

/// After a relay was dropped, its thread has ended and no longer uses the part of the device below
/// the link.
#[test]
fn a_relay_that_goes_has_ended() {
    for address in ["127.0.0.1:0", "0.0.0.0:0"] {
        let (link, end) = (link(), Arc::<LinkEnd>::default());
        let relay = Relay::start(listener(address, &end), &link, None).expect("it starts");
        let at = relay.address().expect("it has one");
        assert!(at.port() > 0 && address.starts_with(&at.ip().to_string()));
        assert_eq!(Arc::strong_count(&end), 2, "the thread listens for it");
        drop(relay);
        assert_eq!(Arc::strong_count(&end), 1);
        UdpSocket::bind(at).expect("the address is free again");
    }
}
