//! The client side of `onramp traffic`.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde::Deserialize;
use serde_json::json;

use super::{Options, Report};
use crate::feed::FeedError;
use crate::wire::{self, VERSION};

/// Connects to the daemon at `path` and asks for traffic. When the traffic has ended, the daemon
/// writes one line to the returned stream; [`read`] reads it. To end the traffic earlier, shut down
/// the stream's write half.
///
/// # Errors
///
/// [`FeedError`] if no daemon listens at `path`.
pub fn ask(path: &Path, options: &Options) -> Result<UnixStream, FeedError> {
    let absent = |error| FeedError::Absent(path.to_owned(), error);
    let mut stream = UnixStream::connect(path).map_err(absent)?;
    let request = json!({ "v": VERSION, "traffic": options });
    // An error of this write is ignored: a daemon that refuses the client sends the reason without
    // reading the request, and the reason is read later.
    let _ = stream.write_all(&wire::line(&request));
    Ok(stream)
}

/// Reads the daemon's line about a traffic that has ended.
///
/// # Errors
///
/// [`FeedError`] if the daemon refused the request, or if the line is not part of the protocol.
pub fn read(line: &str) -> Result<Report, FeedError> {
    #[derive(Deserialize)]
    struct Answer {
        traffic: Option<Report>,
        err: Option<String>,
    }
    if line.is_empty() {
        return Err(FeedError::Gone);
    }
    let strange = |why: &str| FeedError::Strange(format!("{why}: {}", line.trim_end()));
    let answer: Answer = serde_json::from_str(line).map_err(|error| strange(&error.to_string()))?;
    match answer {
        Answer { traffic: Some(report), .. } => Ok(report),
        Answer { err: Some(why), .. } => Err(FeedError::Refused(why)),
        Answer { .. } => Err(strange("it has no report")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::Ended;

    #[test]
    fn answers_are_reports_or_refusals() {
        let report = Report { submitted: 3, sent: 2, ended: Ended::Deleted, ..Report::default() };
        let line = String::from_utf8(wire::traffic(Some(1), &report)).expect("text");
        assert!(line.contains("\"ended\":\"deleted\""), "{line}");
        assert_eq!(read(&line).expect("a report"), report);
        let refusal = String::from_utf8(wire::refusal(None, "no")).expect("text");
        for (line, why) in [
            (refusal.as_str(), "no"),
            ("", "the daemon has ended"),
            ("{\"v\":1}\n", "unexpected line from the daemon: it has no report: {\"v\":1}"),
        ] {
            assert_eq!(read(line).expect_err("no report").to_string(), why);
        }
        assert!(read("x").is_err());
    }
}
