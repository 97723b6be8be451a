//! The parsers of values that many options have: whole numbers, addresses and rates. Their messages
//! are for people at a terminal, and say what to write.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use onramp_core::Rate;

/// The highest rate of a link, in bytes per second, as in `tc`.
const RATE_MAX: u64 = 1_000_000_000_000_000;

/// Returns the parser of a whole number in `range`.
pub(crate) fn whole<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| {
            format!("give a whole number, {} to {}, without a unit", range.start(), range.end())
        })
    }
}

/// Parses the seed of random numbers.
pub(crate) fn seed(text: &str) -> Result<u64, String> {
    whole(0..=u64::MAX)(text)
}

/// Parses a number that may have a fraction.
pub(crate) fn number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| "give a number without a unit, such as 5 or 0.5".to_owned())
}

/// Parses an address with a port.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "give ADDRESS:PORT, such as 127.0.0.1:9100 or [::1]:9100".to_owned())
}

/// Parses a rate. A rate without a unit, which `tc` reads as bits per second, is an error, because
/// hardly any user means that.
pub(crate) fn rate(text: &str) -> Result<Rate, String> {
    let expected =
        "expected a rate with its unit, such as 10mbit or 1mbps (bytes), 8bit to 8000tbit";
    let unit = text.parse::<f64>().is_err();
    let rate = text
        .parse::<Rate>()
        .ok()
        .filter(|rate| (1..=RATE_MAX).contains(&rate.as_bytes_per_second()));
    rate.filter(|_| unit).ok_or_else(|| expected.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_have_a_range_and_no_unit() {
        let parse = whole::<u16>(1..=300);
        assert_eq!((parse("1"), parse("300")), (Ok(1), Ok(300)));
        for wrong in ["", "0", "301", "x", "5ms", "1.0", "1e2", "-1", "99999999999999999999"] {
            let why = parse(wrong).expect_err(wrong);
            assert_eq!(why, "give a whole number, 1 to 300, without a unit");
        }
        assert_eq!(seed("18446744073709551615"), Ok(u64::MAX));
        assert!(whole::<u8>(0..=u64::MAX)("256").is_err(), "it does not fit the type");
    }

    #[test]
    fn addresses_have_a_port() {
        for right in ["127.0.0.1:9100", "[::1]:9100"] {
            assert_eq!(address(right).map(|it| it.port()), Ok(9100), "{right}");
        }
        for wrong in ["9100", ":9100", "127.0.0.1", "localhost:9100", ""] {
            assert!(address(wrong).is_err_and(|why| why.contains("ADDRESS:PORT")), "{wrong}");
        }
    }

    #[test]
    fn rates() {
        assert_eq!(rate("10mbit"), Ok(Rate::bytes_per_second(1_250_000)));
        assert_eq!(rate("8000tbit"), Ok(Rate::bytes_per_second(RATE_MAX)));
        for wrong in ["10", "0mbit", "fast", "9000tbit", "99999999999tbit", "", "-1mbit", "1e3"] {
            let error = rate(wrong).expect_err(wrong);
            assert!(error.contains("10mbit") && error.contains("8000tbit"), "{wrong}: {error}");
        }
    }
}
