//! The client side of `onramp top` and `onramp monitor`: it reads what the daemon streams on its
//! socket.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::snapshot::Stats;
use crate::{socket, wire};

/// Why `onramp top` or `onramp monitor` can show nothing (or nothing more).
#[derive(Debug)]
pub enum FeedError {
    /// No daemon listens at this path, or this user may not use it.
    Absent(PathBuf, io::Error),
    /// The daemon has ended, or the connection to it broke.
    Gone,
    /// The daemon refuses the request, and says why.
    Refused(String),
    /// The daemon sent something that is not part of the protocol.
    Strange(String),
    /// No row contains all these words.
    Nothing(String),
    /// Writing the output failed.
    Show(io::Error),
}

impl fmt::Display for FeedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent(path, error) => f.write_str(&socket::absent(path, error)),
            Self::Gone => f.write_str("the daemon has ended"),
            Self::Refused(why) => f.write_str(wire::plain(why)),
            Self::Strange(what) => write!(f, "unexpected line from the daemon: {what}"),
            Self::Nothing(words) => write!(
                f,
                "no row contains {words:?}; `onramp top --once` without words shows all rows"
            ),
            Self::Show(error) => write!(f, "cannot write the output: {error}"),
        }
    }
}

impl std::error::Error for FeedError {}

/// One line from the daemon: an event, statistics, or an error message.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Told {
    pub(crate) stats: Option<Stats>,
    pub(crate) event: Option<Box<RawValue>>,
    pub(crate) lost: Option<u64>,
    err: Option<String>,
}

impl Told {
    /// Reads one line from the daemon; if the line contains an error message, returns it as
    /// [`FeedError::Refused`].
    pub(crate) fn read(line: &str) -> Result<Self, FeedError> {
        let told: Self = serde_json::from_str(line)
            .map_err(|error| FeedError::Strange(format!("{error}: {}", line.trim_end())))?;
        match told.err {
            Some(why) => Err(FeedError::Refused(why)),
            None => Ok(told),
        }
    }
}

/// Connects to the daemon at `path` and asks it to stream `what` (`stats` or `events`) from now on.
///
/// # Errors
///
/// [`FeedError`] if no daemon listens at `path`.
pub fn watch(path: &Path, what: &str, options: &Value) -> Result<UnixStream, FeedError> {
    let absent = |error| FeedError::Absent(path.to_owned(), error);
    let mut stream = UnixStream::connect(path).map_err(absent)?;
    let mut request = json!({"v": 1, "watch": what});
    for (key, value) in options.as_object().into_iter().flatten() {
        request[key] = value.clone();
    }
    let line = request.to_string() + "\n";
    // An error of this write is ignored: a daemon that refuses the client sends the reason without
    // reading the request, and the reason is read later.
    let _ = stream.write_all(line.as_bytes());
    Ok(stream)
}

/// A source of statistics of the devices.
pub trait Feed {
    /// Returns the latest statistics if there are any that were not returned before. Does not
    /// block.
    ///
    /// # Errors
    ///
    /// [`FeedError`] if there will be no more statistics.
    fn poll(&mut self) -> Result<Option<Stats>, FeedError>;

    /// Waits for the next statistics and returns them.
    ///
    /// # Errors
    ///
    /// [`FeedError`] if there will be no more statistics.
    fn wait(&mut self) -> Result<Stats, FeedError>;
}

/// Statistics that a daemon streams on its socket.
#[derive(Debug)]
pub struct Remote {
    stream: BufReader<UnixStream>,
    line: Vec<u8>,
}

impl Remote {
    /// Connects to the daemon at `path` and asks for statistics every `interval_ms` milliseconds.
    ///
    /// # Errors
    ///
    /// [`FeedError`] if no daemon listens at `path`.
    pub fn connect(path: &Path, interval_ms: u64) -> Result<Self, FeedError> {
        let stream = watch(path, "stats", &json!({"interval_ms": interval_ms}))?;
        Ok(Self { stream: BufReader::with_capacity(1 << 16, stream), line: Vec::new() })
    }

    /// Reads the next line from the daemon; `None` if the line has not completely arrived, or
    /// contains no statistics.
    fn next(&mut self) -> Result<Option<Stats>, FeedError> {
        let read = self.stream.by_ref().read_until(b'\n', &mut self.line);
        match read {
            Ok(0) => return Err(FeedError::Gone),
            Ok(_) if self.line.last() == Some(&b'\n') => {}
            Ok(_) => return Ok(None),
            // The part of the line that has already arrived stays in `line`, and the next call
            // continues there.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(_) => return Err(FeedError::Gone),
        }
        let line = std::mem::take(&mut self.line);
        Ok(Told::read(&String::from_utf8_lossy(&line))?.stats)
    }
}

impl Feed for Remote {
    fn poll(&mut self) -> Result<Option<Stats>, FeedError> {
        let set = self.stream.get_ref().set_nonblocking(true);
        set.map_err(|_| FeedError::Gone)?;
        let mut latest = None;
        // If the caller was slow, several sets of statistics have arrived; the caller needs only
        // the newest.
        while let Some(stats) = self.next()? {
            latest = Some(stats);
        }
        Ok(latest)
    }

    fn wait(&mut self) -> Result<Stats, FeedError> {
        let set = self.stream.get_ref().set_nonblocking(false);
        set.map_err(|_| FeedError::Gone)?;
        loop {
            if let Some(stats) = self.next()? {
                return Ok(stats);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Remote, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        (Remote { stream: BufReader::new(ours), line: Vec::new() }, theirs)
    }

    fn said(second: u64) -> String {
        let stats = Stats { unix_ms: second, ..Stats::default() };
        json!({"v": 1, "id": null, "stats": stats}).to_string() + "\n"
    }

    #[test]
    fn half_a_line_is_not_yet_one_and_of_many_the_last_counts() {
        let (mut feed, mut theirs) = pair();
        assert!(feed.poll().expect("it is there").is_none());
        let (one, two) = (said(1), said(2));
        theirs.write_all(&one.as_bytes()[..20]).expect("it reads");
        assert!(feed.poll().expect("it is there").is_none());
        theirs.write_all(&one.as_bytes()[20..]).expect("it reads");
        assert_eq!(feed.poll().expect("it is there").map(|stats| stats.unix_ms), Some(1));
        theirs.write_all((one + &two).as_bytes()).expect("it reads");
        assert_eq!(feed.poll().expect("it is there").map(|stats| stats.unix_ms), Some(2));
        theirs.write_all(two.as_bytes()).expect("it reads");
        assert_eq!(feed.wait().expect("it is there").unix_ms, 2);
        drop(theirs);
        assert!(matches!(feed.wait(), Err(FeedError::Gone)));
        assert!(matches!(feed.poll(), Err(FeedError::Gone)));
    }

    #[test]
    fn refusals_and_nonsense_are_told() {
        let (mut feed, mut theirs) = pair();
        theirs.write_all(b"{\"v\":1,\"code\":2,\"err\":\"onramp: no\\n\"}\nx\n").expect("it reads");
        let told = feed.wait().expect_err("it refuses").to_string();
        assert_eq!(told, "no");
        let told = feed.wait().expect_err("that is no JSON").to_string();
        assert!(told.ends_with(": x"), "{told}");
        let there = watch(Path::new("/nonexistent/socket"), "stats", &json!({}));
        let told = there.expect_err("there is none").to_string();
        assert!(told.contains("/nonexistent/socket") && told.contains("onramp daemon"), "{told}");
    }
}
