//! One client's session: reads its requests, executes them and writes the replies.

use std::io;
use std::time::Duration;

use onramp_host::Host;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tracing::debug;

use crate::dispatch::{exec, exec_some};
use crate::hub::{Died, Hub};
use crate::traffic::{Ended, Run, Traffic};
use crate::watch::{Watch, Watched};
use crate::wire::{self, Asked, Command, Request, Said};

/// Number of commands of a batch that are executed before other clients get their turn.
const TURN: usize = 64;
/// Number of commands of a batch that count as one request for the limit on a client's rate: a
/// command that comes alone costs the daemon and the client far more, since each waits for the
/// other.
const COUNT_AS_ONE: usize = 16;

/// Limits for clients of the socket.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of clients at a time.
    pub clients: usize,
    /// Maximum size of a request, in bytes.
    pub line: usize,
    /// Maximum number of requests per second from one client; further requests wait. Sixteen
    /// commands of a batch count as one request.
    pub rate: u32,
    /// How long a request may take to arrive, from its first byte on, and how long the daemon waits
    /// for a client to read a reply.
    pub patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let patience = Duration::from_secs(10);
        Self { clients: 2_048, line: wire::LINE_MAX, rate: 5_000, patience }
    }
}

/// A client's session.
#[derive(Debug)]
pub(crate) struct Session {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    hub: Hub,
    watched: Watched,
    traffic: Traffic,
    limits: Limits,
    pace: Pace,
}

/// What a session does after it has answered a request.
enum Then {
    /// It reads the next request.
    Read,
    /// It sends the stream that the client wants to watch.
    Tell(Watch),
    /// It waits for the end of the traffic that the client asked for.
    Wait(Run),
}

/// What a client sent next, or how its requests ended.
#[derive(Debug)]
enum Next {
    Line(Vec<u8>),
    End,
    /// The client sent something that is not a request, and the bytes after it cannot be understood
    /// either.
    Lost(String),
}

/// Error: the client has left or does not read its replies, so the session ends.
#[derive(Debug)]
struct Gone;

impl From<io::Error> for Gone {
    fn from(error: io::Error) -> Self {
        debug!("a client is gone: {error}");
        Self
    }
}

impl Session {
    pub(crate) fn new(
        stream: UnixStream,
        hub: Hub,
        watched: Watched,
        traffic: Traffic,
        limits: Limits,
    ) -> Self {
        let (reader, writer) = stream.into_split();
        let (reader, pace) = (BufReader::new(reader), Pace::new(limits.rate));
        Self { reader, writer, hub, watched, traffic, limits, pace }
    }

    /// Serves the client until it leaves or the daemon ends.
    pub(crate) async fn run(mut self, mut ending: watch::Receiver<bool>) {
        loop {
            let next = tokio::select! {
                next = next(&mut self.reader, self.limits) => next,
                _ = ending.wait_for(|ending| *ending) => return,
            };
            let line = match next {
                Ok(Next::Line(line)) => line,
                Ok(Next::Lost(why)) => {
                    // A failed write means that the client is gone, and the session ends anyway.
                    let _ = self.write(&wire::refusal(None, &why)).await;
                    return;
                }
                Ok(Next::End) | Err(Gone) => return,
            };
            self.pace.wait(1).await;
            match self.answer(&line).await {
                Ok((_, Then::Read)) => {}
                Ok((id, Then::Tell(watch))) => return self.tell(id, watch, ending).await,
                Ok((id, Then::Wait(run))) => return self.wait(id, run, ending).await,
                Err(Gone) => return,
            }
        }
    }

    /// Sends the client the stream that it asked for, until the client leaves, the client sends
    /// anything else, or the daemon ends.
    async fn tell(&mut self, id: Option<u64>, mut watch: Watch, mut ending: watch::Receiver<bool>) {
        let Self { reader, writer, .. } = self;
        loop {
            let next = tokio::select! {
                next = watch.next(id) => next,
                _ = reader.fill_buf() => return,
                _ = ending.wait_for(|ending| *ending) => break,
            };
            let Some(lines) = next else { return };
            // This write may wait until a slow client reads. It delays no other client, because
            // each session is a task of its own; the slow client only misses some lines.
            tokio::select! {
                written = writer.write_all(&lines) => if written.is_err() { return },
                _ = reader.fill_buf() => return,
                _ = ending.wait_for(|ending| *ending) => return,
            }
        }
        // The daemon ends. What has happened until now goes to the client, as far as the client can
        // take it without a wait.
        let _ = writer.try_write(&watch.rest(id));
    }

