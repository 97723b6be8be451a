//! Tests of credits (how many packets a sender may have in flight), and of waiting for credits.

use std::task::Poll;
use std::thread;
use std::time::Duration;

use onramp::dev::Null;
use onramp::{Credits, Flow, Link, Mapping, SendError, Sender, TrySendError};

use crate::common::{Gate, LONG, SHORT, balanced, credits, gated, in_time, until};
use crate::ready::{Unpark, poll};
use crate::trap::Deserted;
use crate::wakes::HOWS;

/// Sends packets until there is no room. Returns how many were sent.
fn fill(sender: &mut Sender, flow: &Flow, payload: usize) -> u32 {
    for count in 0..100_000 {
        match sender.try_send(flow, &vec![0; payload]) {
            Ok(()) => {}
            Err(TrySendError::Full) => return count,
            Err(other) => panic!("{other}"),
        }
    }
    panic!("credits never end");
}

#[test]
fn full_comes_exactly_when_credits_are_out() {
    in_time(|| {
        for packets in [1, 2, 7, 64] {
            let gate = Gate::new(false);
            let link = gated(&gate, "pfifo").credits(credits(packets)).build().unwrap();
            let mut sender = link.sender();
            let flow = sender.flow(None);
            assert_eq!(fill(&mut sender, &flow, 10), packets);
            assert_eq!(sender.in_flight(), packets);
            assert_eq!(sender.try_send(&flow, b"x"), Err(TrySendError::Full));
            assert_eq!(sender.try_send_batch(&flow, ["a", "b"]), Err(TrySendError::Full));
            assert_eq!(link.stats().submitted, u64::from(packets));
            gate.open();
            assert!(sender.flush(LONG));
            assert_eq!(sender.in_flight(), 0);
            gate.shut();
            assert_eq!(fill(&mut sender, &flow, 10), packets, "the same credits again");
        }
    });
}

/// A sender without credit gets `Full` at the first try; at the second try, it sends the packets
/// that are staged at the port. If the sender has waited in between, the first try after the wait
/// again only returns `Full`.
#[test]
fn a_sender_that_tries_again_sends_what_lies() {
    in_time(|| {
        let gate = Gate::new(false);
        let world = Deserted::over(gate.device(), 40);
        let link = world.link.clone();
        let helped = || link.stats().ports[0].helped;
        let mut sender = link.sender();
        let flow = sender.flow_with(None, Mapping::Port(0));
        // In the first round, the sender does not wait; in each later round, it waits in another
        // way.
        let waits: [fn(&mut Sender, &Flow); 3] = [
            |_, _| {},
            |sender, flow| assert!(!sender.wait_room_timeout(flow, 10, Duration::ZERO)),
            |sender, flow| assert_eq!(poll(sender, flow, &Unpark::here()), Poll::Pending),
        ];
        for (round, wait) in waits.into_iter().enumerate() {
            gate.shut();
            // The last packet of the previous round may have come home. `reclaim` gives its credit
            // back to the sender, so that `in_flight` is right.
            sender.reclaim();
            (sender.in_flight()..40).for_each(|_| sender.try_send(&flow, b"x").unwrap());
            if round > 0 {
                assert_eq!(sender.try_send(&flow, b"x"), Err(TrySendError::Full));
            }
            wait(&mut sender, &flow);
            gate.open();
            let before = helped();
            assert_eq!(sender.try_send(&flow, b"x"), Err(TrySendError::Full));
            assert_eq!(helped(), before, "{round}: to be told comes first");
            // The device was full and named a time at which it has room again. The port offers it
            // packets only then, so repeat the second try.
            until("a second try sends", || sender.try_send(&flow, b"x").is_ok());
            assert!(helped() > before, "{round}");
            assert!(sender.in_flight() < 40, "{round}: what it sent came home");
        }
        drop(world);
        assert!(sender.flush(LONG) && link.flush(LONG));
        balanced(&link.stats());
    });
}

#[test]
fn bytes_are_credits_too_but_one_packet_may_always_go() {
    in_time(|| {
        let gate = Gate::new(false);
        let limits = Credits { packets: 100, bytes: 1_000 };
        let link = gated(&gate, "pfifo").credits(limits).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        assert_eq!(fill(&mut sender, &flow, 400), 2);
        assert_eq!(sender.try_send(&flow, &[0; 201]), Err(TrySendError::Full));
        assert_eq!(sender.try_send(&flow, &[0; 200]), Ok(()), "to the byte");
        assert_eq!(sender.try_send(&flow, &[]), Ok(()), "no bytes need no bytes");
        gate.open();
        assert!(sender.flush(LONG));
        gate.shut();
        assert_eq!(fill(&mut sender, &flow, 5_000), 1, "larger than all credits, but alone");
        assert!(!sender.wait_room_timeout(&flow, 0, SHORT), "and then nothing else");
    });
}

