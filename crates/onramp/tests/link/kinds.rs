//! Trees with qdiscs of every kind are changed while threads send; some packets hold several
//! datagrams.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use onramp::dev::Null;
use onramp::qdisc::KINDS;
use onramp::{Device, Link, Mode, Sender, Setup};

use crate::common::{Fates, LONG, balanced, credits, in_time};

const THREADS: u64 = 60;

fn options(kind: &str) -> &'static str {
    match kind {
        "tbf" => "rate 400mbit burst 3kb limit 60kb",
        "red" => "limit 60kb min 5kb max 15kb avpkt 1000 burst 10 bandwidth 10mbit",
        "choke" => "limit 40 min 5 max 15 avpkt 1000 bandwidth 10mbit",
        "ets" => "bands 3",
        "etf" => "clockid CLOCK_TAI delta 100000",
        "cbs" => "idleslope 800000 sendslope -200000 hicredit 459 locredit -1071",
        "netem" => "delay 100us corrupt 20% duplicate 10% limit 100",
        "cake" => "bandwidth 800mbit memlimit 1mb",
        "fq" => "maxrate 80mbit",
        _ => "",
    }
}

/// Returns a tree for each kind of qdisc that a link may have. For each kind that creates packets,
/// there are two more trees: with the qdisc below a class of `drr`, and below a class of `mq` (a
/// port).
fn trees() -> Vec<Setup> {
    let kinds = KINDS.iter().map(|kind| kind.id).filter(|kind| *kind != "mqprio");
    let root = |kind| format!("qdisc add dev x root handle 1: {kind} {}", options(kind));
    let mut trees: Vec<Vec<String>> = kinds.map(|kind| vec![root(kind)]).collect();
    for kind in ["tbf", "cake", "dualpi2", "netem"] {
        let class = "class add dev x parent 1: classid 1:1 drr quantum 400".to_owned();
        let below = format!("qdisc add dev x parent 1:1 handle 2: {kind} {}", options(kind));
        trees.push(vec![root("drr"), class, below.clone()]);
        trees.push(vec![root("mq"), below]);
    }
    let setup = |lines: Vec<String>| {
        let mut setup = Setup::default();
        lines.iter().for_each(|line| setup.apply(line).map(|_| ()).expect(line));
        setup
    };
    trees.into_iter().map(setup).collect()
}

/// Sends packets until `stop` is set. Returns their number, after checking that a completion was
/// reported for each.
fn work(mut sender: Sender, pause: Duration, stop: &AtomicBool) -> u64 {
    let (fates, flow, mut sent) = (Fates::of(&mut sender), sender.flow(None), 0);
    while !stop.load(Ordering::Relaxed) {
        for number in 0..8_u8 {
            let (size, gso_size) = if number % 3 == 0 { (3_000, 700) } else { (100, 0) };
            let Ok(mut packet) = sender.packet(&flow, &vec![0; size]) else { break };
            packet.gso_size = gso_size;
            packet.priority = 0x10001 + u32::from(number % 2);
            packet.ecn = number % 4;
            if number < 3 {
                packet.set_queue(number.into());
            }
            sent += u64::from(sender.submit(&flow, packet).is_ok());
        }
        sender.wait_room_timeout(&flow, 1, Duration::from_micros(500));
        thread::sleep(pause);
    }
    assert!(sender.flush(LONG), "{sender:?}");
    assert_eq!(fates.total(), sent);
    sent
}

#[test]
fn every_kind_comes_and_goes_under_load() {
    for mode in [Mode::Hybrid, Mode::Inline, Mode::Dedicated] {
        in_time(move || {
            let device = || Box::new(Null::default()) as Box<dyn Device>;
            let link = Link::devices([device(), device()]).mode(mode).runners(2);
            let link = link.credits(credits(20)).ports_max(40).build().unwrap();
            let (stop, submitted) = (AtomicBool::new(false), AtomicU64::new(0));
            thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (sender, stop, submitted) = (link.sender(), &stop, &submitted);
                    let pause = Duration::from_micros(thread * 50);
                    scope.spawn(move || {
                        submitted.fetch_add(work(sender, pause, stop), Ordering::Relaxed);
                    });
                }
                for (turn, tree) in trees().iter().enumerate() {
                    link.set_tree(tree).unwrap();
                    thread::sleep(Duration::from_millis(4));
                    if turn % 3 == 0 {
                        link.add_port(device()).unwrap();
                        let _ = link.remove_port(turn / 3, Duration::from_millis(5)).unwrap();
                    }
                }
                link.set_qdisc("pfifo").unwrap();
                stop.store(true, Ordering::Relaxed);
            });
            let stats = link.stats();
            balanced(&stats);
            assert_eq!(stats.submitted, submitted.into_inner());
            assert!(stats.made > 0);
        });
    }
}
