//! A server of QUIC sends to clients over loopback, once with quinn's own socket and once through
//! the qdisc of a link. Prints the rate of all connections together, the processor time of server
//! and clients for a kilobyte of data, how equal the parts of the connections are, the round-trip
//! time that quinn sees, and the packets that it believes lost. With several rounds, prints the
//! ratios of the two sockets in the same round: the median, the least and the greatest.
//!
//! ```text
//! cargo run --release -p onramp-quinn --example quinn -- \
//!     [CONNECTIONS [SECONDS [QDISC [KIB [BATCH [ROUNDS]]]]]]
//! ```
//!
//! The defaults are 20 connections, 2 seconds, `fq maxrate 20mbit`, credits of 16 KiB, batches of
//! up to 10 datagrams, and one round.

use std::error::Error;
use std::future::IntoFuture as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use onramp::Link;
use onramp_quinn::{OnrampSocket, Options};
use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::PrivatePkcs8KeyDer;
use quinn::{ClientConfig, Connection, Endpoint, EndpointConfig, ServerConfig, TokioRuntime};
use tokio::time::{Instant, sleep};

type Failure = Box<dyn Error + Send + Sync>;

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// What the command line asks for.
struct Wanted {
    connections: usize,
    time: Duration,
    qdisc: String,
    options: Options,
    rounds: usize,
}

impl Wanted {
    fn parse() -> Result<Self, Failure> {
        let mut args = std::env::args().skip(1);
        let connections = args.next().map_or(Ok(20), |text| text.parse())?;
        let seconds = args.next().map_or(Ok(2), |text| text.parse())?;
        let qdisc = args.next().unwrap_or_else(|| "fq maxrate 20mbit".to_owned());
        let mut options = Options::default();
        if let Some(text) = args.next() {
            options.credits.bytes = text.parse::<u32>()?.saturating_mul(1_024);
        }
        if let Some(text) = args.next() {
            options.segments = text.parse()?;
        }
        let rounds = args.next().map_or(Ok(1), |text| text.parse())?;
        Ok(Self { connections, time: Duration::from_secs(seconds), qdisc, options, rounds })
    }
}

/// What one run has measured.
struct Measured {
    /// Bits that each client received in a second.
    rates: Vec<f64>,
    /// Processor time of this process, nanoseconds for each kilobyte of data.
    cpu: f64,
    rtts: Vec<Duration>,
    sent: u64,
    lost: u64,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let wanted = Wanted::parse()?;
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let server = ServerConfig::with_single_cert(vec![made.cert.der().clone()], key.into())?;
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone())?;
    let client = ClientConfig::with_root_certificates(Arc::new(roots))?;

    println!(
        "{} connections, {:?}, qdisc {}, credits of {} KiB, batches of {}\n",
        wanted.connections,
        wanted.time,
        wanted.qdisc,
        wanted.options.credits.bytes / 1_024,
        wanted.options.segments
    );
    println!("socket      Mbit/s  CPU ns/kB  Jain's index  RTT, median  RTT, longest       lost");
    let plain = Endpoint::server(server.clone(), LOOPBACK)?;
    let link = Link::udp(LOOPBACK).ports(1).qdisc(&wanted.qdisc).build()?;
    let socket = OnrampSocket::with(link.clone(), Arc::new(TokioRuntime), wanted.options)?;
    let paced = socket.endpoint(EndpointConfig::default(), Some(server))?;
    let (mut faster, mut dearer) = (Vec::new(), Vec::new());
    for round in 0..wanted.rounds {
        // The two take turns in going first.
        let (mut first, mut second) = (("quinn's", &plain), ("Onramp's", &paced));
        if round % 2 == 1 {
            (first, second) = (second, first);
        }
        let mut both = [("", 0.0, 0.0); 2];
        for (at, (name, endpoint)) in [first, second].into_iter().enumerate() {
            let run = measure(endpoint, &client, &wanted).await?;
            print(name, &run);
            both[at] = (name, run.rates.iter().sum(), run.cpu);
        }
        both.sort_unstable_by_key(|(name, ..)| *name == "quinn's");
        let [(_, rate, cpu), (_, plain_rate, plain_cpu)] = both;
        faster.push(rate / plain_rate);
        dearer.push(cpu / plain_cpu);
    }
    println!("\nOnramp's to quinn's: rate {}, CPU {}", spread(faster), spread(dearer));
    println!("{:?}", socket.stats());

    // The link sends what the qdisc still holds, and says whether it could.
    drop((paced, socket));
    let report = tokio::task::spawn_blocking(move || link.close(Duration::from_secs(1))).await?;
    println!("the link is closed, all packets have left: {}", report.flushed);
    Ok(())
}

