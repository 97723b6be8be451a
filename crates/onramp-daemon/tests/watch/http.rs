//! The HTTP server as clients see it, both correct clients and misbehaving ones.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use onramp_daemon::http::Limits;
use serde_json::Value;

use super::made_up::MadeUp;
use super::serve::{Server, get, json, request};

#[test]
fn paths_and_methods() {
    let server = Server::start(MadeUp::default(), false);
    let (status, head, body) = get(&server, "/");
    assert_eq!(status, 200);
    assert!(head.contains("content-security-policy: default-src 'none'; script-src 'sha256-"));
    assert!(body.starts_with("<!DOCTYPE html>"));
    let (status, head, body) = get(&server, "/metrics");
    assert_eq!(status, 200);
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    assert!(body.contains("\nonramp_device_up{device=\"uplink\"} 1\n"), "{body}");
    let (status, _, body) = get(&server, "/metrics?device=lan0&detail=device");
    assert_eq!((status, body.contains("uplink"), body.contains("queue=")), (200, false, false));
    assert_eq!(get(&server, "/metrics?detail=all").0, 400);
    assert_eq!(get(&server, "/metrics?details=queue").0, 400);
    assert_eq!(get(&server, "/nothing").0, 404);
    assert_eq!(get(&server, "/metrics/").0, 404);
    for (method, path) in [("POST", "/metrics"), ("DELETE", "/"), ("GET", "/api/v1/exec")] {
        let (status, head, _) = request(&server, &format!("{method} {path} HTTP/1.1"), &[], "");
        assert!(status == 405 && head.contains("\nallow: "), "{method} {path}: {head}");
    }
    let (status, head, body) = request(&server, "HEAD /metrics HTTP/1.1", &[], "");
    assert_eq!((status, body.as_str()), (200, ""), "{head}");
}

#[test]
fn the_snapshot_is_json() {
    let server = Server::start(MadeUp::default(), false);
    let all = json(&server, "/api/v1/snapshot");
    assert_eq!((&all["schema"], &all["version"]), (&"onramp.snapshot".into(), &1.into()));
    let names: Vec<_> = all["devices"].as_array().expect("a list").iter().collect();
    assert_eq!(names.len(), 3);
    let htb = &all["devices"][0]["queues"][0]["qdiscs"][0];
    assert_eq!((&htb["kind"], &htb["classes"][1]["handle"]), (&"htb".into(), &"1:10".into()));
    let one = json(&server, "/api/v1/snapshot?device=lan0");
    assert_eq!(one["devices"].as_array().map(Vec::len), Some(1));
    assert_eq!(one["devices"][0]["peer"], "lan1");
}

/// Reads the next event of an event stream.
fn event(stream: &mut TcpStream, rest: &mut String) -> Value {
    let mut some = [0; 4096];
    loop {
        if let Some((event, after)) = rest.split_once("\n\n") {
            let data = event.lines().find_map(|line| line.strip_prefix("data: "));
            let document = data.map(|data| serde_json::from_str(data).expect("JSON"));
            let after = after.to_owned();
            *rest = after;
            if let Some(document) = document {
                return document;
            }
        }
        let count = stream.read(&mut some).expect("an event");
        assert!(count > 0, "the stream ended");
        let text = String::from_utf8_lossy(&some[..count]).replace('\r', "");
        // Skip the lines that hold the sizes of the chunks (HTTP's chunked encoding).
        rest.extend(text.split_inclusive('\n').filter(|line| {
            let bare = line.trim_end();
            line.len() < 2 || !bare.bytes().all(|c| c.is_ascii_hexdigit()) || bare.is_empty()
        }));
    }
}

#[test]
fn events_have_rates() {
    let server = Server::start(MadeUp::default(), false);
    let mut stream = server.connect();
    let query = "/api/v1/events?filter=uplink+class+1:10&limit=20&sort=rate";
    write!(stream, "GET {query} HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it reads");
    let mut rest = String::new();
    let first = event(&mut stream, &mut rest);
    assert_eq!((&first["schema"], &first["seconds"]), (&"onramp.stats".into(), &Value::Null));
    let second = event(&mut stream, &mut rest);
    let ids: Vec<_> =
        second["rows"].as_array().expect("rows").iter().map(|row| &row["id"]).collect();
    assert_eq!(ids, ["uplink", "uplink/0", "uplink/0/1:", "uplink/0/1:1", "uplink/0/1:10"]);
    for row in second["rows"].as_array().expect("rows") {
        assert!(row["bytes_per_second"].as_f64() > Some(0.0), "{row}");
    }
    assert!(second["omitted"].as_u64() > Some(0));
    for bad in ["sort=size", "limit=many", "colour=red"] {
        assert_eq!(get(&server, &format!("/api/v1/events?{bad}")).0, 400, "{bad}");
    }
}

const EXEC: &str = "POST /api/v1/exec HTTP/1.1";
const JSON: &str = "Content-Type: application/json";

