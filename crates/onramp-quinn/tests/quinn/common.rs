//! Endpoints with certificates, and transfers.

use std::future::{Future, IntoFuture as _};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use onramp::{Link, LinkStats};
use onramp_quinn::{OnrampSocket, Options};
use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, RecvStream, SendStream, ServerConfig,
    TokioRuntime, TransportConfig,
};

/// Runs the body of a test in a runtime with two threads, for two minutes at most.
pub(crate) fn run(body: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(in_time(body));
}

/// Waits for a future, for two minutes at most: a guard against hanging.
pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(120), future).await.expect("no hang")
}

fn certificate() -> &'static (CertificateDer<'static>, Vec<u8>) {
    static MADE: OnceLock<(CertificateDer<'static>, Vec<u8>)> = OnceLock::new();
    MADE.get_or_init(|| {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a key");
        (made.cert.der().clone(), made.signing_key.serialize_der())
    })
}

pub(crate) fn server_config() -> ServerConfig {
    let (certificate, key) = certificate();
    let key = PrivatePkcs8KeyDer::from(key.clone()).into();
    ServerConfig::with_single_cert(vec![certificate.clone()], key).expect("a good key")
}

pub(crate) fn client_config() -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(certificate().0.clone()).expect("a good certificate");
    ClientConfig::with_root_certificates(Arc::new(roots)).expect("a good configuration")
}

pub(crate) fn link(addr: &str, qdisc: &str) -> Link {
    Link::udp(addr).ports(1).qdisc(qdisc).build().expect("a link")
}

pub(crate) fn socket(addr: &str, qdisc: &str, options: Options) -> Arc<OnrampSocket> {
    OnrampSocket::with(link(addr, qdisc), Arc::new(TokioRuntime), options).expect("a socket")
}

pub(crate) fn server(socket: &Arc<OnrampSocket>) -> Endpoint {
    socket.endpoint(EndpointConfig::default(), Some(server_config())).expect("an endpoint")
}

/// Makes an endpoint of clients over a link.
pub(crate) fn client(socket: &Arc<OnrampSocket>) -> Endpoint {
    with_config(socket.endpoint(EndpointConfig::default(), None).expect("an endpoint"))
}

/// Makes an endpoint of clients that is quinn's own.
pub(crate) fn plain_client(addr: &str) -> Endpoint {
    with_config(Endpoint::client(addr.parse().expect("an address")).expect("an endpoint"))
}

fn with_config(mut endpoint: Endpoint) -> Endpoint {
    endpoint.set_default_client_config(client_config());
    endpoint
}

/// Connects a client with a server. Returns the server's end first.
pub(crate) async fn connect(
    server: &Endpoint,
    client: &Endpoint,
    addr: SocketAddr,
) -> (Connection, Connection) {
    let connecting = client.connect(addr, "localhost").expect("a good address");
    let accepting = async { server.accept().await.expect("a client").into_future().await };
    tokio::try_join!(accepting, connecting).expect("a connection")
}

/// Returns the number of packets that a link has dropped.
pub(crate) fn drops(stats: &LinkStats) -> u64 {
    stats.dropped.values().sum()
}

/// Returns a configuration in which connections never end for want of packets.
pub(crate) fn patient() -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    config.max_idle_timeout(None);
    Arc::new(config)
}

/// Returns bytes in which a lost, repeated or moved piece shows.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    let byte = |at: usize| {
        let [low, middle, high, ..] = at.to_le_bytes();
        low ^ middle.rotate_left(3) ^ high.rotate_left(5)
    };
    (0..len).map(byte).collect()
}

async fn give(mut sending: SendStream, bytes: &[u8]) {
    sending.write_all(bytes).await.expect("a peer that receives");
    sending.finish().expect("an open stream");
}

async fn take(mut receiving: RecvStream, bytes: &[u8]) {
    let received = receiving.read_to_end(bytes.len()).await.expect("a peer that sends");
    assert!(received == bytes, "{} bytes arrived, but not those that were sent", received.len());
}

/// Sends as many bytes in both directions at once, and checks that they arrive intact.
pub(crate) async fn exchange(server: &Connection, client: &Connection, bytes: usize) {
    let bytes = pattern(bytes);
    let asking = async {
        let (sending, receiving) = client.open_bi().await.expect("a stream");
        tokio::join!(give(sending, &bytes), take(receiving, &bytes))
    };
    let answering = async {
        let (sending, receiving) = server.accept_bi().await.expect("a stream");
        tokio::join!(give(sending, &bytes), take(receiving, &bytes))
    };
    tokio::join!(asking, answering);
}
