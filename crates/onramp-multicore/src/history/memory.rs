//! Cache lines whose contents nobody needs, and atomics that have a line of their own.

use std::ops::Deref;
use std::ptr::without_provenance;

use onramp_machine::hook;

/// Distance between two lines, bytes: the size of the longest line of all machines.
const LINE: usize = 128;
/// The first address that is handed out: beyond all real memory.
const FIRST: usize = 1 << 62;

/// A value that has a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Apart<T>(pub(super) T);

impl<T> Apart<T> {
    /// Charges that the line is read and written, as for other data that lies beside the value.
    #[track_caller]
    pub(super) fn change_beside(&self) {
        hook::change(&raw const self.0, 1);
    }
}

impl<T> Deref for Apart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Lines of memory that exist only for the simulated machine. Each access to several lines goes to
/// one line after another, as the machine waits for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lines {
    first: usize,
    count: u32,
}

impl Lines {
    fn each(self) -> impl Iterator<Item = *const u8> {
        (0..self.count as usize).map(move |n| without_provenance(self.first + n * LINE))
    }

    /// Returns the first `count` of the lines, or all if there are fewer.
    pub(super) fn up_to(self, count: u32) -> Self {
        Self { count: self.count.min(count), ..self }
    }

    /// Charges that the lines are read.
    #[track_caller]
    pub(super) fn read(self) {
        for line in self.each() {
            hook::read(line, 1);
        }
    }

    /// Charges that the lines are read and written.
    #[track_caller]
    pub(super) fn change(self) {
        for line in self.each() {
            hook::change(line, 1);
        }
    }

    /// Charges that the lines are written without being read.
    #[track_caller]
    pub(super) fn write(self) {
        for line in self.each() {
            hook::write(line, 1);
        }
    }
}

/// Hands out lines that nobody uses yet.
#[derive(Debug, Default)]
pub(super) struct Memory {
    handed_out: usize,
}

impl Memory {
    /// Returns `count` new lines.
    pub(super) fn lines(&mut self, count: u32) -> Lines {
        let first = FIRST + self.handed_out * LINE;
        self.handed_out += count as usize;
        Lines { first, count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_handed_out_twice() {
        let mut memory = Memory::default();
        let (one, other) = (memory.lines(2), memory.lines(3));
        let all: Vec<_> = one.each().chain(other.each()).collect();
        assert!(all.windows(2).all(|pair| pair[1].addr() == pair[0].addr() + LINE));
        assert_eq!(all.len(), 5);
        assert_eq!(other.up_to(1), Lines { count: 1, ..other });
        assert_eq!(other.up_to(9), other);
    }
}
