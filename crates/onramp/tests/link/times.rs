//! The times that completions of a link report.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use onramp::dev::loopback;
use onramp::{Completion, DropReason, Link, Mapping, Sender};

use crate::common::{Gate, LONG, credits, gated, in_time};
use crate::trap::Trap;

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

/// A receiver submits a packet again, and a full port refuses it. The sender that made the packet
/// still learns when the packet was pushed and when it left, and counts this delay.
#[test]
fn a_refusal_leaves_the_times_of_the_first_way() {
    in_time(|| {
        let (device, mut receiver) = loopback(1);
        let trap = Trap::new();
        let link = Link::devices([Box::new(device) as Box<_>, trap.device()]);
        let link = link.qdisc("pfifo").burst(1).build().unwrap();
        let caught = trap.catch(&link, 1);
        let (mut sender, mut other) = (link.sender(), link.sender());
        let told = record(&mut sender);
        let [flow, full] = [0, 1].map(|port| sender.flow_with(None, Mapping::Port(port)));
        sender.watch(&flow);
        other.try_send(&full, b"fills the intake").unwrap();
        // The receiver has room for one packet, so the second leaves only when it has taken the
        // first.
        other.send(&flow, b"x").unwrap();
        sender.send(&flow, b"x").unwrap();
        drop(receiver.recv_timeout(LONG).unwrap());
        let packet = receiver.recv_timeout(LONG).unwrap();
        let (pushed_ns, left_ns) = (packet.enqueued_ns, packet.txtime_ns);
        assert!(pushed_ns < left_ns, "{pushed_ns}, {left_ns}");
        let rejected = other.submit(&full, packet).expect_err("there is no room");
        let packet = rejected.packet;
        assert_eq!((packet.enqueued_ns, packet.txtime_ns), (pushed_ns, left_ns));
        drop(packet);
        assert!(sender.flush(LONG));
        let stats = sender.flow_stats(&flow).unwrap();
        assert_eq!((stats.sent, stats.delay_sum_ns), (1, left_ns - pushed_ns));
        let told: Vec<_> =
            told.lock().unwrap().iter().map(|told| (told.pushed_ns, told.left_ns)).collect();
        assert_eq!(told, [(pushed_ns, Some(left_ns))]);
        trap.open();
        caught.join().unwrap();
        assert!(other.flush(LONG));
    });
}
