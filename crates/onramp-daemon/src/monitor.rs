//! `onramp monitor`: prints events, one line each.

use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::time::{Duration, SystemTime};

use serde::Deserialize;

use crate::feed::{FeedError, Told};
use crate::wire::BATCH_BYTES;

/// Which events `onramp monitor` shows, and in which form.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whether to print each event as one JSON object per line.
    pub json: bool,
    /// Whether to print the time in front of each line.
    pub timestamp: bool,
    /// Show only events of this device; `None`: of all devices.
    pub device: Option<String>,
    /// Show only events with these names: what happened (for example `added` or `dropped`) or to
    /// which kind of object (`qdisc`, `class`, `filter`, `link`). If empty, all events are shown.
    pub events: Vec<String>,
}

impl Options {
    /// The names allowed in [`Options::events`].
    pub const EVENTS: [&str; 10] = [
        "added", "changed", "deleted", "up", "down", "dropped", "qdisc", "class", "filter", "link",
    ];

    fn wants(&self, event: &Event<'_>) -> bool {
        let object = object(event);
        self.device.as_ref().is_none_or(|device| *device == event.device)
            && (self.events.is_empty()
                || self.events.iter().any(|name| *name == event.what || name == object))
    }
}

/// An event, as the daemon reports it in one line of JSON.
#[derive(Debug, Deserialize)]
struct Event<'a> {
    unix_us: u64,
    #[serde(borrow)]
    what: Cow<'a, str>,
    #[serde(borrow)]
    device: Cow<'a, str>,
    #[serde(borrow)]
    line: Cow<'a, str>,
}

/// Reads events, one per line, from `lines`, and writes them to `out`, as text for people or as
/// JSON. Events that have arrived together are written together, and an event that comes alone is
/// written at once. Ends when `lines` ends or when the reader of `out` closes the pipe.
///
/// # Errors
///
/// [`FeedError`] if the daemon went away, or if its output cannot be understood or shown.
pub fn run(
    mut lines: BufReader<impl Read>,
    out: &mut impl Write,
    options: &Options,
) -> Result<(), FeedError> {
    // If an error ends this function, dropping `out` writes the events before it.
    let mut out = BufWriter::with_capacity(BATCH_BYTES, out);
    let mut line = String::new();
    loop {
        line.clear();
        // A line without an end is the rest that a daemon left when it ended.
        if lines.read_line(&mut line).is_err() || !line.ends_with('\n') {
            return Err(FeedError::Gone);
        }
        let written = match text(&line, options)? {
            Some(text) => writeln!(out, "{text}"),
            None => Ok(()),
        };
        let more = lines.buffer().contains(&b'\n');
        match written.and_then(|()| if more { Ok(()) } else { out.flush() }) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(FeedError::Show(error)),
        }
    }
}

/// Returns the text to write for one line that the daemon sent; `None` if the options exclude the
/// event in the line.
fn text(line: &str, options: &Options) -> Result<Option<String>, FeedError> {
    let told = Told::read(line)?;
    if let Some(lost) = told.lost {
        return Ok(Some(if options.json {
            serde_json::json!({"what": "lost", "events": lost}).to_string()
        } else {
            format!("lost {lost} events: they came faster than they were read")
        }));
    }
    let Some(document) = told.event else { return Ok(None) };
    let event: Event<'_> = serde_json::from_str(document.get())
        .map_err(|error| FeedError::Strange(format!("{error}: {}", line.trim_end())))?;
    Ok(options.wants(&event).then(|| {
        if options.json { document.get().to_owned() } else { readable(&event, options.timestamp) }
    }))
}

fn readable(event: &Event<'_>, timestamp: bool) -> String {
    let line = format!("{} {}", event.what, with_device(event));
    if !timestamp {
        return line;
    }
    let at = SystemTime::UNIX_EPOCH + Duration::from_micros(event.unix_us);
    format!("{} {line}", humantime::format_rfc3339_micros(at))
}

