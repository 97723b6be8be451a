//! The commands `onramp wire set` and `onramp wire list`, for wires that run.

use std::fmt::Write as _;

use anyhow::{Result, anyhow};
use onramp_wire::{Change, Which};
use serde_json::{Value, json};

use super::control;
use crate::error::{line, tell, usage};
use crate::output;

/// Change a wire while it runs
///
/// Packets that wait in the wire are kept as far as the new qdiscs keep them. The command is for
/// the wire of its own client (by the environment variable ONRAMP_WIRE), or else for the only wire
/// of the user that runs. Values change the qdisc that has them: a rate that of `tbf`, `cake` or
/// `netem`; delay, jitter and loss those of `netem`. If there is none, one is added, but not to a
/// tree with classes or filters.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp wire set rate 1mbit delay 50ms
  onramp wire set down loss 2%
  onramp wire set link down
  onramp wire set --wire 4711 --up 'cake bandwidth 5mbit' --then 'netem delay 15ms'")]
pub(crate) struct Args {
    /// The wire, by the number of its process (as listed by `onramp wire list`) or by the path of
    /// its socket
    #[arg(long, value_name = "PID")]
    wire: Option<String>,
    /// The new qdisc in both directions, in the syntax of tc, in place of all that are there
    #[arg(long, value_name = "QDISC")]
    qdisc: Option<String>,
    /// The new qdisc from the client to the server, instead of --qdisc
    #[arg(long, value_name = "QDISC")]
    up: Option<String>,
    /// The new qdisc from the server to the client, instead of --qdisc
    #[arg(long, value_name = "QDISC")]
    down: Option<String>,
    /// A further qdisc behind each new one. May be given several times
    #[arg(long, value_name = "QDISC")]
    then: Vec<String>,
    /// [up | down | both] and then rate RATE, delay TIME, jitter TIME, loss PERCENT, link up or
    /// link down
    #[arg(value_name = "CHANGE")]
    words: Vec<String>,
}

/// The words of the changes of one direction.
type Lists = Vec<Vec<String>>;

impl Args {
    /// Returns what changes in both directions, first up.
    fn changes(&self) -> Result<[Lists; 2]> {
        if self.qdisc.is_some() && self.up.is_some() && self.down.is_some() {
            let why = "--qdisc has no effect beside --up and --down: leave one of them out";
            return Err(usage(why));
        }
        if !self.then.is_empty() && [&self.qdisc, &self.up, &self.down].iter().all(|q| q.is_none())
        {
            return Err(usage("--then stands behind a new qdisc: give --qdisc, --up or --down"));
        }
        let own = [(&self.up, "--up"), (&self.down, "--down")];
        let mut lists = [Vec::new(), Vec::new()];
        for (list, (own, option)) in lists.iter_mut().zip(own) {
            let (qdisc, option) = match (own, &self.qdisc) {
                (Some(own), _) => (own, option),
                (None, Some(both)) => (both, "--qdisc"),
                (None, None) => continue,
            };
            let stages = [qdisc].into_iter().chain(&self.then);
            let stages: Vec<_> = stages.map(|stage| &**stage).collect();
            list.push(checked(&format!("qdisc {}", stages.join(" then ")), option)?);
        }
        if !self.words.is_empty() {
            let (which, words) = directed(&self.words.join(" "), "set")?;
            for (list, _) in lists.iter_mut().zip(which.each()).filter(|(_, is_its)| *is_its) {
                list.push(words.clone());
            }
        }
        if lists.iter().all(Vec::is_empty) {
            let why = "expected what changes, such as `rate 1mbit` or `link down`, or --qdisc";
            return Err(usage(why));
        }
        Ok(lists)
    }
}

/// Reads `up`, `down` or `both`, if the text begins so, and the words of a change.
fn directed(text: &str, option: &str) -> Result<(Which, Vec<String>)> {
    let mut words = text.split_ascii_whitespace();
    let which = words.clone().next().and_then(Which::read);
    if which.is_some() {
        words.next();
    }
    let rest: Vec<_> = words.collect();
    Ok((which.unwrap_or(Which::Both), checked(&rest.join(" "), option)?))
}

/// Returns the words of a text that are a change.
fn checked(text: &str, option: &str) -> Result<Vec<String>> {
    let words: Vec<_> = text.split_ascii_whitespace().collect();
    Change::read(&words).map_err(|why| usage(format!("{option}: {why}")))?;
    Ok(words.into_iter().map(str::to_owned).collect())
}