async fn measure(
    server: &Endpoint,
    config: &ClientConfig,
    wanted: &Wanted,
) -> Result<Measured, Failure> {
    let (mut clients, mut sides) = (Vec::new(), Vec::new());
    for _ in 0..wanted.connections {
        let mut client = Endpoint::client(LOOPBACK)?;
        client.set_default_client_config(config.clone());
        let connecting = client.connect(server.local_addr()?, "localhost")?;
        let accepted = server.accept().await.ok_or("the server has ended")?.into_future();
        let (at_server, at_client) = tokio::try_join!(accepted, connecting)?;
        clients.push((client, tokio::spawn(receive(at_client, wanted.time))));
        sides.push(at_server);
    }
    for side in sides.clone() {
        tokio::spawn(send(side));
    }
    let (mut rates, cpu) = (Vec::new(), cpu_seconds()?);
    for (_client, received) in &mut clients {
        rates.push(received.await??);
    }
    let bytes = rates.iter().sum::<f64>() / 8.0 * wanted.time.as_secs_f64();
    let cpu = (cpu_seconds()? - cpu) * 1e12 / bytes;
    let mut rtts: Vec<_> = sides.iter().map(Connection::rtt).collect();
    rtts.sort_unstable();
    let paths = sides.iter().map(|side| side.stats().path);
    let (sent, lost) = paths
        .fold((0, 0), |(sent, lost), path| (sent + path.sent_packets, lost + path.lost_packets));
    sides.iter().for_each(|side| side.close(0_u32.into(), b""));
    server.wait_idle().await;
    Ok(Measured { rates, cpu, rtts, sent, lost })
}

/// Sends until the connection closes.
async fn send(connection: Connection) -> Result<(), Failure> {
    let mut stream = connection.open_uni().await?;
    loop {
        stream.write_all(&[7; 65_536]).await?;
    }
}

/// Receives for this long from the first data on. Returns the bits per second.
async fn receive(connection: Connection, time: Duration) -> Result<f64, Failure> {
    let mut stream = connection.accept_uni().await?;
    let (mut buffer, mut bytes) = (vec![0; 65_536], 0);
    let started = Instant::now();
    let mut end = std::pin::pin!(sleep(time));
    loop {
        tokio::select! {
            () = &mut end => break,
            read = stream.read(&mut buffer) => bytes += read?.ok_or("the server has stopped")?,
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a figure to read")]
    Ok(bytes as f64 * 8.0 / started.elapsed().as_secs_f64())
}

#[expect(clippy::cast_precision_loss, reason = "figures to read")]
fn print(name: &str, run: &Measured) {
    let sum: f64 = run.rates.iter().sum();
    let squares: f64 = run.rates.iter().map(|rate| rate * rate).sum();
    let jain = sum * sum / (run.rates.len() as f64 * squares);
    let ms = |at: usize| run.rtts.get(at).map_or(0.0, |rtt| rtt.as_secs_f64() * 1e3);
    let (median, longest) = (ms(run.rtts.len() / 2), ms(run.rtts.len().saturating_sub(1)));
    let lost = run.lost as f64 / run.sent.max(1) as f64 * 100.0;
    println!(
        "{name:<10} {:>7.1} {:>10.0} \
         {jain:>13.3} {median:>9.2} ms {longest:>10.2} ms {lost:>8.3} %",
        sum / 1e6,
        run.cpu
    );
}

/// Returns the processor time that all threads of this process have used, in seconds.
fn cpu_seconds() -> Result<f64, Failure> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name of the program stands in brackets, and may contain anything. Behind it, the 12th and
    // the 13th field are the time in user and kernel mode, in hundredths of a second (proc(5)).
    let (_, fields) = stat.rsplit_once(')').ok_or("/proc/self/stat has another form")?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    Ok(ticks.sum::<Result<f64, _>>()? / 100.0)
}

/// Returns the median of `ratios`, with the least and the greatest.
fn spread(mut ratios: Vec<f64>) -> String {
    ratios.sort_unstable_by(f64::total_cmp);
    match (ratios.first(), ratios.get(ratios.len() / 2), ratios.last()) {
        (Some(least), Some(median), Some(most)) => format!("{median:.2} ({least:.2}-{most:.2})"),
        _ => "unknown".to_owned(),
    }
}