    /// Waits for the end of a traffic, and sends the client the report. The traffic ends early if
    /// the client leaves or sends anything else, or if the daemon ends.
    async fn wait(mut self, id: Option<u64>, mut run: Run, mut ending: watch::Receiver<bool>) {
        tokio::select! {
            () = run.ended() => {}
            _ = self.reader.fill_buf() => run.stop(Ended::Stopped),
            _ = ending.wait_for(|ending| *ending) => run.stop(Ended::Daemon),
        }
        // The threads may wait for packets that are still in the device, so the daemon's end may
        // come meanwhile.
        tokio::select! {
            () = run.ended() => {}
            () = async { drop(ending.wait_for(|ending| *ending).await) } => {
                run.stop(Ended::Daemon);
                run.ended().await;
            }
        }
        // A failed write means that the client is gone, and the session ends anyway.
        let _ = self.write(&wire::traffic(id, &run.report())).await;
    }

    /// Answers a request, unless its answer comes later. Returns the request's number, and what the
    /// session does next.
    async fn answer(&mut self, line: &[u8]) -> Result<(Option<u64>, Then), Gone> {
        let reply = match wire::parse(line) {
            Ok(Asked { id, request: Request::Traffic(options) }) => {
                match self.traffic.begin(options).await {
                    Ok(run) => return Ok((id, Then::Wait(run))),
                    Err(why) => wire::refusal(id, &why),
                }
            }
            Ok(Asked { id, request: Request::Watch(what, options) }) => {
                match self.watched.watch(&what, options).await {
                    Ok(watch) => {
                        self.write(&wire::watching(id, &what)).await?;
                        return Ok((id, Then::Tell(watch)));
                    }
                    Err(why) => wire::refusal(id, &why),
                }
            }
            Ok(Asked { id, request }) => self.serve(id, request).await,
            Err(wrong) => wire::refusal(wrong.id, &wrong.why),
        };
        self.write(&reply).await.map(|()| (None, Then::Read))
    }

    async fn serve(&mut self, id: Option<u64>, request: Request) -> Vec<u8> {
        match request {
            Request::Exec(command) => match self.hub.with(move |host| exec(host, &command)).await {
                Ok(reply) => wire::reply(id, &reply),
                Err(died) => wire::refusal(id, &died.to_string()),
            },
            Request::Batch { commands, force } => match self.batch(commands, force).await {
                Ok(said) => said.reply(id),
                Err(died) => wire::refusal(id, &died.to_string()),
            },
            // The function `answer` handles requests to watch and for traffic, and never passes one
            // to this function.
            Request::Watch(..) | Request::Traffic(_) => {
                wire::refusal(id, "this connection has nothing to watch")
            }
        }
    }

    /// Executes the commands of a batch in portions of [`TURN`] commands, so that other clients get
    /// their turns in between. For the limit on the client's rate, [`COUNT_AS_ONE`] commands count
    /// as a request.
    async fn batch(&mut self, commands: Vec<Command>, force: bool) -> Result<Said, Died> {
        let mut said = Said::default();
        let mut commands = commands.into_iter().peekable();
        let mut goes_on = true;
        while goes_on && commands.peek().is_some() {
            let some: Vec<Command> = commands.by_ref().take(TURN).collect();
            self.pace.wait(some.len().div_ceil(COUNT_AS_ONE)).await;
            let turn = move |host: &mut Host| {
                let goes_on = exec_some(host, &some, force, &mut said);
                (said, goes_on)
            };
            (said, goes_on) = self.hub.with(turn).await?;
        }
        Ok(said)
    }

    /// Writes a reply. A slow reader gets more time for a longer reply: one second per MiB.
    async fn write(&mut self, reply: &[u8]) -> Result<(), Gone> {
        let mib = u64::try_from(reply.len() >> 20).unwrap_or(u64::MAX);
        let patience = self.limits.patience.saturating_add(Duration::from_secs(mib));
        let written = timeout(patience, self.writer.write_all(reply)).await;
        Ok(written.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??)
    }
}

/// Tells a client that the daemon refuses to serve it, and why.
pub(crate) fn refuse(mut stream: UnixStream, why: &str, patience: Duration) {
    let refusal = wire::refusal(None, why);
    tokio::spawn(async move {
        // If the client is gone or does not read, it does not get the message.
        let _ = timeout(patience, stream.write_all(&refusal)).await;
        let _ = stream.shutdown().await;
    });
}

