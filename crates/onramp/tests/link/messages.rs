//! Several messages in one call.

use std::net::UdpSocket;
use std::sync::mpsc;

use onramp::dev::Null;
use onramp::{Completion, Credits, Instant, Link, Message, TrySendError};

/// Returns the messages of the tests: a segmented one, one with a mark, one that leaves later.
fn messages(later: Instant) -> [Message<'static>; 3] {
    [
        Message { payload: &[1; 2_500], segment: 1_200, cookie: 11, ..Message::default() },
        Message { payload: &[2; 300], ecn: Some(1), cookie: 12, ..Message::default() },
        Message { payload: &[3; 40], txtime: Some(later), cookie: 13, ..Message::default() },
    ]
}

/// Messages of one call become the same packets as messages of one call each: the same datagrams
/// and lengths, and the last one waits for its time.
#[test]
fn one_call_sends_what_several_calls_send() {
    let receiver = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let dest = receiver.local_addr().expect("an address");
    let found = [true, false].map(|at_once| {
        let link = Link::udp("127.0.0.1:0").qdisc("fq").manual().build().expect("a link");
        let mut sender = link.sender();
        let (tell, completions) = mpsc::channel::<Completion>();
        sender.on_complete(move |completion| tell.send(completion).expect("the test listens"));
        let flow = sender.flow(dest);
        let later = Instant(link.now().0 + 20_000_000);
        if at_once {
            assert_eq!(sender.try_send_messages(&flow, messages(later)), Ok(3));
        } else {
            for message in messages(later) {
                sender.try_send_message(&flow, &message).expect("there is room");
            }
        }
        while sender.in_flight() > 0 {
            link.run();
            sender.reclaim();
        }
        let mut told: Vec<_> = completions.try_iter().collect();
        told.sort_by_key(|completion| completion.cookie);
        let late = told.last().and_then(|last| last.left_ns).expect("it was sent");
        assert!(late >= later.0, "sent {} ns too early", later.0 - late);
        let mut buffer = [0; 3_000];
        let sizes = [(); 5].map(|()| receiver.recv(&mut buffer).expect("a datagram"));
        (sizes, told.iter().map(|told| (told.cookie, told.len)).collect::<Vec<_>>())
    });
    assert_eq!(found[0], found[1]);
    assert_eq!(found[0].0, [1_200, 1_200, 100, 300, 40]);
    // Each datagram counts with its headers.
    assert_eq!(found[0].1, [(11, 2_500 + 3 * 42), (12, 300 + 42), (13, 40 + 42)]);
}

#[test]
fn as_many_messages_are_accepted_as_there_are_credits() {
    let device = Box::new(Null::default());
    let credits = Credits { packets: 2, bytes: 1 << 20 };
    let link = Link::devices([device as _]).qdisc("netem delay 200s").credits(credits).manual();
    let link = link.build().expect("a link");
    let mut sender = link.sender();
    let flow = sender.flow(None);
    assert_eq!(sender.try_send_messages(&flow, messages(Instant(0))), Ok(2));
    assert_eq!(
        sender.try_send_messages(&flow, messages(Instant(0))),
        Err(TrySendError::Full),
        "the credits are used"
    );
    assert_eq!(sender.try_send_messages(&flow, []), Ok(0));
    let huge = Message { payload: &[0; 65_508], ..Message::default() };
    assert_eq!(sender.try_send_messages(&flow, [huge]), Err(TrySendError::TooLarge));
    let stats = link.stats();
    assert_eq!((stats.submitted, stats.held), (2, 2), "nothing else was counted");
}
