//! Reads lines of text, each of which becomes a datagram.

use std::io::{BufRead, Read};

use anyhow::{Context, Result, bail};

use super::Counts;

/// Reads lines of text and passes each of them, without its line end, to `each`. Returns an error
/// if a line is no text, or has more than `longest` bytes.
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
        if !is_text(text) {
            bail!(
                "line {} of standard input is no text, which is UTF-8 without NUL bytes: give \
                 lines of text, or a capture (pcap or pcapng)",
                counts.read
            );
        }
        if text.len() > longest {
            bail!(
                "line {} of standard input is longer than a UDP datagram can be ({longest} bytes)",
                counts.read
            );
        }
        each(text)?;
    }
}

/// Returns whether bytes are text. A character may be cut off at the end, because a line that is
/// too long is not read to its end.
fn is_text(bytes: &[u8]) -> bool {
    let utf8 = std::str::from_utf8(bytes).map_or_else(|no| no.error_len().is_none(), |_| true);
    utf8 && !bytes.contains(&0)
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
    fn what_is_no_text_is_refused() {
        for wrong in [&b"a\0b\n"[..], b"\xff\xfe\n", b"\x00\x01\x02 and no end of the line"] {
            let (before, done) = lines(&[b"one\n", wrong].concat(), 10);
            assert_eq!(before, [b"one"], "{wrong:?}");
            let why = done.expect_err("no text").to_string();
            assert!(why.starts_with("line 2 of standard input is no text"), "{why}");
        }
        let (whole, done) = lines("gr\u{fc}n\t\r\n".as_bytes(), 10);
        assert!(done.is_ok() && whole.len() == 1, "umlauts and control characters are text");
        let why = lines(b"abc\xc3\xbc", 2).1.expect_err("too long").to_string();
        assert!(why.contains("is longer"), "{why}");
    }

    #[test]
    fn the_longest_line_fits_and_a_longer_one_does_not() {
        assert_eq!(lines(b"abcd\nabcd", 4).0.len(), 2);
        let (before, done) = lines(b"ab\nabcde\n", 4);
        assert_eq!(before.len(), 1);
        assert!(done.expect_err("too long").to_string().starts_with("line 2 "));
    }
}
