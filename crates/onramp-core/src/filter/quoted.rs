//! Strings in double quotes, such as `"ab c"` in `nbyte("ab c" at 0 layer 1)`.
//!
//! Source: behaviour of iproute2 6.1's expressions, tried string by string.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Splits a text that begins with a double quote or a backslash into a string and the rest of the
/// text. A string that needs no quotes is returned without them, any other with them. If the text
/// begins with no string, returns an empty string and the text behind its first character.
pub(super) fn split(text: &str) -> (&str, &str) {
    // If there are backslashes in front of the quotes, no shell has removed them yet.
    let escaped = text.starts_with('\\');
    let string = text.strip_prefix('\\').unwrap_or(text);
    let end = string.strip_prefix('"').and_then(|inside| end(inside, escaped));
    let Some(end) = end else { return ("", &text[1..]) };
    let (string, behind) = string.split_at(end + 2);
    let inside = inside(string);
    let is_word = !inside.is_empty() && inside.bytes().all(needs_no_quotes);
    (if is_word { inside } else { string }, behind)
}

/// Returns the place of the quote that ends the string `inside`, which begins behind its first
/// quote. `None`: no quote ends it.
fn end(inside: &str, escaped: bool) -> Option<usize> {
    let mut behind_backslash = false;
    inside.bytes().position(|byte| {
        let ends = byte == b'"' && behind_backslash == escaped;
        behind_backslash = byte == b'\\' && !behind_backslash;
        ends
    })
}

/// Returns what is between the quotes of a string.
fn inside(string: &str) -> &str {
    let inside = string.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let inside = inside.unwrap_or(string);
    let backslashes = inside.bytes().rev().take_while(|byte| *byte == b'\\').count();
    // An odd number is that of a string whose quotes both have a backslash in front.
    &inside[..inside.len() - backslashes % 2]
}

fn needs_no_quotes(byte: u8) -> bool {
    !byte.is_ascii() || byte.is_ascii_graphic() && !b"'\"\\()#".contains(&byte)
}

/// Returns the bytes that a word means: those between its quotes, if it has any, with the bytes
/// that backslashes describe as in C. `None`: a number behind a backslash is no byte.
pub(super) fn bytes(word: &str) -> Option<Vec<u8>> {
    if !word.starts_with('"') {
        return Some(word.as_bytes().to_vec());
    }
    let mut rest = inside(word).as_bytes();
    let mut bytes = Vec::new();
    while let Some((first, behind)) = rest.split_first() {
        let (byte, behind) = if *first == b'\\' { escape(behind)? } else { (*first, behind) };
        bytes.push(byte);
        rest = behind;
    }
    Some(bytes)
}

/// Returns the byte that the text behind a backslash describes, and the rest of the text.
fn escape(text: &[u8]) -> Option<(u8, &[u8])> {
    let number = |digits: &[u8], base| {
        let digits = std::str::from_utf8(digits).ok()?;
        u8::try_from(u32::from_str_radix(digits, base).ok()?).ok()
    };
    let digits = |text: &[u8], most, is: fn(&u8) -> bool| {
        text.iter().take(most).take_while(|byte| is(byte)).count()
    };
    let (first, behind) = text.split_first()?;
    let octal = digits(text, 3, |byte| matches!(byte, b'0'..=b'7'));
    let hex = digits(behind, 2, u8::is_ascii_hexdigit);
    Some(match first {
        b'0'..=b'7' => (number(&text[..octal], 8)?, &text[octal..]),
        b'8' | b'9' => return None,
        b'x' if hex > 0 => (number(&behind[..hex], 16)?, &behind[hex..]),
        b'n' => (b'\n', behind),
        b't' => (b'\t', behind),
        b'r' => (b'\r', behind),
        b'a' => (0x07, behind),
        b'b' => (0x08, behind),
        b'v' => (0x0b, behind),
        b'f' => (0x0c, behind),
        other => (*other, behind),
    })
}

/// Returns a word as a line can have it: a string is written so that a shell, a configuration and
/// the reader of filters take it as the same bytes.
pub(super) fn again(word: &str) -> Cow<'_, str> {
    let Some(bytes) = bytes(word).filter(|_| word.starts_with('"')) else { return word.into() };
    let mut text = "'\"".to_owned();
    for byte in bytes {
        if byte == b' ' || byte.is_ascii() && needs_no_quotes(byte) || b"()".contains(&byte) {
            text.push(byte.into());
        } else {
            // Writing to a string cannot fail.
            let _ = write!(text, "\\{byte:03o}");
        }
    }
    (text + "\"'").into()
}
