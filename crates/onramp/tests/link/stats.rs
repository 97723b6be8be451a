//! Statistics, read while packets move.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use onramp::dev::Null;
use onramp::{DropReason, Link};

use crate::common::{Gate, LONG, balanced, credits, gated, in_time, until};

/// What was sent was submitted before, for every reader at any time; and no count goes back.
#[test]
fn a_reader_never_sees_more_sent_than_submitted() {
    in_time(|| {
        let devices = (0..2).map(|_| Box::new(Null::default()) as Box<_>);
        let link = Link::devices(devices).qdisc("pfifo limit 20").burst(40).build().unwrap();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let workers: Vec<_> = (0..6)
                .map(|_| {
                    let mut sender = link.sender();
                    scope.spawn(move || {
                        for _ in 0..40 {
                            let flow = sender.flow(None);
                            sender.send_batch(&flow, &[*b"batch"; 60]).unwrap();
                            (0..200).for_each(|_| sender.send(&flow, b"x").unwrap());
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                let mut before = link.stats();
                while !done.load(Ordering::SeqCst) {
                    let stats = link.stats();
                    let (submitted, out) = (stats.submitted, stats.sent + stats.dropped_total());
                    assert!(submitted >= out, "{submitted} submitted, {out} out");
                    assert!(submitted >= before.submitted && stats.sent >= before.sent);
                    assert!(stats.sent_bytes >= before.sent_bytes);
                    before = stats;
                }
            });
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            done.store(true, Ordering::SeqCst);
        });
        assert!(link.flush(LONG));
        let stats = link.stats();
        assert_eq!(stats.submitted, 6 * 40 * 260);
        balanced(&stats);
    });
}

#[test]
fn each_count_means_what_it_says() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo limit 5").credits(credits(100)).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        // They come with one push: the qdisc takes five, and the device none of them.
        sender.cork();
        (0..70).for_each(|_| sender.send(&flow, &[0; 58]).unwrap());
        sender.uncork().unwrap();
        let stats = link.stats();
        assert_eq!((stats.submitted, stats.sent, stats.refused), (70, 0, 0));
        assert_eq!(stats.dropped, [(DropReason::Overlimit, 65)].into());
        // The first refusal was ours; nobody but the runner asks again.
        until("the runner asks again", || gate.refusals() > 1);
        gate.open();
        assert!(sender.flush(LONG));
        let stats = link.stats();
        assert_eq!((stats.sent, stats.dropped_total()), (5, 65));
        assert_eq!(stats.sent_bytes, 5 * 100, "with headers");
        assert_eq!((stats.ports[0].enqueued, stats.ports[0].sent), (70, 5));
        assert!(stats.runner_visits > 0);
        balanced(&stats);
    });
}