/// Reads a line from the client. Once a client has sent the first byte of a line, it must complete
/// the line within the time limit.
async fn next(reader: &mut BufReader<OwnedReadHalf>, limits: Limits) -> Result<Next, Gone> {
    let mut line = Vec::new();
    let mut deadline = None;
    loop {
        let more = match deadline {
            None => reader.fill_buf().await?,
            Some(deadline) => match timeout_at(deadline, reader.fill_buf()).await {
                Ok(more) => more?,
                Err(_) => return Ok(Next::Lost(slow(line.len(), limits))),
            },
        };
        if more.is_empty() {
            let why = "the request has no line end";
            let whole = line.is_empty();
            return Ok(if whole { Next::End } else { Next::Lost(why.to_owned()) });
        }
        deadline.get_or_insert_with(|| Instant::now() + limits.patience);
        let end = more.iter().position(|byte| *byte == b'\n');
        let taken = end.unwrap_or(more.len());
        if line.len() + taken > limits.line {
            let why = format!("a request has at most {} bytes", limits.line);
            return Ok(Next::Lost(why));
        }
        line.extend_from_slice(&more[..taken]);
        reader.consume(taken + usize::from(end.is_some()));
        if end.is_some() {
            return Ok(Next::Line(line));
        }
    }
}

fn slow(len: usize, limits: Limits) -> String {
    format!("got {len} bytes of a request, but no line end within {:?}", limits.patience)
}

/// Limits the rate of requests: a burst of as many requests as the rate allows in one second passes
/// at once; later requests are spaced evenly.
#[derive(Debug)]
struct Pace {
    interval: Duration,
    ahead: Duration,
    /// Time at which the latest request passes if all requests are spaced evenly at the allowed
    /// rate.
    due: Instant,
}

impl Pace {
    fn new(rate: u32) -> Self {
        let second = Duration::from_secs(1);
        let now = Instant::now();
        // A new client may use the whole burst, like a client that has been silent for a second.
        let due = now.checked_sub(second).unwrap_or(now);
        Self { interval: second / rate.max(1), ahead: second, due }
    }

    /// Waits until `requests` more requests are allowed by the rate.
    async fn wait(&mut self, requests: usize) {
        let now = Instant::now();
        if let Some(late) = now.checked_sub(self.ahead) {
            self.due = self.due.max(late);
        }
        self.due += self.interval.saturating_mul(u32::try_from(requests).unwrap_or(u32::MAX));
        if self.due > now {
            sleep_until(self.due).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Asks `pace` to let `commands` requests pass, and returns how long they had to wait.
    async fn waits(pace: &mut Pace, commands: usize) -> Duration {
        let begin = Instant::now();
        pace.wait(commands).await;
        begin.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_seconds_worth_at_once_and_then_one_after_another() {
        let mut pace = Pace::new(10);
        for number in 0..10 {
            assert_eq!(waits(&mut pace, 1).await, Duration::ZERO, "{number}");
        }
        assert_eq!(waits(&mut pace, 1).await, 100 * MS);
        assert_eq!(waits(&mut pace, 3).await, 300 * MS);
        // At ten requests per second, 250 ms without requests allow two requests at once; the third
        // waits for the missing 50 ms.
        sleep_until(Instant::now() + 250 * MS).await;
        assert_eq!(waits(&mut pace, 2).await, Duration::ZERO);
        assert_eq!(waits(&mut pace, 1).await, 50 * MS);
        // However long the client has been silent, it may send at most one second's worth of
        // requests at once.
        sleep_until(Instant::now() + 5_000 * MS).await;
        assert_eq!(waits(&mut pace, 10).await, Duration::ZERO);
        assert_eq!(waits(&mut pace, 1).await, 100 * MS);
        // A batch with more commands than the burst allows waits for the commands beyond the burst.
        sleep_until(Instant::now() + 5_000 * MS).await;
        assert_eq!(waits(&mut pace, 25).await, 1_500 * MS);
    }

    /// A rate of 0 is treated as 1 per second.
    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever() {
        let mut pace = Pace::new(0);
        assert_eq!(waits(&mut pace, 1).await, Duration::ZERO);
        assert_eq!(waits(&mut pace, 2).await, 2_000 * MS);
    }

    #[test]
    fn who_is_slow_is_told_how_slow() {
        let limits = Limits { patience: 1_500 * MS, ..Limits::default() };
        assert_eq!(slow(7, limits), "got 7 bytes of a request, but no line end within 1.5s");
    }
}
