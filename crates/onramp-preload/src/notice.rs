//! What the library says on standard error.

use std::io::Write as _;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Writes a line to standard error, if somebody reads it. A program must not end by the signal that
/// a pipe without a reader sends, nor because its standard error is full.
pub(crate) fn tell(line: &str) {
    let stderr = std::io::stderr();
    let mut polled = [PollFd::new(&stderr, PollFlags::OUT)];
    let gone = PollFlags::ERR | PollFlags::HUP;
    let polls = poll(&mut polled, Some(&Timespec::default()));
    if polls.is_ok() && !polled[0].revents().intersects(gone) {
        let _ = writeln!(stderr.lock(), "onramp exec: {line}");
    }
}
