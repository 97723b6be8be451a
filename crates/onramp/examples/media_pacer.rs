//! A media sender: paced video, audio in a band with priority over the video, and one packet with a
//! departure time. Run: `cargo run --release -p onramp --example media_pacer`.

use std::net::UdpSocket;
use std::time::Duration;

use onramp::{Link, Rate};

/// A priority that `fq` maps to its first band (`TC_PRIO_INTERACTIVE`).
const INTERACTIVE: u32 = 6;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let receiver = UdpSocket::bind("127.0.0.1:0")?;
    receiver.set_read_timeout(Some(Duration::from_secs(1)))?;
    let to = receiver.local_addr()?;

    // The default qdisc, `fq` with an option, makes a paced flow pause after each packet.
    let link = Link::udp("127.0.0.1:0").ports(1).build()?;
    let mut sender = link.sender();
    let video = sender.flow(to).with_pacing_rate("8mbit".parse::<Rate>()?);
    let audio = sender.flow(to).with_priority(INTERACTIVE);

    // A key frame of 40 packets. Sent at line rate, it would be a burst of which routers drop
    // packets. Paced, it takes 40 ms, and the audio packets need not wait behind it.
    for part in 0..40_u8 {
        sender.send(&video, &[part; 1_000])?;
    }
    sender.send(&audio, b"audio")?;

    // Give one packet a departure time: it leaves 50 ms from now.
    let mut marker = sender.packet(&audio, b"marker")?;
    marker.txtime_ns = (link.now() + Duration::from_millis(50)).0;
    sender.submit(&audio, marker).map_err(|rejected| rejected.why)?;

    let (started, mut buffer) = (link.now(), [0; 2_000]);
    for _ in 0..42 {
        let len = receiver.recv(&mut buffer)?;
        let at_ms = link.now().since(started) / 1_000_000;
        match &buffer[..len] {
            b"audio" | b"marker" => {
                println!("{at_ms:3} ms {}", String::from_utf8_lossy(&buffer[..len]))
            }
            [part, ..] if part % 8 == 0 => println!("{at_ms:3} ms video packet {part}"),
            _ => {}
        }
    }
    println!("{:?}", link.close(Duration::from_secs(1)));
    Ok(())
}
