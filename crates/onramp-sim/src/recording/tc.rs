//! Removes from a `tc` command the words that have no effect with the `tc` of the recording
//! machine.

/// Words for options of `netem` after which a correlation may stand, and how many numbers stand
/// before the correlation, in `tc` 6.1.
const FOLLOWING: &[(&str, usize)] =
    &[("delay", 2), ("latency", 2), ("loss", 1), ("drop", 1), ("reorder", 1), ("corrupt", 1)];

/// Returns `line`, a `tc` command, without the words that have no effect on the recording machine.
/// According to tc-red(8) and tc-netem(8) these words should have an effect, and in Onramp they
/// have one:
///
/// - `adaptive` of `red`: `tc` sends this flag in a newer field of its message to the kernel.
///   Linux 7.2 shows the flag, but starts the timer that adapts the probability only if the flag is
///   in the older field.
/// - The correlation of `duplicate` in `netem`: `tc` does not send it unless another option has a
///   correlation, too.
pub(super) fn handed_over(line: &str) -> String {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    let behind = |words: &[&str], kind| words.iter().position(|word| *word == kind);
    if behind(&words, "red").is_some() {
        words.retain(|word| !matches!(*word, "adaptive" | "adaptative"));
    }
    if let Some(kind) = behind(&words, "netem")
        && let Some(duplicate) = words.iter().position(|word| *word == "duplicate")
    {
        let follows = |(key, before): &(&str, usize)| {
            let at = words.iter().skip(kind).position(|word| word == key);
            at.is_some_and(|at| numbers(&words[kind + at + 1..]) > *before)
        };
        if !FOLLOWING.iter().any(follows) && numbers(&words[duplicate + 1..]) > 1 {
            words.remove(duplicate + 2);
        }
    }
    words.join(" ")
}

/// Returns the number of numbers with which `words` begins. The word `random`, which may stand
/// before the numbers of a loss, is skipped.
fn numbers(words: &[&str]) -> usize {
    let words = words.strip_prefix(&["random"]).unwrap_or(words);
    words.iter().take_while(|word| word.starts_with(|c: char| c.is_ascii_digit())).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_without_effect_are_left_out() {
        for (line, handed) in [
            (
                "qdisc add dev x root red limit 9 adaptive ecn",
                "qdisc add dev x root red limit 9 ecn",
            ),
            ("netem duplicate 5% 20% limit 9", "netem duplicate 5% limit 9"),
            (
                "netem duplicate 5% 20% loss gemodel 5% 10%",
                "netem duplicate 5% loss gemodel 5% 10%",
            ),
            ("netem delay 1ms 1ms duplicate 5% 20%", "netem delay 1ms 1ms duplicate 5%"),
        ] {
            assert_eq!(handed_over(line), handed);
        }
        for line in [
            "netem delay 1ms 1ms 0% duplicate 5% 20%",
            "netem loss random 1% 10% duplicate 5% 20%",
            "netem duplicate 5% 20% corrupt 1% 1%",
            "netem duplicate 5%",
            "sfq redflowlimit 9 adaptive",
        ] {
            assert_eq!(handed_over(line), line);
        }
    }
}
