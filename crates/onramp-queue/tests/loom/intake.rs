//! The intake, and the hand-over of what is behind it.

use loom::sync::Arc;
use loom::thread;
use onramp_queue::{Full, Intake, Owner, Packet, PacketList, Pushed};

use crate::check;

/// A port whose device writes down the cookies it is given.
type Port = Intake<Vec<u64>>;

fn packet(cookie: u64) -> Packet {
    let mut pkt = Packet::new(64);
    pkt.cookie = cookie;
    pkt
}

fn packets(cookies: &[u64]) -> PacketList {
    cookies.iter().copied().map(packet).collect()
}

fn cookies(list: PacketList) -> Vec<u64> {
    list.map(|pkt| pkt.cookie).collect()
}

/// Pushes, and does the owner's work if that falls to us.
fn send(port: &Port, list: PacketList) {
    match port.push(list) {
        Ok(Pushed::Staged) => {}
        Ok(Pushed::Owner { mut owner, fresh }) => {
            owner.extend(cookies(fresh));
            run(owner);
        }
        Err(Full(_)) => panic!("the model stays below the cap"),
    }
}

/// Works until nothing waits.
fn run(mut owner: Owner<'_, Vec<u64>>) {
    loop {
        let list = owner.take();
        owner.extend(cookies(list));
        match owner.leave_idle() {
            Ok(()) => return,
            Err(still) => owner = still,
        }
    }
}

/// At rest: everything sent was taken, nothing waits, nobody owns it.
fn at_rest(port: &Port) -> Vec<u64> {
    assert_eq!(port.waiting(), 0, "nothing is left behind");
    let owner = port.own().expect("nobody owns it");
    owner.clone()
}

fn in_order(sent: &[u64], of: &[u64]) {
    let seen: Vec<u64> = sent.iter().copied().filter(|cookie| of.contains(cookie)).collect();
    assert_eq!(seen, of, "each once, in the order sent");
}

#[test]
fn pushes_race_for_an_idle_intake() {
    check(3, || {
        let port = Arc::new(Port::new(Vec::new(), 8, 2));
        let other = port.clone();
        let thread = thread::spawn(move || {
            send(&other, packets(&[10]));
            send(&other, packets(&[11, 12]));
        });
        send(&port, packets(&[20]));
        send(&port, packets(&[21]));
        thread.join().unwrap();
        let sent = at_rest(&port);
        assert_eq!(sent.len(), 5);
        in_order(&sent, &[10, 11, 12]);
        in_order(&sent, &[20, 21]);
    });
}

#[test]
fn refused_packets_come_back_whole() {
    check(3, || {
        let port = Arc::new(Port::new(Vec::new(), 2, 2));
        let owner = port.own().unwrap();
        assert!(matches!(port.push(packets(&[1])), Ok(Pushed::Staged)));
        let other = port.clone();
        let thread = thread::spawn(move || match other.push(packets(&[10])) {
            Ok(_) => 1,
            Err(Full(list)) => {
                assert_eq!((list.len(), cookies(list)), (1, vec![10]));
                0
            }
        });
        let mine = match port.push(packets(&[20])) {
            Ok(_) => 1,
            Err(Full(list)) => {
                assert_eq!((list.len(), cookies(list)), (1, vec![20]));
                0
            }
        };
        assert_eq!(mine + thread.join().unwrap(), 1);
        run(owner);
        assert_eq!(at_rest(&port).len(), 2);
    });
}
