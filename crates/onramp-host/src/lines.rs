//! Reads files of commands: configurations, and the files of `tc -batch FILE`.
//!
//! Source: behaviour of iproute2's `-batch`, tried: `#` begins a comment, also within a word; a
//! backslash at the end of a line continues the command on the next line; quotes, single or double,
//! make one word of the text between them.

use std::io::{self, BufRead};

/// A command that a file contains, split into words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The number of the command's last line in the file, from 1 on.
    pub number: usize,
    /// The words of the command.
    pub words: Vec<String>,
}

/// Iterator over the commands of a file. It skips empty lines and comments. If the file cannot be
/// read, if a quote is not closed, or if the file ends where a command continues, it returns an
/// error as an item; [`number`](Self::number) says at which line.
#[derive(Debug)]
pub struct Lines<R> {
    reader: R,
    number: usize,
}

impl<R: BufRead> Lines<R> {
    /// Returns an iterator over the commands that `reader` supplies.
    pub const fn new(reader: R) -> Self {
        Self { reader, number: 0 }
    }

    /// Returns the reader from which the commands are read.
    pub const fn reader(&self) -> &R {
        &self.reader
    }

    /// Returns the number of the line that was read last, from 1 on.
    pub const fn number(&self) -> usize {
        self.number
    }

    /// Returns the next line of the file without its comment, and whether the command continues on
    /// the following line. `None` means that the file has ended.
    fn line(&mut self) -> io::Result<Option<(String, bool)>> {
        let mut line = String::new();
        let read = self.reader.read_line(&mut line);
        if matches!(read, Ok(0)) {
            return Ok(None);
        }
        self.number += 1;
        read?;
        let line = line.strip_suffix('\n').unwrap_or(&line);
        let (line, commented) = match line.split_once('#') {
            Some((line, _)) => (line, true),
            None => (line, false),
        };
        Ok(Some(match line.strip_suffix('\\') {
            Some(begun) if !commented => (begun.to_owned(), true),
            _ => (line.to_owned(), false),
        }))
    }

    /// Returns the next command that has at least one word, or `None` at the end of the file.
    fn command(&mut self) -> io::Result<Option<Line>> {
        loop {
            let Some((mut whole, mut goes_on)) = self.line()? else { return Ok(None) };
            while goes_on {
                let Some((more, again)) = self.line()? else { return Err(wrong(NO_MORE)) };
                whole.push_str(&more);
                goes_on = again;
            }
            let words = split(&whole)?;
            if !words.is_empty() {
                return Ok(Some(Line { number: self.number, words }));
            }
        }
    }
}

impl<R: BufRead> Iterator for Lines<R> {
    type Item = io::Result<Line>;

    fn next(&mut self) -> Option<Self::Item> {
        self.command().transpose()
    }
}

const NO_MORE: &str =
    "Missing continuation line: remove the backslash at the end of the command, or add the rest";
const NO_END: &str =
    "Unterminated quoted string: close the quote; a # begins a comment between quotes, too";

fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Splits a line into words.
///
/// # Errors
///
/// Returns an error if a word begins with a quote that is not closed.
fn split(line: &str) -> io::Result<Vec<String>> {
    let blank = |c: char| matches!(c, ' ' | '\t' | '\r' | '\n');
    let mut words = Vec::new();
    let mut rest = line.trim_start_matches(blank);
    while let Some(first) = rest.chars().next() {
        let (word, behind) = match first {
            '\'' | '"' => rest[1..].split_once(first).ok_or_else(|| wrong(NO_END))?,
            _ => rest.split_once(blank).unwrap_or((rest, "")),
        };
        words.push(word.to_owned());
        rest = behind.trim_start_matches(blank);
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<(usize, Vec<String>)> {
        let lines = Lines::new(text.as_bytes()).map(|line| line.expect("it can be read"));
        lines.map(|line| (line.number, line.words)).collect()
    }

    #[test]
    fn comments_continuations_and_quotes() {
        let text = "# all of it\n\n  qdisc add dev d0 root # fq\nqdisc \\\n  show \\\n\
                    dev 'd 0' \"a'b\"# c\n\tclass\r\nfilter";
        let words = |line: &str| line.split('|').map(str::to_owned).collect::<Vec<_>>();
        let want = [
            (3, words("qdisc|add|dev|d0|root")),
            (6, words("qdisc|show|dev|d 0|a'b")),
            (7, words("class")),
            (8, words("filter")),
        ];
        assert_eq!(lines(text), want);
    }

    #[test]
    fn the_end_may_come_anywhere() {
        assert!(lines("").is_empty());
        // A comment ends the command, even if a backslash stands before the comment.
        for text in ["a \\ # b\nc", "a \\#b\nc"] {
            let want = [(1, vec!["a".into(), "\\".into()]), (2, vec!["c".into()])];
            assert_eq!(lines(text), want, "{text}");
        }
    }

    /// What `tc` refuses is refused, at the line where the file goes wrong; a `#` begins a comment
    /// anywhere, even between quotes.
    #[test]
    fn what_does_not_end_is_wrong() {
        for (text, number, why) in [
            ("a\nb 'c\nd", 2, NO_END),
            ("a\nb \"c # d\"", 2, NO_END),
            ("a\n'", 2, NO_END),
            ("a\n\nb \\\nc \\\n", 4, NO_MORE),
            ("a\nb \\", 2, NO_MORE),
        ] {
            let mut lines = Lines::new(text.as_bytes());
            assert!(lines.next().is_some_and(|line| line.is_ok()), "{text}");
            let error = lines.next().expect("an error").expect_err(text);
            assert_eq!((lines.number(), error.to_string().as_str()), (number, why), "{text}");
        }
        let mut lines = Lines::new(&b"\n\xFF\n"[..]);
        assert!(lines.next().is_some_and(|line| line.is_err()) && lines.number() == 2);
    }
}
