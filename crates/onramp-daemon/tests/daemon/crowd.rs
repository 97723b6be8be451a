//! A thousand clients use the daemon at once, beside other clients that hang or send garbage.

use super::*;

const CLIENTS: usize = 1_000;
/// Number of commands from each client.
const COMMANDS: usize = 5;

#[test]
fn a_thousand_clients_are_served_beside_those_that_hang_and_babble() {
    raise_limits();
    let daemon = Running::start(Limits::default());
    let mut hanging = Vec::new();
    for number in 0..200_u8 {
        let mut client = daemon.connect();
        match number % 4 {
            0 => {}
            1 => client.write(b"{\"v\":1,\"argv\":[\"ip"),
            2 => client.write(b"\0\xff\xff garbage\n{}\n[[[[\n"),
            // This client sends requests and never reads the replies.
            _ => client.write(format!("{}\n", command("ip -d link")).repeat(50).as_bytes()),
        }
        hanging.push(client);
    }
    let clients: Vec<Conversation> = (0..CLIENTS).map(|_| daemon.connect()).collect();
    // All clients stay connected; 16 threads send the requests of the clients in turn.
    std::thread::scope(|scope| {
        let mut clients = clients.into_iter().enumerate().collect::<Vec<_>>();
        while !clients.is_empty() {
            let mut some = clients.split_off(clients.len().saturating_sub(CLIENTS.div_ceil(16)));
            scope.spawn(move || {
                for round in 0..COMMANDS {
                    for (number, client) in &mut some {
                        client.write(format!("{}\n", request(*number, round)).as_bytes());
                    }
                    for (number, client) in &mut some {
                        let reply = client.read();
                        assert_eq!(reply["code"], 0, "client {number}: {reply}");
                        assert_eq!(reply["id"], *number);
                    }
                }
            });
        }
    });
    let left = daemon.connect().ask(&command("ip link"));
    assert_eq!(left["out"], "", "each removed what it had added");
    drop(hanging);
}

/// Returns the request that a client sends in this round: in the course of its rounds, each client
/// creates a device of its own, uses it and deletes it.
fn request(number: usize, round: usize) -> Value {
    let line = match round {
        0 => format!("ip link add c{number} type dummy"),
        1 => format!("ip link set c{number} up mtu 1400"),
        2 => format!("ip -s -j link show c{number}"),
        3 => format!("ip link set c{number} down"),
        _ => format!("ip link del c{number}"),
    };
    let mut request = command(&line);
    request["id"] = number.into();
    request
}

/// Raises the limit of open files of this process. Each connection needs two open files, because
/// client and daemon are both in this process.
fn raise_limits() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).expect("as many files as may be open");
}
