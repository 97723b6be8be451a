//! Requests that clients send to the daemon, and the daemon's replies.

use super::*;

#[test]
fn a_command_is_done_and_answered() {
    let daemon = Running::start(Limits::default());
    let mut client = daemon.connect();
    let added = client.ask(&json!({
        "v": 1, "id": 7, "argv": ["ip", "link", "add", "d0", "type", "dummy"], "cwd": "/tmp",
    }));
    assert_eq!(added, json!({ "v": 1, "id": 7, "code": 0, "out": "", "err": "" }));
    let shown = client.ask(&command("ip -br link"));
    assert_eq!(shown["id"], Value::Null);
    assert!(shown["out"].as_str().is_some_and(|out| out.starts_with("d0 ")), "{shown}");
    // A client on another connection sees the same devices.
    let again = daemon.connect().ask(&command("ip link add d0 type dummy"));
    assert_eq!(again["code"], 2);
    assert!(again["err"].as_str().is_some_and(|err| err.contains("File exists")), "{again}");
}

#[test]
fn requests_may_come_before_replies_are_read() {
    let daemon = Running::start(Limits::default());
    let mut client = daemon.connect();
    let mut all = String::new();
    for id in 0..500 {
        all += &format!("{}\n", json!({ "v": 1, "id": id, "argv": ["ip", "link"] }));
    }
    client.write(all.as_bytes());
    for id in 0..500 {
        assert_eq!(client.read()["id"], id);
    }
}

#[test]
fn a_batch_stops_at_the_first_error_or_goes_on() {
    let daemon = Running::start(Limits::default());
    let mut client = daemon.connect();
    let lines = ["ip link add a type dummy", "ip link add a type dummy", "ip -br link"];
    let lines: Vec<Vec<&str>> = lines.iter().map(|line| line.split(' ').collect()).collect();
    let said = client.ask(&json!({ "v": 1, "id": 1, "batch": lines }));
    assert_eq!((&said["tried"], &said["code"]), (&json!(2), &json!(1)));
    assert_eq!(said["said"].as_array().map(Vec::len), Some(1));
    assert_eq!((&said["said"][0]["command"], &said["said"][0]["code"]), (&json!(1), &json!(2)));
    let said = client.ask(&json!({ "v": 1, "id": 2, "batch": lines, "force": true }));
    assert_eq!((&said["tried"], &said["code"]), (&json!(3), &json!(1)));
    assert_eq!(said["said"].as_array().map(Vec::len), Some(3));
    assert_eq!(said["said"][2]["code"], 0);
    let said = client.ask(&json!({ "v": 1, "id": 3, "batch": [] }));
    assert_eq!(said, json!({ "v": 1, "id": 3, "code": 0, "tried": 0, "said": [] }));
}

/// Invalid requests, each with a part of the error message that the client gets.
const WRONG: &[(&[u8], &str)] = &[
    (b"", "not JSON"),
    (b"garbage", "not JSON"),
    (b"{\"v\":1", "not JSON"),
    (b"\xff\xfe", "not UTF-8 from byte 0"),
    (b"{\"v\":1,\"argv\":[\"tc\",\"\xc3\x28\"]}", "not UTF-8 from byte 21"),
    (b"[1]", "not a list"),
    (b"null", "not null"),
    (b"{}", "the version is missing"),
    (b"{\"v\":2,\"argv\":[\"tc\"]}", "version 2"),
    (b"{\"v\":\"1\",\"argv\":[\"tc\"]}", "version \"1\""),
    (b"{\"v\":1.0,\"argv\":[\"tc\"]}", "version 1.0"),
    (b"{\"v\":1}", "expected one of \"argv\""),
    (b"{\"v\":1,\"argv\":\"tc\"}", "\"argv\" has to be a command"),
    (b"{\"v\":1,\"argv\":[]}", "the program is missing"),
    (b"{\"v\":1,\"argv\":[1]}", "not a number"),
    (b"{\"v\":1,\"argv\":[\"rm\"]}", "unknown program \"rm\""),
    (b"{\"v\":1,\"argv\":[\"tc\"],\"batch\":[]}", "not both"),
    (b"{\"v\":1,\"batch\":[[\"tc\"],3]}", "\"batch\" has to be a command"),
    (b"{\"v\":1,\"batch\":7}", "a list of commands"),
    (b"{\"v\":1,\"batch\":[],\"force\":1}", "\"force\" has to be true or false"),
    (b"{\"v\":1,\"argv\":[\"tc\"],\"cwd\":\"here\"}", "an absolute path"),
    (b"{\"v\":1,\"argv\":[\"tc\"],\"speed\":1}", "\"speed\""),
    (b"{\"v\":1,\"watch\":1}", "\"watch\" has to be a word"),
    (b"{\"v\":1,\"watch\":\"the sky\"}", "the sky"),
];

#[test]
fn what_is_wrong_with_a_request_is_said() {
    let daemon = Running::start(Limits::default());
    let mut client = daemon.connect();
    for (request, why) in WRONG {
        client.write(request);
        client.write(b"\n");
        let reply = client.read();
        assert_eq!((&reply["v"], &reply["code"]), (&json!(1), &json!(2)), "{reply}");
        let err = reply["err"].as_str().unwrap_or_default();
        assert!(err.starts_with("onramp: ") && err.contains(why), "{why:?} is not in {err}");
    }
    // The reply repeats the request's number if the request has a valid one.
    let reply = client.ask(&json!({ "v": 3, "id": 9, "argv": ["tc"] }));
    assert_eq!((&reply["id"], &reply["code"]), (&json!(9), &json!(2)));
    let reply = client.ask(&json!({ "v": 1, "id": -1, "argv": ["tc"] }));
    assert!(reply["id"].is_null() && reply["code"] == 2, "{reply}");
    // After a client has sent invalid requests, the daemon still serves it.
    assert_eq!(client.ask(&command("ip link"))["code"], 0);
}

#[test]
fn nesting_without_end_is_no_danger() {
    let daemon = Running::start(Limits::default());
    let mut client = daemon.connect();
    client.write(&b"[".repeat(500_000));
    client.write(b"\n");
    assert_eq!(client.read()["code"], 2);
    assert_eq!(client.ask(&command("ip link"))["code"], 0);
}
