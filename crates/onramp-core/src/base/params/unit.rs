//! What a parameter counts.

/// What a parameter counts, and how `tc` reads and writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A plain number.
    Count,
    /// Packets, a plain number.
    Packets,
    /// Packets; read like a size, so that `1k` means 1,024.
    ScaledPackets,
    /// Bytes, a plain number.
    Bytes,
    /// Bytes, with a suffix or without.
    Size,
    /// As [`Unit::Size`]; behind a slash may stand a power of two: `15k/8`. It once said how many
    /// bytes a row of a table stands for, and has no meaning any more.
    Burst,
    /// Bytes per second; a bare number counts bits per second.
    Rate,
    /// Nanoseconds; a bare number counts microseconds.
    Usecs,
    /// Nanoseconds, also when bare.
    Nsecs,
    /// So many plain numbers in a row.
    List(usize),
    /// As many plain numbers as follow, at most so many.
    Many(usize),
    /// Values of these units in a row, of which those behind the first so many may be left out.
    Row(usize, &'static [Self]),
    /// A minor number, hexadecimal.
    Minor,
    /// Some bits of a byte, and which: `0x1/0x3`. In units of 1, and of 256.
    Masked,
    /// A probability: `0.02`. In units of 2^-32.
    Fraction,
    /// A probability: `2%`, or `2`. In units of 2^-32.
    Percent,
    /// One of these words, which stands for itself and takes no value. The value is its place.
    Words(&'static [&'static str]),
    /// One of these words, behind the option's name. The value is its place.
    Choice(&'static [&'static str]),
    /// A plain number that may be negative, of 32 bits; kept as their two's complement.
    Signed,
    /// Nanoseconds, as [`Unit::Usecs`], or one of these words in place of the option and its value.
    /// The words are aliases of the option, too.
    Named(&'static [(&'static str, u64)]),
    /// As [`Unit::Rate`], or this word in place of the option and its value: zero. The word is an
    /// alias of the option, too.
    RateOr(&'static str),
    /// Rows that a word tells apart: the list begins with the place of the form.
    Forms(&'static [Form]),
    /// A service curve: `m1 RATE d TIME m2 RATE`. In a list, in bytes per second and nanoseconds.
    Curve,
    /// Places in a row, at most so many: `2@0 1@2` are two from 0 on, and that numbered 2. Each
    /// is kept as 65,536 times how many they are, and the first.
    Ranges(usize),
    /// A number with a fraction: `0.16`. In units of 2^-8.
    Gain,
    /// A time, as [`Unit::Usecs`], or packets: `5p`. Twice the nanoseconds, or twice the packets
    /// and one.
    TimeOrPackets,
}

/// A form of [`Unit::Forms`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// The word it begins with; of the first form, it may be left out.
    pub word: &'static str,
    /// How many values it must have.
    pub must: usize,
    /// What these are.
    pub units: &'static [Unit],
}

impl Unit {
    /// Whether `tc` reads it into 32 bits.
    pub(super) fn is_short(self) -> bool {
        use Unit::{Burst, Bytes, Count, Packets, ScaledPackets, Size};
        matches!(self, Burst | Bytes | Count | Packets | ScaledPackets | Size)
    }

    pub(super) fn metavariable(self) -> &'static str {
        match self {
            Self::Count => "NUMBER",
            Self::Packets | Self::ScaledPackets => "PACKETS",
            Self::Bytes => "BYTES",
            Self::Size | Self::Burst => "SIZE",
            Self::Rate | Self::RateOr(_) => "RATE",
            Self::Usecs | Self::Nsecs | Self::Named(_) => "TIME",
            Self::Minor => "MINOR",
            Self::Masked => "VALUE/MASK",
            Self::Fraction => "PROBABILITY",
            Self::Percent => "PERCENT",
            Self::Choice(_) => "NAME",
            Self::Signed => "NUMBER",
            Self::Curve => "CURVE",
            Self::Gain => "NUMBER",
            Self::TimeOrPackets => "TIME | PACKETS",
            Self::List(_) | Self::Many(_) | Self::Row(..) | Self::Words(_) => "",
            Self::Forms(_) | Self::Ranges(_) => "",
        }
    }
}
