//! Callers that ask for a snapshot of the devices and give up waiting for it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use onramp_daemon::http::{Sampler, Source};
use onramp_daemon::snapshot::Device;
use onramp_host::Reply;

use super::*;

/// A source of snapshots that counts the snapshots in progress, and the largest number in progress
/// at the same time. Each snapshot waits until the test releases it.
#[derive(Default)]
struct Slow {
    now: AtomicUsize,
    most: AtomicUsize,
    goes: Mutex<bool>,
    let_go: Condvar,
}

impl Source for Slow {
    fn devices(&self) -> Vec<Device> {
        // Relaxed: the values are only counts, and no other memory depends on them.
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        drop(self.let_go.wait_while(self.goes.lock().unwrap(), |goes| !*goes).unwrap());
        self.now.fetch_sub(1, Ordering::Relaxed);
        Vec::new()
    }

    fn exec(&self, _: &[String]) -> Reply {
        Reply::default()
    }
}

#[test]
fn one_looks_at_a_time_though_nobody_waits() {
    let slow = Arc::<Slow>::default();
    let sampler = Sampler::new(slow.clone(), Duration::from_secs(1));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        for _ in 0..100 {
            let look = tokio::time::timeout(Duration::from_millis(1), sampler.snapshot());
            assert!(look.await.is_err(), "it waits");
        }
        *slow.goes.lock().unwrap() = true;
        slow.let_go.notify_all();
        sampler.snapshot().await.expect("a look");
    });
    // Relaxed: all snapshots have ended, so no thread changes the count.
    assert_eq!(slow.most.load(Ordering::Relaxed), 1);
}
