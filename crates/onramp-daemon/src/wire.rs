//! The protocol between a client and the daemon: one JSON object per line.
//!
//! Each request contains the protocol's version, `"v": 1`, and may contain a number, `"id"`, that
//! its reply repeats. Unknown keys are refused, so that no part of a request is silently ignored.

use std::path::PathBuf;

use onramp_host::Reply;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Version of the protocol.
pub const VERSION: u64 = 1;
/// Largest size of a request in bytes, without its line end.
pub const LINE_MAX: usize = 1 << 20;
/// Size, in bytes, with which a batch of events is complete. The events of a batch are written
/// together.
pub(crate) const BATCH_BYTES: usize = 1 << 16;
/// The programs whose commands the daemon executes.
pub const PROGRAMS: [&str; 2] = ["tc", "ip"];

/// The command that prints the configuration of the host's devices.
pub const SAVE: &str = "save";

/// A client's request, and the number that the reply must repeat.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// The request's number, if it has one.
    pub id: Option<u64>,
    /// What the client asks for.
    pub request: Request,
}

/// What a client can ask for.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Execute one command.
    Exec(Command),
    /// Execute commands one after another, until one fails.
    Batch {
        /// The commands, in the order in which they are executed.
        commands: Vec<Command>,
        /// Whether to continue after a command that failed.
        force: bool,
    },
    /// Begin to stream something: the name of the stream (`stats` or `events`), and its options.
    Watch(String, Map<String, Value>),
    /// Send traffic into a device, as these [options](crate::traffic::Options) say.
    Traffic(Map<String, Value>),
}

/// A command, and the directory in which it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The words of the command; the first is `tc` or `ip`.
    pub argv: Vec<String>,
    /// The directory that relative file names in the command refer to.
    pub folder: PathBuf,
}

/// Why a request is invalid, and the request's number if the number could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The request's number, if it could be read.
    pub id: Option<u64>,
    /// What is wrong with the request, and what would be right.
    pub why: String,
}

/// Parses a request.
///
/// # Errors
///
/// [`Wrong`] if the line is not a valid request.
pub fn parse(line: &[u8]) -> Result<Asked, Wrong> {
    let nameless = |why: String| Wrong { id: None, why };
    let text = std::str::from_utf8(line).map_err(|error| {
        nameless(format!("the request is not UTF-8 from byte {} on", error.valid_up_to()))
    })?;
    let value: Value = serde_json::from_str(text)
        .map_err(|error| nameless(format!("the request is not JSON: {error}")))?;
    let Value::Object(mut object) = value else {
        return Err(nameless(format!("a request must be a JSON object, not {}", name(&value))));
    };
    let (id, is_number) = match object.remove("id") {
        None | Some(Value::Null) => (None, true),
        Some(value) => (value.as_u64(), value.is_u64()),
    };
    let request = if is_number {
        body(object)
    } else {
        Err("\"id\" has to be a whole number, 0 to 18446744073709551615".to_owned())
    };
    request.map(|request| Asked { id, request }).map_err(|why| Wrong { id, why })
}

/// Parses the rest of a request, after the request's number was removed.
fn body(mut object: Map<String, Value>) -> Result<Request, String> {
    match object.remove("v") {
        Some(Value::Number(version)) if version.as_u64() == Some(VERSION) => {}
        Some(version) => {
            return Err(format!("version {version}: this daemon speaks version {VERSION}"));
        }
        None => return Err(format!("the version is missing; give \"v\": {VERSION}")),
    }
    if let Some(what) = object.remove("watch") {
        let Value::String(what) = what else { return Err(wants("watch", "a word", &what)) };
        return Ok(Request::Watch(what, object));
    }
    if let Some(options) = object.remove("traffic") {
        let Value::Object(options) = options else {
            return Err(wants("traffic", "an object", &options));
        };
        return match object.keys().next() {
            Some(key) => Err(format!("unknown key {key:?}; expected v, id or traffic")),
            None => Ok(Request::Traffic(options)),
        };
    }
    let folder = match object.remove("cwd") {
        None => PathBuf::from("/"),
        Some(Value::String(folder)) if folder.starts_with('/') => PathBuf::from(folder),
        Some(other) => return Err(wants("cwd", "an absolute path", &other)),
    };
    let command = |argv| Command { argv, folder: folder.clone() };
    let request = match (object.remove("argv"), object.remove("batch")) {
        (Some(argv), None) => Request::Exec(command(words("argv", argv)?)),
        (None, Some(Value::Array(lines))) => {
            let lines = lines.into_iter().map(|line| words("batch", line).map(command));
            let force = match object.remove("force") {
                None => false,
                Some(Value::Bool(force)) => force,
                Some(other) => return Err(wants("force", "true or false", &other)),
            };
            Request::Batch { commands: lines.collect::<Result<_, _>>()?, force }
        }
        (None, Some(other)) => return Err(wants("batch", "a list of commands", &other)),
        (Some(_), Some(_)) => {
            return Err("expected either \"argv\" or \"batch\", not both".to_owned());
        }
        (None, None) => {
            return Err("expected one of \"argv\", \"batch\", \"watch\" and \"traffic\"".to_owned());
        }
    };
    match object.keys().next() {
        Some(key) if key == "force" => Err("\"force\" is for a \"batch\"".to_owned()),
        Some(key) => Err(format!("unknown key {key:?}; expected v, id, argv, batch, force or cwd")),
        None => Ok(request),
    }
}

