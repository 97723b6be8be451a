//! Meters what a program writes into a socket: 8 MB/s for a second, with a loop that only waits in
//! `poll`. Run: `cargo run -p onramp-limiter --example limiter [BYTES_A_SECOND]`.

use std::error::Error;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use onramp_core::Clock as _;
use onramp_dev::MonotonicClock;
use onramp_limiter::{RateLimiter, TokenBucket, TokenType};
use rustix::event::{PollFd, PollFlags, poll};

/// Bytes of each write.
const CHUNK: usize = 4_096;

fn main() -> Result<(), Box<dyn Error>> {
    let rate: u64 = std::env::args().nth(1).map_or(Ok(8_000_000), |text| text.parse())?;
    // The bytes of 10 ms: if this thread gets the processor later than that, rate is lost.
    let bucket = TokenBucket::new((rate / 100).max(1), 0, Duration::from_millis(10))?;
    let mut limiter = RateLimiter::new(Some(bucket), None)?;
    let (mut to, mut from) = UnixStream::pair()?;
    let (began, mut wakes) = (MonotonicClock.now(), 0_u64);
    let received = thread::scope(|scope| -> Result<u64, Box<dyn Error>> {
        let reader = scope.spawn(move || {
            let (mut buffer, mut received) = ([0; 65_536], 0);
            loop {
                match from.read(&mut buffer) {
                    Ok(0) | Err(_) => return received,
                    Ok(len) => received += len as u64,
                }
            }
        });
        for _ in 0..(rate / CHUNK as u64).max(1) {
            while !limiter.consume(CHUNK as u64, TokenType::Bytes) {
                poll(&mut [PollFd::new(&limiter, PollFlags::IN)], None)?;
                limiter.event_handler()?;
                wakes += 1;
            }
            to.write_all(&[b'x'; CHUNK])?;
        }
        drop(to);
        Ok(reader.join().expect("the reader returns"))
    })?;
    let seconds = MonotonicClock.now().since(began) as f64 / 1e9;
    println!("limit {rate} bytes/s: {received} bytes in {seconds:.3} s, {wakes} wake-ups");
    println!("{:.0} bytes/s", received as f64 / seconds);
    Ok(())
}