/// Returns the kind of object that the event is about.
fn object(event: &Event<'_>) -> &'static str {
    let first = event.line.split(' ').next().unwrap_or_default();
    match first {
        _ if event.what == "dropped" => "packets",
        "qdisc" => "qdisc",
        "class" => "class",
        "filter" => "filter",
        _ => "link",
    }
}

/// Returns the event's line with the device inserted where `tc` prints it: `qdisc fq 1: dev d0
/// root`, `filter dev d0 parent`.
fn with_device(event: &Event<'_>) -> String {
    let words_before = match object(event) {
        "qdisc" | "class" => 3,
        "filter" => 1,
        _ => return event.line.to_string(),
    };
    let words: Vec<&str> = event.line.split(' ').collect();
    if words.get(words_before) == Some(&"dev") {
        return event.line.to_string();
    }
    let (before, after) = words.split_at(words_before.min(words.len()));
    [before, &["dev", &event.device], after].concat().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn events() -> String {
        let event = |second: u64, what: &str, device: &str, line: &str| {
            let event = json!({"unix_us": second * 1_000_000, "what": what, "device": device,
                "line": line});
            json!({"v": 1, "id": null, "event": event}).to_string() + "\n"
        };
        event(1, "added", "d0", "3: d0: <BROADCAST> mtu 1500")
            + &event(2, "added", "d0", "qdisc fq 1: root refcnt 2 limit 10000p")
            + &event(3, "changed", "d1", "class htb 1:10 dev d1 parent 1:1 prio 0")
            + &event(4, "added", "d1", "filter parent 1: protocol ip")
            + &(json!({"v": 1, "id": null, "lost": 12}).to_string() + "\n")
            + &event(5, "dropped", "d0", "120 packets on d0 fq 1: overlimit")
            + &event(6, "deleted", "d0", "qdisc fq 1:")
            + &event(7, "up", "d1", "4: d1: <UP> mtu 1500")
    }

    fn shown(options: &Options) -> String {
        let mut out = Vec::new();
        let ended = run(BufReader::new(events().as_bytes()), &mut out, options);
        assert!(matches!(ended, Err(FeedError::Gone)));
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn a_line_each_as_tc_has_it() {
        let expected = "\
added 3: d0: <BROADCAST> mtu 1500
added qdisc fq 1: dev d0 root refcnt 2 limit 10000p
changed class htb 1:10 dev d1 parent 1:1 prio 0
added filter dev d1 parent 1: protocol ip
lost 12 events: they came faster than they were read
dropped 120 packets on d0 fq 1: overlimit
deleted qdisc fq 1: dev d0
up 4: d1: <UP> mtu 1500
";
        assert_eq!(shown(&Options::default()), expected);
        let timed = shown(&Options { timestamp: true, ..Options::default() });
        let first = timed.lines().next().unwrap_or_default();
        assert_eq!(first, "1970-01-01T00:00:01.000000Z added 3: d0: <BROADCAST> mtu 1500");
    }

    #[test]
    fn only_what_was_asked_for() {
        let only = |device: Option<&str>, events: &[&str]| {
            let events = events.iter().map(|name| (*name).to_owned()).collect();
            let device = device.map(str::to_owned);
            let shown = shown(&Options { device, events, ..Options::default() });
            // A message that events were lost is always shown, because the lost events may have
            // been of any kind.
            assert!(shown.contains("lost 12 events"));
            shown.lines().filter(|line| !line.starts_with("lost")).count()
        };
        assert_eq!(only(Some("d1"), &[]), 3);
        assert_eq!(only(None, &["qdisc"]), 2);
        assert_eq!(only(None, &["dropped", "up"]), 2);
        assert_eq!(only(Some("d0"), &["link"]), 1);
        assert_eq!(only(Some("d7"), &[]), 0);
    }

    #[test]
    fn json_is_an_object_a_line() {
        let shown = shown(&Options { json: true, ..Options::default() });
        let read: Vec<Value> =
            shown.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!((read.len(), &read[4]), (8, &json!({"what": "lost", "events": 12})));
        assert_eq!(read[1]["line"], "qdisc fq 1: root refcnt 2 limit 10000p");
    }

    #[test]
    fn what_the_daemon_refuses_is_told() {
        let mut out = Vec::new();
        let said = b"{\"v\":1,\"code\":2,\"out\":\"\",\"err\":\"onramp: no\\n\"}\n".as_slice();
        let ended = run(BufReader::new(said), &mut out, &Options::default());
        assert_eq!(ended.expect_err("it is refused").to_string(), "no");
        let ended = run(BufReader::new(&b"{\"event\":{}}\n"[..]), &mut out, &Options::default());
        assert!(matches!(ended, Err(FeedError::Strange(_))));
    }

    /// A source whose pieces arrive one after another.
    struct Pieces(Vec<String>);

    impl Read for Pieces {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Ok(0);
            }
            let piece = self.0.remove(0);
            buffer[..piece.len()].copy_from_slice(piece.as_bytes());
            Ok(piece.len())
        }
    }

    /// A writer that keeps what each call wrote.
    #[derive(Default)]
    struct Writes(Vec<String>);

    impl Write for Writes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.push(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Lines that arrive together are written together, and before the monitor waits for more. The
    /// part of a line that a daemon left when it ended is no event.
    #[test]
    fn what_came_together_is_written_together() {
        let all: Vec<String> = events().split_inclusive('\n').map(str::to_owned).collect();
        let half = all[2].split_at(9);
        let pieces = vec![all[..2].concat() + half.0, half.1.to_owned(), all[3].clone() + "{\"v\""];
        let mut out = Writes::default();
        let ended = run(BufReader::new(Pieces(pieces)), &mut out, &Options::default());
        assert!(matches!(ended, Err(FeedError::Gone)), "{ended:?}");
        assert_eq!(out.0.iter().map(|text| text.lines().count()).collect::<Vec<_>>(), [2, 1, 1]);
    }

    /// A writer that accepts as many complete lines as field `0` says, and then fails with the
    /// error kind in field `1`.
    struct Full(usize, io::ErrorKind);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
            match self.0.checked_sub(lines) {
                Some(left) => self.0 = left,
                None => return Err(self.1.into()),
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A closed pipe ends the command without an error; any other failure to write is an error.
    #[test]
    fn a_pipe_may_close_and_a_disk_may_not_be_full() {
        let ended = |kind| {
            run(BufReader::new(events().as_bytes()), &mut Full(2, kind), &Options::default())
        };
        assert!(matches!(ended(io::ErrorKind::BrokenPipe), Ok(())));
        let error = ended(io::ErrorKind::StorageFull).expect_err("it is lost");
        assert!(matches!(error, FeedError::Show(_)), "{error}");
    }

    /// A printed line names the event's device exactly once, whether or not the daemon's line
    /// already contains it.
    #[test]
    fn lines_name_their_devices() {
        let line = |what: &str, line: &str| {
            let event = Event {
                unix_us: 1_500_000,
                what: what.into(),
                device: "d0".into(),
                line: line.into(),
            };
            (object(&event), readable(&event, true))
        };
        let time = "1970-01-01T00:00:01.500000Z";
        for (what, text, kind, shown) in [
            ("added", "qdisc fq 1: root", "qdisc", "added qdisc fq 1: dev d0 root"),
            ("added", "qdisc fq 1: dev d0 root", "qdisc", "added qdisc fq 1: dev d0 root"),
            ("deleted", "class htb 1:1", "class", "deleted class htb 1:1 dev d0"),
            ("changed", "filter parent 1:", "filter", "changed filter dev d0 parent 1:"),
            ("changed", "filter dev d0 parent 1:", "filter", "changed filter dev d0 parent 1:"),
            ("added", "qdisc", "qdisc", "added qdisc dev d0"),
            ("up", "3: d0: <UP>", "link", "up 3: d0: <UP>"),
            // The object of a `dropped` event is `packets`, even if the event's line begins with
            // `qdisc`.
            ("dropped", "qdisc of packets", "packets", "dropped qdisc of packets"),
        ] {
            assert_eq!(line(what, text), (kind, format!("{time} {shown}")));
        }
    }
}