#[test]
fn a_batch_is_staged_as_far_as_credits_go() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").credits(credits(50)).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        let batch = vec![[7; 20]; 80];
        assert_eq!(sender.try_send_batch(&flow, &batch), Ok(50));
        assert_eq!(sender.in_flight(), 50);
        gate.open();
        assert_eq!(sender.send_batch(&flow, &batch[50..]), Ok(()));
        assert!(sender.flush(LONG));
        assert_eq!(gate.taken().len(), 80);
        assert_eq!(sender.try_send_batch(&flow, [[0; 4]; 0]), Ok(0), "an empty batch");
    });
}

#[test]
fn send_blocks_and_resumes() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").credits(credits(4)).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        thread::scope(|scope| {
            let thread = scope.spawn(move || {
                (0..100).try_for_each(|_| sender.send(&flow, b"payload")).unwrap();
                sender.flush(LONG)
            });
            until("the sender sleeps", || link.stats().parks > 0);
            assert_eq!(link.stats().submitted, 4);
            gate.open();
            assert!(thread.join().unwrap());
        });
        let stats = link.stats();
        assert_eq!(stats.sent, 100);
        assert!(stats.waits > 0);
        balanced(&stats);
    });
}

/// A sender that sleeps until it has room is woken when half of the packets that it has in flight
/// have come home.
#[test]
fn half_of_what_is_below_wakes_a_sender() {
    in_time(|| {
        for below in [1, 2, 3, 8, 9, 64] {
            let gate = Gate::new(false);
            let link = gated(&gate, "pfifo").credits(credits(below)).patience(2 * LONG);
            let link = link.build().unwrap();
            let mut sender = link.sender();
            let flow = sender.flow(None);
            assert_eq!(fill(&mut sender, &flow, 10), below);
            let half = (below / 2).max(1);
            let left = thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    sender.wait_room(&flow, 10);
                    sender.in_flight()
                });
                until("the sender sleeps", || link.stats().parks > 0);
                for _ in 1..half {
                    gate.let_go(1);
                    assert!(!thread.is_finished(), "of {below}");
                }
                gate.open_for(1);
                thread.join().unwrap()
            });
            assert_eq!(left, below - half);
            assert_eq!((link.stats().waits, link.stats().parks), (1, 1), "woken once");
            gate.open();
            assert!(sender.flush(LONG));
        }
    });
}

/// Most packets of a sender are held for ever. A sender that waits for room goes on with the few
/// that come home, though they are fewer than the half that would wake it at once.
#[test]
fn who_waits_takes_the_few_that_come_home() {
    in_time(|| {
        for how in HOWS {
            let gate = Gate::new(false);
            let link = gated(&gate, "pfifo").credits(credits(10)).build().unwrap();
            let mut sender = link.sender();
            let flow = sender.flow(None);
            assert_eq!(fill(&mut sender, &flow, 10), 10);
            thread::scope(|scope| {
                let waits = link.stats().waits;
                let thread = scope.spawn(|| how.go_on(&mut sender, &flow));
                until("it waits", || link.stats().waits > waits);
                gate.let_go(3);
                assert_eq!(thread.join().unwrap(), Ok(()), "{how:?}");
            });
            gate.open();
            assert!(sender.flush(LONG));
            balanced(&link.stats());
        }
    });
}

#[test]
fn waiting_for_room_times_out() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").credits(credits(3)).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        assert_eq!(fill(&mut sender, &flow, 10), 3);
        assert!(!sender.wait_room_timeout(&flow, 10, Duration::ZERO));
        assert!(!sender.wait_room_timeout(&flow, 10, SHORT));
        gate.open();
        assert!(sender.wait_room_timeout(&flow, 10, LONG));
        assert_eq!(sender.try_send(&flow, b"x"), Ok(()));
    });
}

