//! Every kind of response that the HTTP server gives, with status and headers.

use std::io::{Read as _, Write as _};

use onramp_daemon::http::Limits;
use serde_json::{Value, json};

use super::made_up::MadeUp;
use super::serve::{Server, get, request};

const JSON: &str = "Content-Type: application/json";

/// Returns the value of a header.
fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

#[test]
fn what_is_wrong_is_said_and_how_it_would_be_right() {
    let server = Server::start(MadeUp::default(), true);
    let known = "expected /, /metrics, /api/v1/snapshot, /api/v1/events, /api/v1/fleet or \
                 /api/v1/exec";
    let details = "device, queue, qdisc, class, statistic";
    for (what, status, allow, why) in [
        ("GET /api", 404, None, known.to_owned()),
        ("POST /nothing", 404, None, known.to_owned()),
        ("POST /", 405, Some("GET, HEAD"), "only GET, HEAD".to_owned()),
        ("PUT /metrics", 405, Some("GET, HEAD"), "only GET, HEAD".to_owned()),
        ("DELETE /api/v1/snapshot", 405, Some("GET, HEAD"), "only GET, HEAD".to_owned()),
        ("POST /api/v1/events", 405, Some("GET"), "only GET".to_owned()),
        ("GET /api/v1/exec", 405, Some("POST"), "only POST".to_owned()),
        ("GET /metrics?detail=all", 400, None, format!("detail=all: expected one of {details}")),
        (
            "GET /metrics?x=1",
            400,
            None,
            "unknown parameter \"x\"; expected device or detail".to_owned(),
        ),
        (
            "GET /api/v1/snapshot?x=1",
            400,
            None,
            "unknown parameter \"x\"; expected device".to_owned(),
        ),
        ("GET /api/v1/events?limit=x", 400, None, "limit=x: expected a number".to_owned()),
    ] {
        let (told, head, body) = request(&server, &format!("{what} HTTP/1.1"), &[], "");
        assert_eq!((told, header(&head, "allow")), (status, allow), "{what}");
        assert_eq!(body, json!({"error": why}).to_string() + "\n", "{what}");
        assert_eq!(header(&head, "content-type"), Some("application/json"), "{what}");
    }
    let (status, head, body) = request(&server, "HEAD /api/v1/events HTTP/1.1", &[], "");
    assert_eq!((status, header(&head, "allow"), body.as_str()), (405, Some("GET"), ""));
}

/// The headers of every response forbid browsers to cache the response, to embed it in another
/// page, and to guess its type.
#[test]
fn every_answer_is_guarded() {
    let server = Server::start(MadeUp::default(), true);
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/metrics", "text/plain; version=0.0.4; charset=utf-8"),
        ("/api/v1/snapshot", "application/json"),
        ("/nothing", "application/json"),
    ] {
        let (_, head, _) = get(&server, path);
        for (name, value) in [
            ("content-type", kind),
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-resource-policy", "same-origin"),
        ] {
            assert_eq!(header(&head, name), Some(value), "{path}");
        }
        let policy = header(&head, "content-security-policy").expect("a policy");
        assert!(policy.starts_with("default-src 'none'; "), "{policy}");
        assert!(policy.ends_with("frame-ancestors 'none'"), "{policy}");
        for (name, inside) in [("script-src", path == "/"), ("connect-src 'self'", path == "/")] {
            assert_eq!(policy.contains(name), inside, "{path}");
        }
    }
}

/// The response to a `HEAD` request has the same headers as the response to `GET`, and no body.
#[test]
fn a_head_is_that_of_the_answer() {
    let server = Server::start(MadeUp::default(), false);
    for path in ["/", "/metrics?device=spare0", "/api/v1/snapshot?device=none"] {
        let (status, head, body) = request(&server, &format!("HEAD {path} HTTP/1.1"), &[], "");
        let (_, _, whole) = get(&server, path);
        assert_eq!((status, body.as_str()), (200, ""), "{path}");
        if path != "/api/v1/snapshot?device=none" {
            let length = header(&head, "content-length").and_then(|length| length.parse().ok());
            assert_eq!(length, Some(whole.len()), "{path}");
        }
    }
}

