//! The times that completions of a link report.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use onramp::dev::loopback;
use onramp::{Completion, DropReason, Link, Sender};

use crate::common::{Gate, LONG, credits, gated, in_time};

fn record(sender: &mut Sender) -> Arc<Mutex<Vec<Completion>>> {
    let told = Arc::<Mutex<Vec<_>>>::default();
    let theirs = told.clone();
    sender.on_complete(move |completion| theirs.lock().unwrap().push(completion));
    told
}

#[test]
fn a_sender_learns_when_its_packets_left() {
    in_time(|| {
        let (device, mut receiver) = loopback(100);
        let link = Link::devices([Box::new(device) as Box<_>]).build().unwrap();
        let mut sender = link.sender();
        let told = record(&mut sender);
        let (flow, other) = (sender.flow(None), sender.flow(None));
        let begin = link.now().0;
        for flow in [&flow, &other, &flow] {
            sender.send(flow, b"hello").unwrap();
        }
        let received: Vec<_> =
            (0..3).map(|_| receiver.recv_timeout(LONG).unwrap().txtime_ns).collect();
        let end = link.now().0;
        assert!(sender.flush(LONG));
        let mut told = std::mem::take(&mut *told.lock().unwrap());
        told.sort_by_key(|told| told.pushed_ns);
        let keys: Vec<_> = told.iter().map(|told| told.flow).collect();
        assert_eq!(keys, [flow.key(), other.key(), flow.key()]);
        for (completion, received) in told.iter().zip(received) {
            let Completion { pushed_ns, left_ns, drop_reason, .. } = *completion;
            assert_eq!((drop_reason, left_ns), (None, Some(received.max(pushed_ns))));
            assert!(begin <= pushed_ns && received <= end, "{completion:?}");
        }
    });
}

/// Packets that a cork holds back when the link closes are dropped at a time, too.
#[test]
fn what_a_cork_holds_back_leaves_as_the_cork_ends() {
    in_time(|| {
        let gate = Gate::new(true);
        let link = gated(&gate, "pfifo").credits(credits(4)).build().unwrap();
        let mut sender = link.sender();
        let told = record(&mut sender);
        let flow = sender.flow(None);
        sender.cork();
        sender.send(&flow, b"hello").unwrap();
        link.close(Duration::ZERO);
        let closed = link.now().0;
        assert!(sender.flush(LONG));
        let told = told.lock().unwrap();
        assert_eq!(
            told.iter().map(|told| told.drop_reason).collect::<Vec<_>>(),
            [Some(DropReason::Purged)]
        );
        assert!(told[0].left_ns >= Some(closed) && told[0].flow == flow.key(), "{told:?}");
    });
}