/// A waiting sender serves (sends the packets of) its own port and ports that asked for a visit. It
/// leaves the many idle ports alone.
#[test]
fn who_waits_leaves_idle_ports_alone() {
    in_time(|| {
        let (gate, other) = (Gate::new(false), Gate::new(false));
        let idle = (0..62).map(|_| Box::new(Null::default()) as Box<_>);
        let devices: Vec<_> = idle.chain([gate.device(), other.device()]).collect();
        let link = Link::devices(devices).credits(credits(20)).build().unwrap();
        let mut sender = link.sender();
        let flows = [62, 63].map(|port| sender.flow_with(None, Mapping::Port(port)));
        flows.iter().for_each(|flow| (0..10).for_each(|_| sender.try_send(flow, b"x").unwrap()));
        let helped = || link.stats().ports.iter().map(|port| port.helped).collect::<Vec<_>>();
        // The runner may own one of the ports at the moment. Then the wait serves only the other
        // port, so wait again until both were served.
        until("it works at both", || {
            for flow in &flows {
                assert!(!sender.wait_room_timeout(flow, 1, SHORT), "both gates are shut");
            }
            helped()[62] > 0 && helped()[63] > 0
        });
        assert_eq!(helped()[..62], [0; 62]);
        assert!(link.stats().parks > 0, "to look in vain is no work: it sleeps");
        gate.open();
        other.open();
        assert!(sender.flush(LONG));
        balanced(&link.stats());
    });
}

/// If there is room, a waiting call returns at once; no packet needs to come home.
#[test]
fn who_has_room_does_not_wait() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").credits(credits(10)).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        for _ in 0..9 {
            sender.wait_room(&flow, 100);
            assert_eq!(sender.try_send(&flow, &[0; 100]), Ok(()));
        }
        assert!(sender.wait_room_timeout(&flow, 100, Duration::ZERO));
        assert_eq!(sender.try_send(&flow, &[0; 100]), Ok(()));
        assert!(!sender.wait_room_timeout(&flow, 100, Duration::ZERO));
    });
}

/// If packets came home before a waiting call, the call finds room at once.
#[test]
fn what_came_home_before_is_room() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").credits(credits(5)).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        assert_eq!(fill(&mut sender, &flow, 10), 5);
        gate.open();
        until("all is sent", || link.stats().sent == 5);
        gate.shut();
        assert!(sender.wait_room_timeout(&flow, 10, LONG));
        assert_eq!(fill(&mut sender, &flow, 10), 5);
    });
}

#[test]
fn credits_shrink_with_the_number_of_senders_and_grow_again() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo limit 1mb")
            .credits(credits(5_000))
            .credits_per_port(8_192)
            .build()
            .unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        let alone = fill(&mut sender, &flow, 10);
        assert_eq!(alone, 5_000);
        let others: Vec<_> = (0..499).map(|_| link.sender()).collect();
        // Now more packets are in flight than this sender may have, because the senders share the
        // credits. So it can send only after enough of them have come home.
        sender.reclaim();
        assert_eq!(sender.try_send(&flow, b"x"), Err(TrySendError::Full));
        gate.open();
        assert!(sender.flush(LONG));
        gate.shut();
        sender.reclaim();
        let crowded = fill(&mut sender, &flow, 10);
        assert_eq!(crowded, 8_192 / 500, "a fair share");
        drop(others);
        sender.reclaim();
        assert_eq!(crowded + fill(&mut sender, &flow, 10), 5_000);
        gate.open();
        assert!(sender.flush(LONG));
        balanced(&link.stats());
    });
}

/// All senders share 8,192 packets in flight for each port, if the builder says so. Each may have
/// its equal share, but at least four packets and at most its credits.
#[test]
fn a_share_is_exact() {
    in_time(|| {
        let share = |senders: u32, ports: u32| (8_192 * ports / senders).max(4);
        for (ports, given) in [(1, 8_192), (3, 20_000), (2, 100), (1, 3)] {
            let gate = Gate::new(false);
            let devices: Vec<_> = (0..ports).map(|_| gate.device()).collect();
            let builder = Link::devices(devices).qdisc("pfifo limit 1mb");
            let link = builder.credits(credits(given)).credits_per_port(8_192).build().unwrap();
            let mut sender = link.sender();
            let flow = sender.flow(None);
            for senders in [1, 2, 3, 5, 100, 2_049 * ports, 7, 1] {
                let others: Vec<_> = (1..senders).map(|_| link.sender()).collect();
                assert_eq!(fill(&mut sender, &flow, 10), share(senders, ports).min(given));
                gate.open();
                assert!(sender.flush(LONG));
                gate.shut();
                drop(others);
            }
            assert_eq!(link.stats().refused, 0, "no credit is no refusal");
        }
    });
}

/// While a sender waits, its share of the credits becomes smaller than the number of packets that
/// it has in flight. It is woken nevertheless.
#[test]
fn who_waits_while_credits_shrink_wakes_up() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo limit 1mb")
            .credits(credits(2_000))
            .credits_per_port(8_192)
            .build()
            .unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        assert_eq!(fill(&mut sender, &flow, 10), 2_000);
        thread::scope(|scope| {
            let waiting = scope.spawn(move || sender.send(&flow, b"one more"));
            until("the sender sleeps", || link.stats().parks > 0);
            let others: Vec<_> = (0..999).map(|_| link.sender()).collect();
            gate.open();
            assert_eq!(waiting.join().unwrap(), Ok(()));
            drop(others);
        });
        assert!(link.flush(LONG));
        assert_eq!(link.stats().sent, 2_001);
    });
}