/// Parses the words of a command.
fn words(key: &str, value: Value) -> Result<Vec<String>, String> {
    let expected = "a command, such as [\"tc\", \"qdisc\", \"show\"]";
    let Value::Array(list) = value else { return Err(wants(key, expected, &value)) };
    let word = |value| match value {
        Value::String(word) => Ok(word),
        other => Err(wants(key, expected, &other)),
    };
    let words: Vec<String> = list.into_iter().map(word).collect::<Result<_, _>>()?;
    match words.first().map(String::as_str) {
        Some(program) if PROGRAMS.contains(&program) || program == SAVE => Ok(words),
        Some(other) => Err(format!("{key:?}: unknown program {other:?}; expected tc, ip or save")),
        None => Err(format!("{key:?}: the program is missing: {expected}")),
    }
}

fn wants(key: &str, expected: &str, value: &Value) -> String {
    format!("{key:?} has to be {expected}, not {}", name(value))
}

const fn name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a word",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Returns the reply to a command.
#[must_use]
pub fn reply(id: Option<u64>, reply: &Reply) -> Vec<u8> {
    let Reply { code, out, err } = reply;
    line(&json!({ "v": VERSION, "id": id, "code": code, "out": out, "err": err }))
}

/// Returns the reply to a request that could not be read or is not supported.
#[must_use]
pub fn refusal(id: Option<u64>, why: &str) -> Vec<u8> {
    let err = format!("onramp: {why}\n");
    reply(id, &Reply { code: 2, out: String::new(), err })
}

/// Returns the error text `err` of a refusal without the name of the program, which a client puts
/// in front of the text again.
#[must_use]
pub fn plain(err: &str) -> &str {
    err.strip_prefix("onramp: ").unwrap_or(err).trim_end()
}

/// Returns the reply to a client that asked to watch `what`: the lines of the stream follow this
/// line.
#[must_use]
pub fn watching(id: Option<u64>, what: &str) -> Vec<u8> {
    line(&json!({ "v": VERSION, "id": id, "watching": what }))
}

/// Returns the reply to a client that asked for traffic, when the traffic has ended: the report of
/// what was sent.
#[must_use]
pub fn traffic(id: Option<u64>, report: &impl Serialize) -> Vec<u8> {
    line(&json!({ "v": VERSION, "id": id, "traffic": report }))
}

/// Limit, in bytes, on all replies of a batch together. The reply with which the limit is reached
/// is still complete.
pub const SAID_MAX: usize = 16 << 20;

/// The replies to the commands of a batch so far, already in JSON form, so that what the commands
/// print is stored only once.
#[derive(Debug, Default)]
pub struct Said {
    json: Vec<u8>,
    tried: usize,
    failed: bool,
}

/// The reply to one command of a batch that printed something or failed.
#[derive(Serialize)]
struct Spoken<'a> {
    command: usize,
    code: u8,
    out: &'a str,
    err: &'a str,
}

impl Said {
    /// Returns the number of commands of the batch that were tried so far.
    #[must_use]
    pub const fn tried(&self) -> usize {
        self.tried
    }

