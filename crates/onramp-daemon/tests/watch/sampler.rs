//! When, and how often, the sampler takes snapshots of the devices.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use onramp_daemon::http::{Sampler, Source, Turn};
use onramp_daemon::snapshot::{Device, Stats};
use onramp_host::Reply;
use tokio::sync::watch::Receiver;
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);

/// A source of snapshots for these tests. Each snapshot takes as long as the test decides; the
/// source checks that callers use it one at a time.
#[derive(Default)]
struct Watched {
    looks: AtomicU64,
    /// Whether a caller has the turn to use the source at present.
    taken: Arc<AtomicBool>,
    stuck: Mutex<bool>,
    freed: Condvar,
    /// How long a caller waits for its turn.
    pause: Duration,
}

impl Watched {
    fn looks(&self) -> u64 {
        // Relaxed, here and below: the values are only counts and flags, and no other memory
        // depends on them.
        self.looks.load(Ordering::Relaxed)
    }

    fn hold(&self, stuck: bool) {
        *self.stuck.lock().unwrap() = stuck;
        self.freed.notify_all();
    }
}

/// A caller's turn to use the source. Dropping this value ends the turn.
struct Taken(Arc<AtomicBool>);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Source for Watched {
    fn devices(&self) -> Vec<Device> {
        assert!(self.taken.load(Ordering::Relaxed), "it is its turn");
        self.looks.fetch_add(1, Ordering::Relaxed);
        drop(self.freed.wait_while(self.stuck.lock().unwrap(), |stuck| *stuck).unwrap());
        assert!(self.taken.load(Ordering::Relaxed), "it is its turn still");
        Vec::new()
    }

    fn exec(&self, _: &[String]) -> Reply {
        Reply::default()
    }

    fn turn(&self) -> Pin<Box<dyn Future<Output = Turn> + Send>> {
        assert!(!self.taken.swap(true, Ordering::Relaxed), "one after another");
        let (turn, pause) = (Taken(Arc::clone(&self.taken)), self.pause);
        Box::pin(async move {
            sleep(pause).await;
            Box::new(turn) as Turn
        })
    }
}

fn sampler() -> (Arc<Watched>, Arc<Sampler>) {
    let source = Arc::<Watched>::default();
    (Arc::clone(&source), Sampler::new(source, SECOND))
}

/// A caller that asks every tenth of a second gets a new snapshot each time, also if the snapshots
/// take long.
#[tokio::test(start_paused = true)]
async fn a_slow_look_is_as_old_as_the_wish() {
    let pause = Duration::from_millis(30);
    let source = Arc::new(Watched { pause, ..Watched::default() });
    let sampler = Sampler::new(Arc::clone(&source) as Arc<dyn Source>, SECOND);
    let first = sampler.snapshot().await.expect("a look");
    sleep(Duration::from_millis(70)).await;
    let second = sampler.snapshot().await.expect("a look");
    assert_eq!((second.at_ns - first.at_ns, source.looks()), (100_000_000, 2));
}

/// All callers within almost a tenth of a second get the same snapshot; later callers get a new
/// one.
#[tokio::test(start_paused = true)]
async fn a_look_is_fresh_for_almost_a_tenth_of_a_second() {
    let (source, sampler) = sampler();
    let first = sampler.snapshot().await.expect("a look");
    sleep(Duration::from_millis(89)).await;
    let second = sampler.snapshot().await.expect("a look");
    assert!(Arc::ptr_eq(&first, &second));
    sleep(Duration::from_millis(1)).await;
    let third = sampler.snapshot().await.expect("a look");
    assert_eq!((third.at_ns - first.at_ns, source.looks()), (90_000_000, 2));
    assert!(third.unix_ms > 1_600_000_000_000);
}

/// If the caller that asked for a snapshot gives up waiting, the turn still lasts until the
/// snapshot is finished.
#[tokio::test]
async fn a_turn_lasts_as_long_as_the_look() {
    let (source, sampler) = sampler();
    source.hold(true);
    let look = tokio::spawn({
        let sampler = Arc::clone(&sampler);
        async move { sampler.snapshot().await.map(drop) }
    });
    while source.looks() == 0 {
        tokio::task::yield_now().await;
    }
    look.abort();
    assert!(look.await.is_err_and(|error| error.is_cancelled()));
    assert!(source.taken.load(Ordering::Relaxed));
    source.hold(false);
    sampler.snapshot().await.expect("a look");
    assert!(!source.taken.load(Ordering::Relaxed));
}

/// Waits for the next statistics, and returns the time in seconds that their rates cover.
async fn seconds(stats: &mut Receiver<Option<Arc<Stats>>>) -> Option<f64> {
    stats.changed().await.expect("it goes on");
    stats.borrow_and_update().as_ref().expect("a look").seconds
}

/// The sampler takes one snapshot per period, however many clients listen, and none while nobody
/// listens.
#[tokio::test(start_paused = true)]
async fn somebody_looks_while_somebody_listens() {
    let (source, sampler) = sampler();
    let mut stats = sampler.listen();
    assert!(stats.borrow().is_none());
    let mut others = [sampler.listen(), sampler.listen()];
    assert_eq!(seconds(&mut stats).await, None);
    for looks in 2..5 {
        assert_eq!((seconds(&mut stats).await, source.looks()), (Some(1.0), looks));
    }
    for other in &mut others {
        assert_eq!(seconds(other).await, Some(1.0), "the latest alone");
    }
    drop(others);
    assert_eq!(seconds(&mut stats).await, Some(1.0));
    drop(stats);
    sleep(10 * SECOND).await;
    assert_eq!(source.looks(), 5);
    // When a client listens again, the sampler starts anew: the first statistics have no rates,
    // because there is no previous snapshot to compare with.
    let mut stats = sampler.listen();
    assert!(stats.borrow().is_none());
    assert_eq!([seconds(&mut stats).await, seconds(&mut stats).await], [None, Some(1.0)]);
    assert_eq!(source.looks(), 7);
}

/// After a snapshot that took longer than a period, the next snapshot follows at once, and later
/// ones follow once per period: snapshots that were missed are not taken afterwards.
#[tokio::test(start_paused = true)]
async fn looks_that_were_missed_are_not_made_up_for() {
    let (source, sampler) = sampler();
    let mut stats = sampler.listen();
    assert_eq!(seconds(&mut stats).await, None);
    source.hold(true);
    tokio::time::advance(SECOND).await;
    // Wait until a blocking thread has begun to take the snapshot.
    while source.looks() == 1 {
        tokio::task::yield_now().await;
    }
    tokio::time::advance(3 * SECOND + SECOND / 2).await;
    source.hold(false);
    // The listener may miss the statistics of the slow snapshot, which cover 4.5 s. The snapshot
    // after it is taken at the same virtual time, so its statistics have no rates (`None`).
    let next = loop {
        match seconds(&mut stats).await {
            None | Some(4.5) => {}
            Some(seconds) => break seconds,
        }
    };
    assert_eq!((next, source.looks()), (1.0, 4));
}