#[test]
fn payloads_of_every_size() {
    in_time(|| {
        let device = Box::new(Null::default());
        let taken = device.stats();
        let link = Link::devices([device as Box<_>]).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        let sizes = [0, 1, 127, 128, 129, 512, 513, 2_048, 2_049, 65_506, 65_507];
        let bytes = vec![1; 65_508];
        for size in sizes {
            assert_eq!(sender.send(&flow, &bytes[..size]), Ok(()), "{size}");
        }
        assert_eq!(sender.try_send(&flow, &bytes), Err(TrySendError::TooLarge));
        assert_eq!(sender.send(&flow, &bytes), Err(SendError::TooLarge));
        let batch = [&bytes[..3], &bytes, &bytes[..4]];
        assert_eq!(sender.try_send_batch(&flow, batch), Ok(1), "those before it");
        assert_eq!(sender.send_batch(&flow, &batch), Err(SendError::TooLarge));
        assert!(sender.flush(LONG));
        let total = sizes.iter().sum::<usize>() + 2 * 3;
        // The headers of UDP, IPv4 and Ethernet together have 42 bytes.
        let count = sizes.len() + 2;
        assert_eq!(link.stats().sent, count as u64);
        assert_eq!(taken.bytes.get(), (total + 42 * count) as u64);
        balanced(&link.stats());
    });
}

/// An intake with room for only one packet works even with many senders.
#[test]
fn an_intake_for_one_packet_is_enough() {
    in_time(|| {
        let link = Link::devices([Box::new(Null::default()) as Box<_>]).burst(1).build().unwrap();
        thread::scope(|scope| {
            for _ in 0..8 {
                let mut sender = link.sender();
                scope.spawn(move || {
                    let flow = sender.flow(None);
                    for round in 0..50 {
                        sender.send(&flow, b"single").unwrap();
                        sender.send_batch(&flow, &vec![*b"batch"; round]).unwrap();
                    }
                    assert!(sender.flush(LONG));
                });
            }
        });
        let stats = link.stats();
        assert_eq!(stats.sent, 8 * (50 + 49 * 50 / 2));
        balanced(&stats);
    });
}

/// If a sender has only one credit, each of its packets waits until the packet before has come
/// home, but all are sent.
#[test]
fn one_credit_is_enough() {
    in_time(|| {
        let builder = Link::devices([Box::new(Null::default()) as Box<_>]);
        let link = builder.credits(credits(1)).build().unwrap();
        thread::scope(|scope| {
            for _ in 0..8 {
                let mut sender = link.sender();
                scope.spawn(move || {
                    let flow = sender.flow(None);
                    for _ in 0..500 {
                        sender.send(&flow, b"single").unwrap();
                    }
                    sender.send_batch(&flow, &[*b"batch"; 100]).unwrap();
                    assert!(sender.flush(LONG));
                });
            }
        });
        assert_eq!(link.stats().sent, 8 * 600);
        balanced(&link.stats());
    });
}

/// A waiting sender that sends packets of other senders meanwhile checks the clock after each
/// burst, so it does not exceed its timeout by much.
#[test]
fn helping_does_not_outlast_the_timeout() {
    in_time(|| {
        let device = crate::device::Slow::new(Duration::from_millis(5));
        let bursts = device.bursts.clone();
        let builder =
            Link::devices([Box::new(device) as Box<_>]).qdisc("fq flow_limit 10000 horizon 4000s");
        let link = builder.credits(credits(4_000)).build().unwrap();
        let (mut paced, mut busy) = (link.sender(), link.sender());
        let flow = paced.flow(None);
        // This packet stays in the qdisc for longer than the test lasts. `paced` waits for it, and
        // sends packets of `busy` meanwhile.
        let mut packet = paced.packet(&flow, b"later").unwrap();
        packet.txtime_ns = (link.now() + LONG * 20).0;
        paced.submit(&flow, packet).unwrap();
        busy.cork();
        let other = busy.flow(None);
        (0..3_000).for_each(|_| busy.try_send(&other, b"now").unwrap());
        busy.uncork().unwrap();
        let before = bursts.by(thread::current().id());
        assert!(!paced.flush(Duration::from_millis(20)));
        let ours = bursts.by(thread::current().id()) - before;
        assert!(ours <= 6, "20 ms are four bursts, and one to notice: {ours}");
        link.close(Duration::ZERO);
    });
}
