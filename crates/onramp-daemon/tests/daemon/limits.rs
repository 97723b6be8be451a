//! Clients that ask for too much, and clients that never finish a request.

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
    // The daemon may close the connection before the client has written the whole request, so an
    // error of this write is ignored.
    let _ = client.0.get_ref().write_all(&longest);
    let reply = client.read();
    assert!(reply["err"].as_str().is_some_and(|err| err.contains("1048576")), "{reply}");
    // When the daemon closes a connection, what the client sent and the daemon has not read is
    // lost; this may appear as an error of the connection, which is correct.
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
    // A client that sends nothing at all may stay connected.
    assert_eq!(idle.ask(&command("ip link"))["code"], 0);
    // A client that closes its sending side in the middle of a request gets an error message.
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
    // The client `deaf` sends requests, but never reads the replies. A few replies, of about 50 KiB
    // each, fill the socket's buffer. Then the daemon must end the connection.
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
    // The place of the client that left is free only after the daemon has noticed that the client
    // left.
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
    // At 100 requests per second, the first 100 requests pass at once. The other 50 pass at the
    // allowed rate, and so take about 500 ms.
    assert!(now() - begin >= Duration::from_millis(400), "{:?}", now() - begin);
}

#[test]
fn a_batch_says_no_more_than_fits() {
    let daemon = Running::start(Limits::default());
    let mut client = daemon.connect();
    for number in 0..100 {
        let add = format!("ip link add device{number} type dummy");
        assert_eq!(client.ask(&command(&add))["code"], 0);
    }
    // Each command prints about 25 KiB, so the whole batch would print 75 MiB. The daemon must stop
    // after 16 MiB, and say so in the last reply.
    let (count, listing) = (3_000, ["ip", "-s", "-d", "link"]);
    let request = json!({ "v": 1, "id": 5, "batch": vec![listing; count], "force": true });
    client.write(format!("{request}\n").as_bytes());
    let mut line = String::new();
    client.0.read_line(&mut line).expect("a reply");
    assert!((16 << 20..18 << 20).contains(&line.len()), "{} bytes", line.len());
    let reply: Value = serde_json::from_str(&line).expect("JSON");
    let tried = reply["tried"].as_u64().expect("a number");
    let said = reply["said"].as_array().expect("a list");
    assert!(tried > 100 && tried < count as u64, "{tried}");
    assert_eq!(said.len() as u64, tried + 1, "all that were done, and why no more were");
    let last = said.last().expect("there are some");
    assert_eq!((&last["command"], &last["code"]), (&json!(tried), &json!(2)));
    assert!(last["err"].as_str().is_some_and(|err| err.contains("16 MiB")), "{last}");
    assert_eq!((&reply["code"], &reply["id"]), (&json!(1), &json!(5)));
}

#[test]
fn commands_of_a_batch_count_for_the_rate() {
    let daemon = Running::start(Limits { rate: 100, ..Limits::default() });
    let mut client = daemon.connect();
    let begin = now();
    // Sixteen commands of a batch count as one request.
    let count = 150 * 16;
    let reply = client.ask(&json!({ "v": 1, "batch": vec![["ip", "link"]; count] }));
    assert_eq!(reply["tried"], count);
    assert!(now() - begin >= Duration::from_millis(400), "{:?}", now() - begin);
}

#[test]
fn who_reads_a_byte_now_and_then_does_not_read() {
    let patience = Duration::from_millis(300);
    let daemon = Running::start(Limits { patience, ..Limits::default() });
    let mut client = daemon.connect();
    for number in 0..100 {
        let add = format!("ip link add device{number} type dummy");
        assert_eq!(client.ask(&command(&add))["code"], 0);
    }
    let batch = json!({ "v": 1, "batch": vec![["ip", "-s", "-d", "link"]; 60] });
    client.write(format!("{batch}\n").as_bytes());
    // The reply has about 1.5 MiB, but the client reads only 256 KiB per second. This is too slow
    // for the daemon, which ends the connection before the client has read 1 MiB.
    let (begin, mut bite, mut read, mut ended) = (now(), [0; 16 << 10], 0, false);
    loop {
        match client.0.get_mut().read(&mut bite) {
            Ok(0) | Err(_) => break,
            Ok(some) => (read, ended) = (read + some, bite[some - 1] == b'\n'),
        }
        assert!(now() - begin < PATIENCE, "it was never cut off");
        std::thread::sleep(Duration::from_millis(64));
    }
    assert!(read < 1 << 20 && !ended, "{read} bytes came in {:?}", now() - begin);
}
