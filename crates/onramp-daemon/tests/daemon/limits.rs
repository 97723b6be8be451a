//! Clients that ask for too much, and those that never end.

use super::*;

fn now() -> std::time::Instant {
    #[expect(clippy::disallowed_methods, reason = "how long the daemon made a client wait")]
    std::time::Instant::now()
}

#[test]
fn a_request_has_a_greatest_length() {
    let limits = Limits::default();
    let daemon = Running::start(limits);
    let mut client = daemon.connect();
    let mut longest = b"{\"v\":1,\"argv\":[\"ip\",\"link\"]}".to_vec();
    longest.resize(limits.line, b' ');
    longest.push(b'\n');
    client.write(&longest);
    assert_eq!(client.read()["code"], 0, "as long as may be");
    longest.insert(0, b' ');
    // The daemon may be gone before all of it was written.
    let _ = client.0.get_ref().write_all(&longest);
    let reply = client.read();
    assert!(reply["err"].as_str().is_some_and(|err| err.contains("1048576")), "{reply}");
    // What is unread is lost with the connection, as it has to be.
    let mut rest = Vec::new();
    assert!(client.0.read_to_end(&mut rest).map_or(true, |_| rest.is_empty()));
}

#[test]
fn who_begins_a_request_has_to_end_it() {
    let patience = Duration::from_millis(200);
    let daemon = Running::start(Limits { patience, ..Limits::default() });
    let (mut slow, mut idle) = (daemon.connect(), daemon.connect());
    slow.write(b"{\"v\":1,");
    let reply = slow.read();
    assert!(reply["err"].as_str().is_some_and(|err| err.contains("no line end")), "{reply}");
    assert!(slow.has_ended());
    // Who says nothing may stay.
    assert_eq!(idle.ask(&command("ip link"))["code"], 0);
    // Who leaves in the middle of a request, is told so.
    let mut half = daemon.connect();
    half.write(b"{\"v\":1,");
    half.0.get_ref().shutdown(std::net::Shutdown::Write).expect("it is shut");
    assert!(half.read()["err"].as_str().is_some_and(|err| err.contains("no line end")));
}

#[test]
fn who_does_not_read_is_cut_off_and_keeps_nobody_waiting() {
    let patience = Duration::from_millis(300);
    let daemon = Running::start(Limits { patience, ..Limits::default() });
    let mut client = daemon.connect();
    for number in 0..200 {
        let add = format!("ip link add device{number} type dummy");
        assert_eq!(client.ask(&command(&add))["code"], 0);
    }
    // Each reply is some 50 KiB, more than a socket holds soon.
    let deaf = daemon.connect();
    let request = format!("{}\n", command("ip -d -s link"));
    deaf.0.get_ref().set_nonblocking(true).expect("it may be asked");
    let begin = now();
    loop {
        match deaf.0.get_ref().write_all(request.as_bytes()) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::yield_now();
            }
            Err(_) => break,
        }
        assert!(now() - begin < PATIENCE, "it was never cut off");
    }
    assert_eq!(client.ask(&command("ip link show device1"))["code"], 0);
}

#[test]
fn too_many_clients_are_told_so() {
    let daemon = Running::start(Limits { clients: 3, ..Limits::default() });
    let mut clients: Vec<Conversation> = (0..3).map(|_| daemon.connect()).collect();
    for client in &mut clients {
        assert_eq!(client.ask(&command("ip link"))["code"], 0);
    }
    let mut fourth = daemon.connect();
    let reply = fourth.read();
    assert!(reply["err"].as_str().is_some_and(|err| err.contains("3 clients")), "{reply}");
    assert!(fourth.has_ended());
    drop(clients.pop());
    let begin = now();
    // The daemon has to see first that it left.
    while daemon.connect().ask(&command("ip link"))["code"] != 0 {
        assert!(now() - begin < PATIENCE, "its place was never free again");
    }
}

#[test]
fn requests_beyond_the_rate_wait_and_are_not_lost() {
    let daemon = Running::start(Limits { rate: 100, ..Limits::default() });
    let mut client = daemon.connect();
    let begin = now();
    for _ in 0..150 {
        assert_eq!(client.ask(&command("ip link"))["code"], 0);
    }
    // A second's worth at once, and 50 more at 100 a second.
    assert!(now() - begin >= Duration::from_millis(400), "{:?}", now() - begin);
    // Others have a pace of their own.
    let begin = now();
    assert_eq!(daemon.connect().ask(&command("ip link"))["code"], 0);
    assert!(now() - begin < Duration::from_millis(400));
}
