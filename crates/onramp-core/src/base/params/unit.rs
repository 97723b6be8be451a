//! The units of options.

/// The unit of an option's value, which decides how `tc` reads and writes the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A plain number without a unit.
    Count,
    /// A number of packets, written as a plain number.
    Packets,
    /// A number of packets, read like a size, so that `1k` means 1,024.
    ScaledPackets,
    /// A number of bytes, written as a plain number.
    Bytes,
    /// A number of bytes, with or without a suffix.
    Size,
    /// A number of bytes as for [`Unit::Size`], optionally followed by a slash and a power of two:
    /// `15k/8`. The power of two was once the cell size of the kernel's rate table, and is ignored
    /// now.
    Burst,
    /// A rate, stored in bytes per second. A number that the user writes without a suffix means
    /// bits per second.
    Rate,
    /// A time, stored in nanoseconds. A number that the user writes without a suffix means
    /// microseconds.
    Usecs,
    /// A time, stored in nanoseconds. A number that the user writes without a suffix means
    /// nanoseconds.
    Nsecs,
    /// Plain numbers in a row, exactly as many as the variant's field says.
    List(usize),
    /// Plain numbers in a row: at least one, and at most as many as the variant's field says.
    Many(usize),
    /// Values in a row, each of its own unit. The variant's first field says how many of the values
    /// are required; the later values may be left out.
    Row(usize, &'static [Self]),
    /// The minor number of a class, hexadecimal.
    Minor,
    /// Some bits of a byte, and a mask that selects which bits count: `0x1/0x3`. Stored as the bits
    /// plus 256 times the mask.
    Masked,
    /// A probability such as `0.02`, stored as its product with 2^32 - 1.
    Fraction,
    /// A probability such as `2%` or `2`, in percent, stored as its product with 2^32 - 1.
    Percent,
    /// The option is one of the variant's words, without a name before it or a value after it. The
    /// value is the word's index.
    Words(&'static [&'static str]),
    /// One of the variant's words, after the option's name. The value is the word's index.
    Choice(&'static [&'static str]),
    /// A plain number of 32 bits that may be negative, stored as its two's complement.
    Signed,
    /// A time as for [`Unit::Usecs`], or one of the variant's words in place of the option's name
    /// and value. The number after each word is the time in nanoseconds that the word means. The
    /// words are also aliases of the option.
    Named(&'static [(&'static str, u64)]),
    /// A rate as for [`Unit::Rate`], or the variant's word in place of the option's name and value,
    /// which means a rate of zero. The word is also an alias of the option.
    RateOr(&'static str),
    /// A value that users can write in one of several forms, such as `random 2%` or `state 1% 5%`
    /// for the loss of `netem`. A form is a word and a row of values. Stored as a list: the index
    /// of the form, then the values.
    Forms(&'static [Form]),
    /// A service curve: `m1 RATE d TIME m2 RATE`. Stored as a list of these three numbers, in bytes
    /// per second and nanoseconds.
    Curve,
    /// Ranges of queue numbers, at most as many as the variant's field says: `2@0 1@2` means two
    /// queues from number 0 on, and one queue from number 2 on. Each range is stored as 65,536
    /// times its length, plus its first number.
    Ranges(usize),
    /// A number with a fraction, such as `0.16`, stored in units of 2^-8.
    Gain,
    /// A time as for [`Unit::Usecs`], or a number of packets such as `5p`. Stored as twice the
    /// nanoseconds, or as twice the packets plus one.
    TimeOrPackets,
}

/// One of the forms in which users can write the value of an option: a word, and a row of values
/// after it (see [`Unit::Forms`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// The word with which users begin a value in this form, such as `random`. In the first form of
    /// an option, users may leave out the word.
    pub word: &'static str,
    /// Number of values after the word that users must give; they may leave out the later ones.
    pub must: usize,
    /// The units of the values after the word, in order.
    pub units: &'static [Unit],
}

impl Unit {
    /// Whether `tc` reads a value of this unit into 32 bits.
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
