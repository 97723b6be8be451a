//! Models of packets in memory of a device: they come home from other threads, and the last of all
//! frees the memory.

use onramp_queue::MappedPool;
use onramp_queue::mapped_memory::Memory;

use crate::pool::drop_on_threads;
use crate::{check, join};

/// Two threads drop a packet each, while the pool takes in those that have come home, and makes
/// packets there again. Each frame belongs to one side at a time.
///
/// Must fail with each of these mutants: mapped-reclaim-acquire, pool-put-release.
#[test]
fn frames_come_home() {
    check(3, || {
        let (memory, freed) = Memory::new();
        let mut pool = MappedPool::new(memory.clone());
        let out = [0, 1].map(|frame| memory.packet(&mut pool, frame, 0));
        let threads = drop_on_threads::<2>(out.into_iter().collect());
        let home = memory.home(&mut pool);
        assert_eq!(pool.out() as usize + home.len(), 2);
        for frame in home {
            drop(memory.packet(&mut pool, frame, 0));
        }
        join(threads);
        assert_eq!((memory.home(&mut pool), pool.out()), (vec![0, 1], 0));
        drop((memory, pool));
        assert_eq!(freed.count(), 1);
    });
}

/// Two threads drop a packet each, while the pool is dropped. The last of all frees the memory.
///
/// Must fail with each of these mutants: pool-close-acquire, pool-close-release, pool-put-acquire,
/// pool-put-release.
#[test]
fn who_is_last_frees_the_memory() {
    check(3, || {
        let (memory, freed) = Memory::new();
        let mut pool = MappedPool::new(memory.clone());
        let out = [0, 1].map(|frame| memory.packet(&mut pool, frame, 0));
        drop(memory);
        let threads = drop_on_threads::<2>(out.into_iter().collect());
        drop(pool);
        join(threads);
        assert_eq!(freed.count(), 1);
    });
}
