//! Messages as words, as an engine's script reads and writes them.

use std::fmt;
use std::str::FromStr;

use crate::{Act, Answer, Claim, Knot, MemberView, Place, Report};

/// Error: words that are no message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextError(
    /// The words that were not understood.
    pub String,
);

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not understood: {:?}", self.0)
    }
}

impl std::error::Error for TextError {}

/// Writes the weight and then each knot's level and rate, all divided by `;`.
impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.weight())?;
        self.knots().iter().try_for_each(|knot| write!(f, ";{};{}", knot.level, knot.rate))
    }
}

impl FromStr for Claim {
    type Err = TextError;
    fn from_str(text: &str) -> Result<Self, TextError> {
        let wrong = || TextError(text.to_owned());
        let numbers: Vec<u64> =
            text.split(';').map(str::parse).collect::<Result<_, _>>().map_err(|_| wrong())?;
        let (weight, rest) = numbers.split_first().ok_or_else(wrong)?;
        let (pairs, []) = rest.as_chunks() else { return Err(wrong()) };
        let knots = pairs.iter().map(|[level, rate]| Knot { level: *level, rate: *rate });
        Self::from_parts(*weight, knots.collect()).ok_or_else(wrong)
    }
}

/// A number, or nothing.
struct Optional<T>(Option<T>);

impl<T: fmt::Display> fmt::Display for Optional<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|number| number.fmt(f))
    }
}

/// Counts the bytes that are written.
struct Length(u64);

impl fmt::Write for Length {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len() as u64;
        Ok(())
    }
}

impl Length {
    fn add(&mut self, word: fmt::Arguments<'_>, around: u64) {
        self.0 += around;
        fmt::Write::write_fmt(self, word).expect("counting does not fail");
    }
}

impl Act {
    /// Returns the message as words: what to do, the number of places on the way, for each place
    /// whether it is a limit (1 or 0) and its remembered rate and reserve, and what is to be done.
    #[must_use]
    pub fn words(&self, way: &[Place]) -> Vec<String> {
        let mut words = Vec::new();
        self.each_word(way, |word| words.push(word.to_string()));
        words
    }

    fn each_word(&self, way: &[Place], mut word: impl FnMut(fmt::Arguments<'_>)) {
        let name = if matches!(self, Self::Report(_)) { "report" } else { "climb" };
        word(format_args!("{name}"));
        word(format_args!("{}", way.len()));
        for place in way {
            word(format_args!("{}", u8::from(place.is_limit)));
            word(format_args!("{}", place.remembered.rate));
            word(format_args!("{}", place.remembered.reserve));
        }
        match self {
            Self::Report(report) => {
                let Report { host, claim, life, turn, floor, holding, want, used } = report;
                word(format_args!("{host}"));
                word(format_args!("{claim}"));
                for number in [life, turn, floor, holding, want, used] {
                    word(format_args!("{number}"));
                }
            }
            Self::Climb { at, claim, want } => {
                word(format_args!("{at}"));
                word(format_args!("{claim}"));
                word(format_args!("{}", Optional(*want)));
            }
        }
    }

    /// Returns how long the words are, with `around` bytes more for each.
    pub(crate) fn len(&self, way: &[Place], around: u64) -> u64 {
        let mut sum = Length(0);
        self.each_word(way, |word| sum.add(word, around));
        sum.0
    }
}

impl Answer {
    /// Returns the answer as words: number, grant, whether the ledger is young (1 or 0), rate, the
    /// place that is due (empty: none), and for each member name, life, claim and what it holds.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        self.each_word(|word| words.push(word.to_string()));
        words
    }

    fn each_word(&self, mut word: impl FnMut(fmt::Arguments<'_>)) {
        word(format_args!("{}", self.turn));
        word(format_args!("{}", self.granted));
        word(format_args!("{}", u8::from(self.is_young)));
        word(format_args!("{}", self.rate));
        word(format_args!("{}", Optional(self.due)));
        for MemberView { name, life, claim, held } in &self.members {
            word(format_args!("{name}"));
            word(format_args!("{life}"));
            word(format_args!("{claim}"));
            word(format_args!("{held}"));
        }
    }

    /// Returns how long the words are, with `around` bytes more for each.
    pub(crate) fn len(&self, around: u64) -> u64 {
        let mut sum = Length(0);
        self.each_word(|word| sum.add(word, around));
        sum.0
    }

    /// Reads an answer from its words.
    ///
    /// # Errors
    ///
    /// [`TextError`] if the words are no answer.
    pub fn from_words<T: AsRef<str>>(words: &[T]) -> Result<Self, TextError> {
        let wrong = || TextError(words.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(" "));
        let number = |word: &T| word.as_ref().parse::<u64>().map_err(|_| wrong());
        let Some(([turn, granted, young, rate, due], rest)) = words.split_first_chunk() else {
            return Err(wrong());
        };
        let (members, []) = rest.as_chunks() else { return Err(wrong()) };
        let members = members.iter().map(|[name, life, claim, held]| {
            Ok(MemberView {
                name: name.as_ref().to_owned(),
                life: number(life)?,
                claim: claim.as_ref().parse()?,
                held: number(held)?,
            })
        });
        let due = match due.as_ref() {
            "" => None,
            due => Some(due.parse().map_err(|_| wrong())?),
        };
        Ok(Self {
            turn: number(turn)?,
            granted: number(granted)?,
            is_young: number(young)? != 0,
            rate: number(rate)?,
            members: members.collect::<Result<_, _>>()?,
            due,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let claim = Claim::sum(&[Claim::new(3, 10, 5_000), Claim::new(1, 20, 900)]);
        assert_eq!(claim.to_string().parse(), Ok(claim.clone()));
        let member = MemberView { name: "a".into(), life: u64::MAX, claim, held: 7 };
        let answer = Answer {
            turn: 5,
            granted: 6,
            is_young: true,
            rate: 9,
            members: vec![member.clone(), member],
            due: Some(1),
        };
        assert_eq!(Answer::from_words(&answer.words()), Ok(answer));
    }

    #[test]
    fn other_words_are_refused() {
        for claim in ["", "1", "0;1;1", "1;1", "1;5;5;5;6", "1;5;5;6;4", "1;-1;2", "x;1;1"] {
            assert!(claim.parse::<Claim>().is_err(), "{claim}");
        }
        for words in [&["1", "2", "0", "3"][..], &["1", "2", "0", "3", "x"], &["1"; 8]] {
            assert!(Answer::from_words(words).is_err(), "{words:?}");
        }
    }
}
