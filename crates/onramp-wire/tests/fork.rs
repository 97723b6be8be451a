//! What a forked child does with its copies of a bridge and a namespace.

use std::panic::{AssertUnwindSafe, catch_unwind};

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, alarm};
use onramp_wire::{Bridge, Space, Way};

/// A child has no thread of its parent: its copies answer at once, and leave the parent's alone.
#[test]
fn a_copy_in_a_forked_child_disturbs_nobody() {
    let bridge = Bridge::start(Vec::<Way>::new()).expect("a thread");
    let space = Space::new().ok();
    if space.is_none() {
        eprintln!("SKIPPED: Space: this user may not make network namespaces");
    }
    let (mut bridge, mut space) = (Some(bridge), Some(space));
    let child = onramp_dev::run_in_child(|| {
        alarm::set(60);
        // A panic's message would take a lock that another thread may have held.
        std::panic::set_hook(Box::new(|_| {}));
        let (bridge, space) = (bridge.take().expect("a copy"), space.take().expect("a copy"));
        let fails = bridge.lines().is_err() && bridge.carried().is_none();
        let panics = space
            .as_ref()
            .is_none_or(|space| catch_unwind(AssertUnwindSafe(|| space.run(|| 1))).is_err());
        drop((bridge, space));
        i32::from(!fails) + 2 * i32::from(!panics)
    });
    let child = Pid::from_raw(child.expect("a child"));
    assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
    let bridge = bridge.take().expect("the parent's");
    assert_eq!(bridge.lines().map(|lines| lines.len()).ok(), Some(0));
    assert!(bridge.stop().is_empty());
    if let Some(space) = space.take().flatten() {
        assert_eq!(space.run(|| 1), 1);
    }
}
