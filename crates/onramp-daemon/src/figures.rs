//! Formats numbers for people, as short as possible.

/// Formats a rate given in bytes per second as bits per second.
pub(crate) fn rate(bytes: Option<f64>) -> String {
    known(bytes, |bytes| scaled(bytes * 8.0, &["bit", "Kbit", "Mbit", "Gbit", "Tbit"]))
}

/// Formats a number of items, or of items per second.
pub(crate) fn count(number: Option<f64>) -> String {
    known(number, |number| {
        if number < 1000.0 && number.fract() == 0.0 {
            format!("{number}")
        } else {
            scaled(number, &["", "k", "M", "G", "T"])
        }
    })
}

/// Formats a time given in nanoseconds.
pub(crate) fn time(ns: Option<f64>) -> String {
    known(ns, |ns| scaled(ns, &["ns", "us", "ms", "s"]))
}

fn known(figure: Option<f64>, write: impl Fn(f64) -> String) -> String {
    figure.map_or_else(|| "-".to_owned(), write)
}

/// Formats `value` with three digits and the unit that fits its size; each unit is 1000 times the
/// unit before it.
fn scaled(mut value: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while unit + 1 < units.len() && value >= 999.5 {
        value /= 1000.0;
        unit += 1;
    }
    let places = match value {
        0.0 | 99.95.. => 0,
        9.995.. => 1,
        _ => 2,
    };
    format!("{value:.places$}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        let rates = [
            (0.0, "0bit"),
            (0.125, "1.00bit"),
            (125.0, "1.00Kbit"),
            (1_249_000.0, "9.99Mbit"),
            (1_250_000.0, "10.0Mbit"),
            (124_990_000.0, "1.00Gbit"),
            (12_500_000_000_000.0, "100Tbit"),
            (1e16, "80000Tbit"),
        ];
        for (bytes, text) in rates {
            assert_eq!(rate(Some(bytes)), text, "{bytes}");
        }
        assert_eq!(
            (count(Some(7.0)), count(Some(0.5)), count(None)),
            ("7".into(), "0.50".into(), "-".into())
        );
        assert_eq!((count(Some(999.0)), count(Some(1000.0))), ("999".into(), "1.00k".into()));
        assert_eq!((time(Some(1_234_567.0)), time(Some(64.0))), ("1.23ms".into(), "64.0ns".into()));
    }
}