#[test]
fn commands_only_where_they_are_allowed() {
    let server = Server::start(MadeUp::default(), false);
    let command = r#"{"argv":["tc","qdisc","show"]}"#;
    assert_eq!(request(&server, EXEC, &[JSON], command).0, 403);
    let server = Server::start(MadeUp::default(), true);
    let (status, _, body) = request(&server, EXEC, &[JSON], command);
    let reply: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(
        (status, &reply["code"], &reply["out"]),
        (200, &0.into(), &"tc qdisc show\n".into())
    );
    let own = format!("Origin: http://{}", server.address);
    assert_eq!(request(&server, EXEC, &[JSON, &own], command).0, 200);
    assert_eq!(request(&server, EXEC, &[JSON, "Origin: http://evil.example"], command).0, 403);
    assert_eq!(request(&server, EXEC, &["Content-Type: text/plain"], command).0, 415);
    assert_eq!(request(&server, EXEC, &[JSON], r#"{"argv":"tc"}"#).0, 400);
    assert_eq!(request(&server, EXEC, &[JSON], "{").0, 400);
    let long = format!(r#"{{"argv":["{}"]}}"#, "a".repeat(70_000));
    assert_eq!(request(&server, EXEC, &[JSON], &long).0, 413);
}

#[test]
fn pages_with_a_name_of_their_own_get_nothing() {
    let server = Server::start(MadeUp::default(), true);
    for path in ["/", "/metrics", "/api/v1/snapshot"] {
        let mut stream = server.connect();
        let head =
            format!("GET {path} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 421 "), "{path}: {answer}");
    }
}

/// A client that sends half a request, one that sends an endless head, and one that does not read:
/// the server ends each connection, and none of them delays other clients.
#[test]
fn those_who_hang_do_not_hold_up_others() {
    let patience = Duration::from_millis(500);
    let limits = Limits { patience, connections: 4, ..Limits::default() };
    let server = Server::with(MadeUp { many: 8000, ..MadeUp::default() }, true, limits);
    let mut half = server.connect();
    half.write_all(b"GET / HT").expect("it reads");
    let mut body = server.connect();
    let head = format!("{EXEC}\r\nHost: localhost\r\n{JSON}\r\nContent-Length: 100\r\n\r\n{{");
    body.write_all(head.as_bytes()).expect("it reads");
    // This client requests megabytes and never reads them.
    let mut deaf = server.connect();
    deaf.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it reads");
    assert_eq!(get(&server, "/").0, 200);
    let mut answer = String::new();
    half.read_to_string(&mut answer).expect("it is closed");
    assert!(answer.is_empty() || answer.contains(" 408 "), "{answer}");
    answer.clear();
    body.read_to_string(&mut answer).expect("it is closed");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    let whole = get(&server, "/metrics").2.len();
    // The client may get a part of the response before the server ends the connection, or the
    // connection is reset. If the server has not begun its answer yet, a client that waits longer
    // sees it.
    let is_cut = [3, 15, 60].into_iter().any(|seconds| {
        std::thread::sleep(Duration::from_secs(seconds));
        let mut all = Vec::new();
        let _ = deaf.read_to_end(&mut all);
        deaf = server.connect();
        deaf.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it reads");
        all.len() < whole
    });
    assert!(is_cut, "all {whole} bytes waited for a reader");
    let mut endless = server.connect();
    let line = format!("X: {}\r\n", "y".repeat(1000));
    endless.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n").expect("it reads");
    let refused = (0..1000).any(|_| endless.write_all(line.as_bytes()).is_err());
    answer.clear();
    let _ = endless.read_to_string(&mut answer);
    assert!(refused || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert_eq!(get(&server, "/").0, 200);
}

/// When all connections that the server allows are in use, the next client is refused; when a
/// client leaves, a new one is accepted.
#[test]
fn there_are_so_many_places() {
    let limits = Limits { listeners: 2, ..Limits::default() };
    let server = Server::with(MadeUp::default(), false, limits);
    let listen = || {
        let mut stream = server.connect();
        stream
            .write_all(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .expect("it reads");
        let mut start = [0; 12];
        stream.read_exact(&mut start).expect("an answer");
        (String::from_utf8_lossy(&start).into_owned(), stream)
    };
    let (first, one) = listen();
    let (second, _two) = listen();
    let (third, _three) = listen();
    assert_eq!([&*first, &*second, &*third], ["HTTP/1.1 200", "HTTP/1.1 200", "HTTP/1.1 503"]);
    drop(one);
    let room = (0..1_200).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        listen().0 == "HTTP/1.1 200"
    });
    assert!(room, "nobody was let in");
}

#[test]
fn the_server_ends_with_listeners() {
    let server = Server::start(MadeUp::default(), false);
    let mut stream = server.connect();
    stream.write_all(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it reads");
    let mut start = [0; 12];
    stream.read_exact(&mut start).expect("an answer");
    drop(server);
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
}