    /// Whether the replies have reached the limit [`SAID_MAX`], so that no more commands may be
    /// tried.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.json.len() >= SAID_MAX
    }

    /// Adds the reply to the next command of the batch.
    pub fn add(&mut self, reply: &Reply) {
        if *reply != Reply::default() {
            self.write(reply);
        }
        self.tried += 1;
    }

    /// Adds an error message in place of the next command's reply: the command is not tried,
    /// because the replies before it take too many bytes.
    pub fn refuse(&mut self) {
        let err = format!(
            "onramp: the batch ends here: its replies take more than {} MiB; ask for less, or use \
             several batches\n",
            SAID_MAX >> 20
        );
        self.write(&Reply { code: 2, out: String::new(), err });
    }

    fn write(&mut self, Reply { code, out, err }: &Reply) {
        self.failed |= *code != 0;
        if !self.json.is_empty() {
            self.json.push(b',');
        }
        let spoken = Spoken { command: self.tried, code: *code, out, err };
        let written = serde_json::to_writer(&mut self.json, &spoken);
        debug_assert!(written.is_ok(), "words are JSON, and memory takes them");
    }

    /// Returns the reply to the batch: the number of commands that were tried, and the replies of
    /// commands that printed something or failed, each with its index (from 0).
    #[must_use]
    pub fn reply(self, id: Option<u64>) -> Vec<u8> {
        let Self { mut json, tried, failed } = self;
        let code = u8::from(failed);
        let head = json!({ "v": VERSION, "id": id, "code": code, "tried": tried, "said": [] });
        let head = head.to_string();
        let head = head.strip_suffix("]}").unwrap_or(&head);
        json.splice(..0, head.bytes());
        json.extend_from_slice(b"]}\n");
        json
    }
}