#[test]
fn a_command_is_answered_as_it_went() {
    let server = Server::start(MadeUp::default(), true);
    let exec = |body: &str| {
        let (status, _, body) = request(&server, "POST /api/v1/exec HTTP/1.1", &[JSON], body);
        (status, serde_json::from_str::<Value>(&body).expect("JSON"))
    };
    let reply = json!({"code": 0, "out": "tc x\n", "err": ""});
    assert_eq!(exec(r#"{"argv":["tc","x"]}"#), (200, reply));
    let reply = json!({"code": 1, "out": "", "err": "what is it?\n"});
    assert_eq!(exec(r#"{"argv":[]}"#), (200, reply));
    let (status, reply) = exec(r#"{"argv":["tc"],"x":1}"#);
    let why = reply["error"].as_str().unwrap_or_default();
    let head = "expected {\"argv\":[\"tc\", …]}: unknown field `x`";
    assert!(status == 400 && why.starts_with(head), "{why}");
    // A command of the largest allowed size is accepted, and a command that is one byte longer is
    // refused.
    let fits = |length: usize| format!("{{\"argv\":[\"{}\"]}}", "a".repeat(length - 13));
    assert_eq!(exec(&fits(64 << 10)).0, 200);
    assert_eq!(exec(&fits((64 << 10) + 1)).0, 413);
    let server = Server::start(MadeUp::default(), false);
    let (status, _, body) = request(&server, "POST /api/v1/exec HTTP/1.1", &[JSON], "{}");
    let why = "read-only: the daemon was started without --web-control";
    assert_eq!((status, body), (403, json!({"error": why}).to_string() + "\n"));
}

/// When all allowed connections are in use, a new connection is closed without a response. When one
/// of them ends, a new one is accepted.
#[test]
fn connections_have_places() {
    let limits = Limits { connections: 2, ..Limits::default() };
    let server = Server::with(MadeUp { empty: true, ..MadeUp::default() }, false, limits);
    let ask = |stream: &mut std::net::TcpStream| {
        let sent = stream.write_all(b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let mut start = [0; 12];
        sent.is_ok() && stream.read_exact(&mut start).is_ok() && &start == b"HTTP/1.1 404"
    };
    let (mut one, mut two) = (server.connect(), server.connect());
    assert!(ask(&mut one) && ask(&mut two));
    assert!(!ask(&mut server.connect()));
    drop(one);
    super::tool::until("a place", || ask(&mut server.connect()).then_some(()));
}

/// When the server stops, the event stream of a listening client ends in the regular way instead of
/// being cut off.
#[test]
fn streams_end_as_they_should() {
    let server = Server::start(MadeUp::default(), false);
    let mut stream = server.connect();
    stream.write_all(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it reads");
    let mut start = [0; 15];
    stream.read_exact(&mut start).expect("an answer");
    assert_eq!(&start, b"HTTP/1.1 200 OK");
    drop(server);
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("it is closed");
    assert!(rest.ends_with(b"\r\n0\r\n\r\n"), "{:?}", String::from_utf8_lossy(&rest));
    let text = String::from_utf8_lossy(&rest);
    assert!(text.contains("content-type: text/event-stream\r\n"), "{text}");
}

/// When as many clients listen to event streams as are allowed, the next one is refused and told
/// how many listen.
#[test]
fn listeners_have_places() {
    let limits = Limits { listeners: 0, ..Limits::default() };
    let server = Server::with(MadeUp::default(), false, limits);
    let (status, _, body) = get(&server, "/api/v1/events");
    assert_eq!(
        (status, body),
        (503, json!({"error": "0 clients receive events already"}).to_string() + "\n")
    );
}
