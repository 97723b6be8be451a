//! A client of the daemon; the commands `onramp tc` and `onramp ip` use it to send their work to
//! the daemon.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use onramp_host::Reply;
use serde::Deserialize;
use serde_json::json;

use crate::wire::VERSION;
use crate::{socket, wire};

/// How long a client waits for an answer. The daemon answers most commands within a second, and the
/// largest batch that it takes within some seconds.
const PATIENCE: Duration = Duration::from_mins(1);

/// A connection to a daemon.
#[derive(Debug)]
pub struct Client {
    reader: BufReader<UnixStream>,
    patience: Duration,
    id: u64,
}

/// Why the daemon gave no usable answer.
#[derive(Debug)]
pub enum ClientError {
    /// No daemon listens at this path, or this user may not use it.
    Absent(PathBuf, io::Error),
    /// The connection broke, or the daemon did not answer in time.
    Lost(io::Error),
    /// The daemon refuses the request, and says why.
    Refused(String),
    /// The daemon's answer is not part of the protocol.
    Strange(String),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent(path, error) => f.write_str(&socket::absent(path, error)),
            Self::Refused(why) => f.write_str(wire::plain(why)),
            Self::Lost(error) => write!(f, "the daemon does not answer: {error}"),
            Self::Strange(what) => write!(f, "unexpected answer from the daemon: {what}"),
        }
    }
}

impl std::error::Error for ClientError {}

/// The daemon's answer to a batch of commands.
#[derive(Debug, Default)]
pub struct Batch {
    /// Number of commands that were tried.
    pub tried: usize,
    /// The replies of those commands that printed something or failed, each with the index of its
    /// command in the batch.
    pub said: Vec<(usize, Reply)>,
}

/// A reply of the daemon, to a command or to a batch.
#[derive(Debug, Deserialize)]
struct Answer {
    v: u64,
    id: Option<u64>,
    code: u8,
    #[serde(default)]
    out: String,
    #[serde(default)]
    err: String,
    tried: Option<usize>,
    #[serde(default)]
    said: Vec<Said>,
}

#[derive(Debug, Deserialize)]
struct Said {
    command: usize,
    code: u8,
    out: String,
    err: String,
}

impl Client {
    /// Connects to the daemon at `path`. A request that the daemon does not answer within a minute
    /// fails.
    ///
    /// # Errors
    ///
    /// [`ClientError::Absent`] if no daemon listens at `path`.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        Self::patient(path, PATIENCE)
    }

    fn patient(path: &Path, patience: Duration) -> Result<Self, ClientError> {
        let absent = |error| ClientError::Absent(path.to_owned(), error);
        let stream = UnixStream::connect(path).map_err(absent)?;
        stream.set_read_timeout(Some(patience)).map_err(ClientError::Lost)?;
        stream.set_write_timeout(Some(patience)).map_err(ClientError::Lost)?;
        Ok(Self { reader: BufReader::new(stream), patience, id: 0 })
    }

    /// Says how long the client has waited, if the error is that the time was over.
    fn lost(&self, error: io::Error) -> ClientError {
        if error.kind() != io::ErrorKind::WouldBlock {
            return ClientError::Lost(error);
        }
        let why = format!("nothing came within {:?}", self.patience);
        ClientError::Lost(io::Error::new(io::ErrorKind::TimedOut, why))
    }

    /// Asks the daemon to execute one command, and returns the reply.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the daemon could not be asked or gave no usable answer. A command that
    /// failed is not an error here: its error message is in the reply.
    pub fn exec<S: AsRef<str>>(&mut self, argv: &[S], folder: &str) -> Result<Reply, ClientError> {
        let argv: Vec<&str> = argv.iter().map(AsRef::as_ref).collect();
        let answer = self.ask(json!({ "argv": argv, "cwd": folder }))?;
        Ok(Reply { code: answer.code, out: answer.out, err: answer.err })
    }

    /// Asks the daemon to execute commands until one fails or, if `force` is true, to execute all
    /// of them.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the daemon could not be asked or gave no usable answer.
    pub fn batch(
        &mut self,
        commands: &[Vec<String>],
        folder: &str,
        force: bool,
    ) -> Result<Batch, ClientError> {
        let asked = json!({ "batch": commands, "cwd": folder, "force": force });
        let answer = self.ask(asked)?;
        let Some(tried) = answer.tried else {
            return Err(match answer.err {
                err if err.is_empty() => ClientError::Strange("it is not one to a batch".into()),
                err => ClientError::Refused(err),
            });
        };
        let said = answer
            .said
            .into_iter()
            .map(|Said { command, code, out, err }| (command, Reply { code, out, err }));
        Ok(Batch { tried, said: said.collect() })
    }

    fn ask(&mut self, mut request: serde_json::Value) -> Result<Answer, ClientError> {
        self.id += 1;
        (request["v"], request["id"]) = (VERSION.into(), self.id.into());
        // A failed write of the request is reported only if no answer can be read: a daemon that
        // refuses the client sends the reason of the refusal without reading the request.
        let sent = self.reader.get_ref().write_all(&wire::line(&request));
        let mut line = String::new();
        let read = self.reader.read_line(&mut line).map_err(|error| self.lost(error))?;
        if read == 0 {
            sent.map_err(|error| self.lost(error))?;
            return Err(ClientError::Lost(io::ErrorKind::UnexpectedEof.into()));
        }
        let answer: Answer = serde_json::from_str(&line)
            .map_err(|error| ClientError::Strange(format!("{error}: {}", line.trim_end())))?;
        if answer.v != VERSION || answer.id.is_some_and(|id| id != self.id) {
            return Err(ClientError::Strange(line.trim_end().to_owned()));
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_daemon_that_does_not_answer_is_not_waited_for_without_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let _mute = UnixListener::bind(&path).expect("a socket");
        let mut client = Client::patient(&path, Duration::from_millis(20)).expect("it listens");
        let error = client.exec(&["tc", "qdisc", "show"], "/").expect_err("it is mute");
        assert_eq!(error.to_string(), "the daemon does not answer: nothing came within 20ms");
    }
}