/// Returns `value` as JSON with a line end.
#[must_use]
pub fn line(value: &Value) -> Vec<u8> {
    let mut line = value.to_string().into_bytes();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(replies: &[(u8, &str)]) -> Value {
        let mut said = Said::default();
        for (code, out) in replies {
            said.add(&Reply { code: *code, out: (*out).into(), err: String::new() });
        }
        assert_eq!(said.tried(), replies.len());
        let reply = said.reply(Some(3));
        assert_eq!(reply.last(), Some(&b'\n'));
        serde_json::from_slice(&reply).expect("JSON")
    }

    /// If one command of a batch failed, with whatever exit code, the whole batch has failed.
    #[test]
    fn a_batch_fails_with_any_of_its_commands() {
        for (replies, code, places) in [
            (&[][..], 0, &[][..]),
            (&[(0, "")], 0, &[]),
            (&[(0, ""), (0, "x"), (0, "")], 0, &[1]),
            (&[(1, "")], 1, &[0]),
            (&[(2, ""), (0, "")], 1, &[0]),
            (&[(0, ""), (255, "y"), (0, "z")], 1, &[1, 2]),
        ] {
            let reply = said(replies);
            let told: Vec<Value> = places
                .iter()
                .map(|&at: &usize| {
                    let (code, out) = replies[at];
                    json!({"command": at, "code": code, "out": out, "err": ""})
                })
                .collect();
            let tried = replies.len();
            let expected = json!({"v": 1, "id": 3, "code": code, "tried": tried, "said": told});
            assert_eq!(reply, expected);
        }
    }

    #[test]
    fn a_batch_that_said_too_much_is_refused_the_rest() {
        let of = |bytes| Said { json: vec![b'x'; bytes], tried: 2, failed: false };
        assert!(!of(SAID_MAX - 1).is_full() && of(SAID_MAX).is_full());
        let mut said = Said::default();
        said.add(&Reply { out: "x".into(), ..Reply::default() });
        said.refuse();
        assert_eq!(said.tried(), 1, "the one that is refused is not tried");
        let err = "onramp: the batch ends here: its replies take more than 16 MiB; ask for less, \
                   or use several batches\n";
        let expected = json!({"v": 1, "id": null, "code": 1, "tried": 1, "said": [
            {"command": 0, "code": 0, "out": "x", "err": ""},
            {"command": 1, "code": 2, "out": "", "err": err},
        ]});
        let reply: Value = serde_json::from_slice(&said.reply(None)).expect("JSON");
        assert_eq!(reply, expected);
    }

    /// Valid requests are parsed completely.
    #[test]
    fn requests_are_read() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let command =
            |line: &str, folder: &str| Command { argv: words(line), folder: folder.into() };
        let asked = |line: &[u8]| parse(line).expect("a request");
        let exec = Request::Exec(command("ip link", "/"));
        assert_eq!(
            asked(br#"{"v":1,"argv":["ip","link"]}"#),
            Asked { id: None, request: exec.clone() }
        );
        assert_eq!(
            asked(br#"{"argv":["ip","link"],"id":18446744073709551615,"v":1}"#),
            Asked { id: Some(u64::MAX), request: exec }
        );
        let commands = vec![command("tc qdisc", "/a/b"), command("ip", "/a/b")];
        for (force, word) in [(true, "true"), (false, "false")] {
            let line = format!(
                r#"{{"v":1,"id":0,"cwd":"/a/b","force":{word},"batch":[["tc","qdisc"],["ip"]]}}"#
            );
            let request = Request::Batch { commands: commands.clone(), force };
            assert_eq!(asked(line.as_bytes()), Asked { id: Some(0), request });
        }
        let options = json!({"every": 5}).as_object().cloned().unwrap_or_default();
        let request = Request::Watch("stats".into(), options);
        assert_eq!(asked(br#"{"watch":"stats","v":1,"every":5}"#), Asked { id: None, request });
    }

    #[test]
    fn traffic_is_asked_for_with_an_object() {
        let options = json!({"dev": "d0"}).as_object().cloned().unwrap_or_default();
        let parsed = parse(br#"{"v":1,"id":2,"traffic":{"dev":"d0"}}"#);
        assert_eq!(parsed, Ok(Asked { id: Some(2), request: Request::Traffic(options) }));
        for (line, why) in [
            (r#"{"v":1,"traffic":"d0"}"#, "\"traffic\" has to be an object, not a word"),
            (r#"{"v":1,"traffic":{},"cwd":"/"}"#, "unknown key \"cwd\"; expected v, id or traffic"),
        ] {
            let wrong = Wrong { id: None, why: why.to_owned() };
            assert_eq!(parse(line.as_bytes()), Err(wrong), "{line}");
        }
    }

    /// The exact messages for requests that are wrong.
    #[test]
    fn what_is_wrong_is_said() {
        let number = "\"id\" has to be a whole number, 0 to 18446744073709551615";
        let known = "expected v, id, argv, batch, force or cwd";
        let program = "a command, such as [\"tc\", \"qdisc\", \"show\"]";
        for (line, id, why) in [
            (r#"{"id":"x","v":1,"argv":["tc"]}"#, None, number.to_owned()),
            (r#"{"id":-1,"v":1,"argv":["tc"]}"#, None, number.to_owned()),
            (
                r#"{"id":4,"argv":["tc"]}"#,
                Some(4),
                "the version is missing; give \"v\": 1".to_owned(),
            ),
            (r#"{"id":4,"v":2}"#, Some(4), "version 2: this daemon speaks version 1".to_owned()),
            (
                r#"{"id":4,"v":1,"argv":["tc"],"x":1}"#,
                Some(4),
                format!("unknown key \"x\"; {known}"),
            ),
            (r#"{"v":1,"argv":[]}"#, None, format!("\"argv\": the program is missing: {program}")),
            (r#"{"v":1,"argv":{}}"#, None, format!("\"argv\" has to be {program}, not an object")),
            (
                r#"{"v":1,"batch":[[null]]}"#,
                None,
                format!("\"batch\" has to be {program}, not null"),
            ),
            (
                r#"{"v":1,"batch":"x"}"#,
                None,
                "\"batch\" has to be a list of commands, not a word".into(),
            ),
            (
                r#"{"v":1,"batch":[],"force":2}"#,
                None,
                "\"force\" has to be true or false, not a number".into(),
            ),
            (r#"{"v":1,"argv":["tc"],"force":true}"#, None, "\"force\" is for a \"batch\"".into()),
            (
                r#"{"v":1,"argv":["tc"],"cwd":"x"}"#,
                None,
                "\"cwd\" has to be an absolute path, not a word".into(),
            ),
            (
                r#"{"v":1,"argv":["tc"],"batch":[]}"#,
                None,
                "expected either \"argv\" or \"batch\", not both".into(),
            ),
            (r#"{"v":1,"watch":[]}"#, None, "\"watch\" has to be a word, not a list".into()),
            ("true", None, "a request must be a JSON object, not true or false".into()),
            (
                r#"{"v":1}"#,
                None,
                "expected one of \"argv\", \"batch\", \"watch\" and \"traffic\"".into(),
            ),
            (
                r#"{"v":1,"argv":["ls"]}"#,
                None,
                "\"argv\": unknown program \"ls\"; expected tc, ip or save".into(),
            ),
        ] {
            assert_eq!(parse(line.as_bytes()), Err(Wrong { id, why }), "{line}");
        }
        let said = refusal(Some(9), "no");
        let expected = json!({"v": 1, "id": 9, "code": 2, "out": "", "err": "onramp: no\n"});
        assert_eq!(serde_json::from_slice::<Value>(&said).expect("JSON"), expected);
    }
}
