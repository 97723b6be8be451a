//! Splits Rust source into code and comments, so that each rule of `tidy` looks only at the part
//! that it is about.

/// One line of source.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    /// The code of the line, without the contents of strings.
    pub(crate) code: String,
    /// The comment of the line, with its slashes.
    pub(crate) comment: String,
}

impl Line {
    /// Whether `word` occurs in the code as a whole word.
    pub(crate) fn has_word(&self, word: &str) -> bool {
        has_word(&self.code, word)
    }
}

/// Whether `word` occurs in `text` with no letter, digit or underscore beside it.
pub(crate) fn has_word(text: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(part) && !after.is_some_and(part)
    })
}

enum State {
    Code,
    /// Inside a block comment, at this depth of nesting.
    Block(u32),
    Text,
    /// Inside a raw string that ends at a quote followed by this number of hashes.
    Raw(usize),
}

/// Splits `source` into lines.
pub(crate) fn lines(source: &str) -> Vec<Line> {
    let mut state = State::Code;
    source.lines().map(|line| split(line, &mut state)).collect()
}

fn split(line: &str, state: &mut State) -> Line {
    let mut out = Line::default();
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        let mut used = c.len_utf8();
        match *state {
            State::Code if rest.starts_with("//") => {
                out.comment += rest;
                break;
            }
            State::Code if rest.starts_with("/*") => {
                (*state, used) = (State::Block(1), 2);
            }
            State::Code => {
                if let Some((hashes, len)) = raw_start(rest, &out.code) {
                    (*state, used) = (State::Raw(hashes), len);
                } else if c == '"' {
                    *state = State::Text;
                } else if let Some(len) = char_literal(rest) {
                    used = len;
                } else {
                    out.code.push(c);
                }
            }
            State::Block(depth) if rest.starts_with("*/") => {
                *state = if depth == 1 { State::Code } else { State::Block(depth - 1) };
                used = 2;
            }
            State::Block(depth) if rest.starts_with("/*") => {
                (*state, used) = (State::Block(depth + 1), 2);
            }
            State::Block(_) => out.comment.push(c),
            State::Text if c == '\\' => used += rest[1..].chars().next().map_or(0, char::len_utf8),
            State::Text if c == '"' => *state = State::Code,
            State::Raw(hashes) if raw_end(rest, hashes) => {
                (*state, used) = (State::Code, 1 + hashes);
            }
            State::Text | State::Raw(_) => {}
        }
        rest = &rest[used..];
    }
    out
}

/// If `rest` starts a raw string, returns its number of hashes and the length of its opening.
fn raw_start(rest: &str, before: &str) -> Option<(usize, usize)> {
    if before.chars().next_back().is_some_and(|c| c.is_alphanumeric() && c != 'b') {
        return None;
    }
    let body = rest.strip_prefix('r')?;
    let hashes = body.bytes().take_while(|&b| b == b'#').count();
    body[hashes..].starts_with('"').then_some((hashes, hashes + 2))
}

fn raw_end(rest: &str, hashes: usize) -> bool {
    let after = rest.strip_prefix('"');
    after.is_some_and(|tail| tail.bytes().take(hashes).filter(|&b| b == b'#').count() == hashes)
}

/// If `rest` starts with a character literal, returns its length. Returns `None` if it starts with
/// a lifetime.
fn char_literal(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix('\'')?;
    let first = body.chars().next()?;
    if first == '\\' {
        let escaped = body[1..].chars().next()?.len_utf8();
        return body[1 + escaped..].find('\'').map(|at| 1 + 1 + escaped + at + 1);
    }
    let len = first.len_utf8();
    body[len..].starts_with('\'').then_some(1 + len + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(source: &str) -> String {
        lines(source).into_iter().map(|line| line.code).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn comments_and_strings_are_not_code() {
        assert_eq!(code("a(\"unsafe // x\"); // unsafe"), "a(); ");
        assert_eq!(code("a(r#\"unsafe \" \"#, b)"), "a(, b)");
        assert_eq!(code("a /* unsafe /* x */ y */ b"), "a  b");
        assert_eq!(code("let x = \"one\nunsafe\\\" two\"; c"), "let x = \n; c");
        assert_eq!(code("f('\"', '\\'', 'a, b\"unsafe\")"), "f(, , 'a, b)");
    }

    #[test]
    fn the_comment_of_a_line_is_kept() {
        assert_eq!(lines("a; // Relaxed: why")[0].comment, "// Relaxed: why");
        assert_eq!(lines("/* one\ntwo */ b")[1].comment, "two ");
    }

    #[test]
    fn words_have_borders() {
        assert!(has_word("pub unsafe fn", "unsafe"));
        assert!(!has_word("unsafe_code", "unsafe"));
        assert!(!has_word("an_unsafe", "unsafe"));
    }
}
