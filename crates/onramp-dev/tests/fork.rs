//! Children of `fork`, and how a process knows that it is one. A program of its own, of one test:
//! a child has the thread alone that made it, and no lock that another one had.

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use onramp_dev::{forks, run_in_child, watch_forks};

/// How a child ended that did this.
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
    // Nobody watches yet: no fork is counted.
    assert_eq!((forks(), exit(|| number(forks()))), (0, 0));
    assert_eq!((watch_forks(), watch_forks(), forks()), (0, 0, 0));
    // A child is one fork away, and its child two; whoever asks, and how often.
    assert_eq!(exit(|| number(forks())), 1);
    assert_eq!(exit(|| number(watch_forks() + 10 * watch_forks())), 11);
    assert_eq!(exit(|| 10 * number(forks()) + exit(|| number(forks()))), 12);
    assert_eq!(forks(), 0, "the parent is what it was");
    // What a child gives is its status, and nothing else of the program runs there.
    for code in [0, 1, 7, 255] {
        assert_eq!(exit(|| code), code);
    }
    std::panic::set_hook(Box::new(|_| {})); // It would print, by a lock.
    let code = exit(|| panic!("as the test wants it"));
    drop(std::panic::take_hook());
    assert_eq!(code, 101, "as a Rust program that panics");
}