/// Returns the changes of both directions, first up, that the options `--set` ask for.
pub(super) fn at_start(options: &[String]) -> Result<[Vec<Change>; 2]> {
    let mut changes = [Vec::new(), Vec::new()];
    for text in options {
        let (which, words) = directed(text, "--set")?;
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let read = Change::read(&words).map_err(|error| usage(error.to_string()))?;
        for (list, _) in changes.iter_mut().zip(which.each()).filter(|(_, is_its)| *is_its) {
            list.extend(read.iter().cloned());
        }
    }
    Ok(changes)
}

/// Runs `onramp wire set`.
pub(crate) fn run(args: &Args) -> Result<()> {
    let [up, down] = args.changes()?;
    let (path, chosen) = control::find(args.wire.as_deref())?;
    let answer = control::ask(&path, &json!({ "change": { "up": up, "down": down } }))?;
    if let Some(pid) = chosen {
        // The user named no wire, and may not know that another one has ended. A wire of an older
        // version does not say who its client is.
        let client = answer["client"].as_str().map(|client| format!(": {client}"));
        tell(&format!("changed the only wire that runs, {pid}{}", client.unwrap_or_default()));
    }
    Ok(())
}

/// List the wires that run
///
/// Lists the wires of the calling user, each with the number of its process, its client, and the
/// qdiscs of both directions at present, as lines of tc. Says so of a wire that does not answer
/// within two seconds.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  onramp wire list")]
pub(crate) struct ListArgs {}

/// Runs `onramp wire list`.
pub(crate) fn list(_args: &ListArgs) -> Result<()> {
    let mut text = String::new();
    for (found, shown) in control::show(control::running()) {
        text += &listed(&found.pid, shown.as_ref())?;
    }
    output::print(&text)
}

/// Returns the lines about a wire, from its answer. Control characters, which another program may
/// have sent, are made visible.
fn listed(pid: &str, shown: Option<&Value>) -> Result<String> {
    let Some(shown) = shown else {
        return Ok(format!("{}  (does not answer: its process may be stopped)\n", line(pid)));
    };
    let client = shown["client"].as_str().ok_or_else(|| anyhow!("a wire answers nonsense"))?;
    let mut text = format!("{}  {}\n", line(pid), line(client));
    for way in ["up", "down"] {
        let lines = shown[way].as_array().into_iter().flatten().filter_map(Value::as_str);
        for own in lines {
            let _ = writeln!(text, "    {way:<4}  {}", line(own));
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn changes(words: &[&str]) -> Result<[String; 2]> {
        let line = Line::parse_from(["set"].iter().chain(words));
        let lists = line.args.changes()?;
        Ok(lists
            .map(|lists| lists.iter().map(|list| list.join(" ")).collect::<Vec<_>>().join("; ")))
    }

    #[test]
    fn what_a_wire_answers_cannot_control_the_terminal() {
        let shown = json!({ "client": "sh\u{1b}[2J\n", "up": ["qdisc\u{7}"], "down": ["a", "b"] });
        let text = listed("7\u{8}", Some(&shown)).expect("it has a client");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[1..], ["    up    qdisc\\u{7}", "    down  a", "    down  b"]);
        assert!(lines[0].contains("7\\u{8}  sh\\u{1b}[2J"), "{text}");
        listed("7", Some(&json!({}))).expect_err("no client");
    }

    #[test]
    fn options_and_words_are_changes_of_their_directions() {
        let both = changes(&["rate", "1mbit", "link", "up"]).expect("changes");
        assert_eq!(both, ["rate 1mbit link up", "rate 1mbit link up"]);
        assert_eq!(changes(&["down", "loss", "1%"]).expect("changes"), ["", "loss 1%"]);
        let words = ["--up", "fq", "--then", "netem delay 1ms", "both", "link", "down"];
        let both = changes(&words).expect("changes");
        assert_eq!(both, ["qdisc fq then netem delay 1ms; link down", "link down"]);
        let own = changes(&["--qdisc", "fq", "--down", "pfifo"]).expect("changes");
        assert_eq!(own, ["qdisc fq", "qdisc pfifo"]);
        for (words, why) in [
            (&[][..], "expected what changes"),
            (&["down"], "expected what changes"),
            (&["rate"], "rate"),
            (&["--then", "fq"], "--then"),
            (&["--qdisc", "fifo"], "--qdisc: "),
            (&["--qdisc", "fq", "--up", "fq", "--down", "fq"], "no effect"),
        ] {
            let error = changes(words).expect_err(why).to_string();
            assert!(error.contains(why), "{words:?}: {error}");
        }
    }
}
