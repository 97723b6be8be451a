//! Children of `fork`, and how a process recognizes that it is such a child. The test is a program
//! of its own with a single test, because a child has only the thread that called `fork`, and a
//! lock that another thread held would stay held.

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use onramp_dev::{forks, run_in_child, watch_forks};

/// Runs `child` in a child process, and returns how that process ended.
fn status(child: impl FnOnce() -> i32) -> WaitStatus {
    let number = run_in_child(child).expect("there can be a child");
    assert!(number > 0, "the parent goes on, and knows its child");
    let pid = Pid::from_raw(number);
    let status = waitpid(pid, None).expect("it is ours");
    assert_eq!(status.pid(), Some(pid));
    status
}

fn exit(child: impl FnOnce() -> i32) -> i32 {
    match status(child) {
        WaitStatus::Exited(_, code) => code,
        other => panic!("it did not exit: {other:?}"),
    }
}

fn number(forks: u32) -> i32 {
    i32::try_from(forks).expect("a few")
}

#[test]
fn a_child_knows_that_it_is_one() {
    // Forks are counted only after the first call of `watch_forks`. So the number is still 0, even
    // in a child.
    assert_eq!((forks(), exit(|| number(forks()))), (0, 0));
    assert_eq!((watch_forks(), watch_forks(), forks()), (0, 0, 0));
    // The number of forks is 1 in a child and 2 in a child's child, whichever function reads it and
    // however often.
    assert_eq!(exit(|| number(forks())), 1);
    assert_eq!(exit(|| number(watch_forks() + 10 * watch_forks())), 11);
    assert_eq!(exit(|| 10 * number(forks()) + exit(|| number(forks()))), 12);
    assert_eq!(forks(), 0, "the parent is what it was");
    // The value that the closure returns is the child's exit status, and the child runs nothing
    // else of the program.
    for code in [0, 1, 7, 255] {
        assert_eq!(exit(|| code), code);
    }
    // Replace the default panic hook, because it would take a lock to print.
    std::panic::set_hook(Box::new(|_| {}));
    let code = exit(|| panic!("as the test wants it"));
    drop(std::panic::take_hook());
    assert_eq!(code, 101, "as a Rust program that panics");
}
