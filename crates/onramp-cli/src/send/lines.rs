//! Reads lines of text, each of which becomes a datagram.

use std::io::{BufRead, Read};

use anyhow::{Context, Result, bail};

use super::Counts;

/// Reads lines of text and passes each of them, without its line end, to `each`. Returns an error
/// if a line has more than `longest` bytes.
pub(crate) fn read(
    mut input: impl BufRead,
    longest: usize,
    counts: &mut Counts,
    mut each: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        let limit = longest as u64 + 2;
        let read = input.by_ref().take(limit).read_until(b'\n', &mut line);
        if read.context("cannot read standard input")? == 0 {
            return Ok(());
        }
        counts.read += 1;
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        if text.len() > longest {
            bail!(
                "line {} of standard input is longer than a UDP datagram can be ({longest} bytes)",
                counts.read
            );
        }
        each(text)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8], longest: usize) -> (Vec<Vec<u8>>, Result<()>) {
        let mut lines = Vec::new();
        let done = read(text, longest, &mut Counts::default(), |line| {
            lines.push(line.to_vec());
            Ok(())
        });
        (lines, done)
    }

    #[test]
    fn ends_and_emptiness() {
        let (lines, done) = lines(b"one\n\ntwo\r\nlast", 10);
        assert!(done.is_ok());
        assert_eq!(lines, [&b"one"[..], b"", b"two\r", b"last"]);
    }

    #[test]
    fn the_longest_line_fits_and_a_longer_one_does_not() {
        assert_eq!(lines(b"abcd\nabcd", 4).0.len(), 2);
        let (before, done) = lines(b"ab\nabcde\n", 4);
        assert_eq!(before.len(), 1);
        assert!(done.expect_err("too long").to_string().starts_with("line 2 "));
    }
}
