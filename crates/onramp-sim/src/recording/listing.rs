//! Compares, word for word, what `tc -s -d` shows at the end of a run: the kernel's output (its
//! listing) with Onramp's.

use onramp_core::show::{Out, Style};
use onramp_core::view::{Listed, Query};

use super::Case;
use super::machine::{MTU, PLACES, Played};

/// Returns the listing of Onramp's tree after a run: what `tc -s -d` shows of the qdiscs, the
/// classes, and the filters of the root and in front of it.
pub(super) fn of(case: &Case, played: &Played) -> String {
    let mut setup = case.setup.clone();
    for change in &case.changes {
        setup.apply(&change.line).expect("it was taken when the case was read");
    }
    let style = Style { stats: true, details: true, ..Style::default() };
    let listed = Listed::new(None, &setup, MTU, &played.views);
    let (mut qdiscs, mut classes) = (Out::new(style), Out::new(style));
    listed.qdiscs(Query::default(), &mut qdiscs);
    listed.classes(Query::default(), &mut classes);
    // The recorder asked `tc` for filters without the option `-d`.
    let mut filters = Out::new(Style { details: false, ..style });
    for (place, counted) in PLACES.iter().zip(&played.filters) {
        setup.show_counted(place, counted, &mut filters).expect("each is a place");
    }
    qdiscs.finish() + &classes.finish() + &filters.finish()
}

/// Returns the differences between Onramp's listing and the kernel's. Returns nothing if the case
/// does not contain the kernel's listing.
pub(super) fn differences(case: &Case, played: &Played) -> Vec<String> {
    let Some(theirs) = case.shown.as_ref().filter(|_| !case.gave_up) else { return Vec::new() };
    let changed = !case.changes.is_empty();
    compare(&of(case, played), theirs, changed)
}

/// Largest number of differences that are reported.
const TOLD_MAX: usize = 6;

/// Kinds of qdiscs whose classes are flows. The kernel's hash function, whose key only the kernel
/// knows, decides on the numbers of these classes.
const FLOWS: [&str; 4] = ["fq_codel", "fq_pie", "sfq", "cake"];

/// Kinds for which the kernel counts packets as sent that are dropped because `tc` changes the
/// qdisc, while Onramp counts them as dropped; see `docs/conformance.md`.
const SENT_BY_CHANGE: [&str; 3] = ["fq", "fq_codel", "fq_pie"];

/// Kinds for which the kernel counts a packet as sent and again as dropped, if a parent qdisc has
/// peeked at the packet and then a change by `tc` drops it.
const SENT_BY_LOOK: [&str; 2] = ["codel", "pie"];

/// The value after each of these words is a time counted from the moment at which `tc` looked. The
/// kernel's `tc` looks some milliseconds after the last packet, so these values are not compared.
const AGES: [&str; 2] = ["drop_next", "blue_timer"];

/// The word before a value that `cake` shows of a flow. The value is not compared, because `cake`
/// rounds the quanta of its flows up or down at random.
const ROUNDED: &str = "deficit";

/// The beginnings of lines that count how often a new flow of `cake` found its place in the hash
/// table taken by another flow. The places come from a hash that differs from the kernel's, so
/// these lines are not compared.
const BY_HASH: [&str; 2] = ["  way_inds ", "  way_cols "];

/// If a listing contains a qdisc `cbs`, neither flows nor the numbers of flows are compared. A
/// qdisc removes a flow without packets when a dequeue finds none. For a qdisc below `cbs`, Linux
/// sets a timer for that dequeue, while Onramp dequeues only when it is asked for a packet.
const ASKS_LATER: &str = "qdisc cbs ";
/// The words that stand before the numbers of flows that a qdisc has.
const FLOWS_KNOWN: [&str; 2] = ["new_flows_len", "old_flows_len"];

/// The beginning of the line of `fq` that counts removed flows. `fq` removes flows that have had no
/// packets for three seconds. Linux removes such a flow when it comes across it while it looks for
/// the flow of a packet in its hash table; Onramp removes such flows when there are many flows.
/// Therefore the values after the words [`FLOWS_KEPT`] are not compared if Linux has removed any
/// flow.
const COLLECTED: &str = "  gc ";
const FLOWS_KEPT: [&str; 3] = ["flows", "(inactive", "gc"];

/// A word that is removed from the options of `red` before listings are compared. The `tc` of the
/// recording machine shows this option, although it has no effect on that machine: see `tc.rs`.
const NO_EFFECT: &str = "adaptive ";

/// The beginning of the line of `pie` with its drop probability. Linux updates the probability by a
/// timer even if no packets come, while Onramp shows the probability as of the last call of the
/// qdisc. Therefore the line is not compared.
const LAW_OF_PIE: &str = "  prob ";

/// One object in a listing: a qdisc, a class or a filter, with all its lines.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Object {
    /// The first three words of the object: its type, its kind, and its number.
    name: String,
    lines: Vec<String>,
}

/// Returns the objects in a listing, without the parts that can never be compared. `changed` says
/// whether `tc` changed the tree while packets came.
fn objects(text: &str, changed: bool) -> Vec<Object> {
    let mut objects: Vec<Vec<&str>> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let begins = ["qdisc ", "class ", "filter "].iter().any(|word| line.starts_with(word));
        match objects.last_mut() {
            Some(object) if !begins => object.push(line),
            _ => objects.push(vec![line]),
        }
    }
    let mut objects: Vec<Object> =
        objects.into_iter().filter_map(|lines| Object::of(lines, changed)).collect();
    // The flows of a qdisc may be listed in another order by the kernel, and their numbers have no
    // meaning, so sort them by the text of their lines.
    let flows = |one: &Object, other: &Object| one.name == other.name && one.is_flow();
    objects.chunk_by_mut(flows).for_each(<[Object]>::sort);
    objects
}

impl Object {
    /// Whether the object is a class that stands for a flow.
    fn is_flow(&self) -> bool {
        self.name.ends_with(":*")
    }

    fn of(lines: Vec<&str>, changed: bool) -> Option<Self> {
        let words: Vec<&str> = lines[0].split(' ').take(3).collect();
        let [what, kind, number] = words[..] else { return None };
        let (mut name, mut lines) = (words.join(" "), lines);
        let mut head = lines[0].to_owned();
        match (what, kind) {
            // `tc` 6.1 does not know `dualpi2`, so the kernel's listing has neither options nor
            // statistics of this qdisc. In addition, that listing has two classes of `dualpi2`
            // without numbers.
            ("class", "dualpi2") => return None,
            ("qdisc", "dualpi2") => {
                lines.truncate(3);
                let known = head.find(" limit ").or_else(|| head.find(" [Unknown"));
                head.truncate(known.unwrap_or(head.len()));
            }
            ("qdisc", "red") => head = head.replacen(NO_EFFECT, "", 1),
            ("qdisc", "pie") => lines.retain(|line| !line.starts_with(LAW_OF_PIE)),
            ("class", kind) if FLOWS.contains(&kind) => {
                let major = number.split(':').next().unwrap_or("");
                head = head.replacen(number, &format!("{major}:*"), 1);
                name = format!("{what} {kind} {major}:*");
            }
            _ => {}
        }
        let looked_at = SENT_BY_LOOK.contains(&kind) && !head.contains(" root");
        let uncounted = changed && (looked_at || SENT_BY_CHANGE.contains(&kind));
        let rounded = (what, kind) == ("class", "cake");
        let plain = |line: &str| match Sent::read(line).filter(|_| uncounted) {
            Some(sent) if looked_at => sent.without_packets(),
            Some(sent) => sent.with_drops(),
            None => ageless(line, if rounded { &[ROUNDED] } else { &[] }),
        };
        let rest = lines.into_iter().skip(1).map(plain);
        let lines = std::iter::once(head).chain(rest).collect();
        Some(Self { name, lines })
    }
}

/// Calls `put` for each counter in a listing's qdiscs, with a name and the value. A counter is a
/// whole number; the letter `b` (bytes) or `p` (packets) may follow it.
pub(super) fn counters(text: &str, put: &mut dyn FnMut(String, f64)) {
    for Object { name, lines } in objects(text, false) {
        let lines = lines.iter().enumerate().skip(1).filter(|_| name.starts_with("qdisc "));
        for (at, line) in lines {
            let words: Vec<&str> =
                line.split([' ', '(', ')', ',']).filter(|word| !word.is_empty()).collect();
            for (place, word) in words.iter().enumerate() {
                let digits = word.strip_suffix(['b', 'p']).unwrap_or(word);
                if let Ok(number) = digits.parse::<u32>() {
                    let before = if place > 0 { words[place - 1] } else { "" };
                    put(format!("{name} {at}.{place} {before}"), number.into());
                }
            }
        }
    }
}

/// The line of an object that begins with "Sent", which counts the packets sent and dropped.
struct Sent<'a> {
    packets: u64,
    dropped: u64,
    /// The text after the counts of packets sent and dropped: counts of overlimits and requeues.
    rest: &'a str,
}

impl<'a> Sent<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let (_, counts) = line.strip_prefix(" Sent ")?.split_once(" bytes ")?;
        let (packets, counts) = counts.split_once(" pkt (dropped ")?;
        let (dropped, rest) = counts.split_once(", ")?;
        Some(Self { packets: packets.parse().ok()?, dropped: dropped.parse().ok()?, rest })
    }

    /// Returns the line without the bytes sent, and with the sum of the packets sent and dropped in
    /// place of these two counts. Used for the kinds in [`SENT_BY_CHANGE`], for which Linux and
    /// Onramp agree in this sum alone.
    fn with_drops(&self) -> String {
        format!(" Sent or dropped {} pkt ({}", self.packets + self.dropped, self.rest)
    }

    /// Returns the line without the bytes and packets sent. Used for the kinds in [`SENT_BY_LOOK`],
    /// for which Linux and Onramp differ only in these two counts.
    fn without_packets(&self) -> String {
        format!(" dropped {}, {}", self.dropped, self.rest)
    }
}

/// Returns Linux's listing with a backlog of zero bytes wherever it shows a backlog of zero
/// packets. Linux miscounts the bytes of a backlog when qdiscs below other qdiscs drop packets.
pub(super) fn recounted(theirs: &str) -> String {
    let line = |line: &str| match line.split_once("b 0p ") {
        Some((head, rest)) if head.starts_with(" backlog ") => format!(" backlog 0b 0p {rest}\n"),
        _ => format!("{line}\n"),
    };
    theirs.lines().map(line).collect()
}

/// Returns the line with `*` in place of the values after the words in [`AGES`] and in `more`.
fn ageless(line: &str, more: &[&str]) -> String {
    // In the line of an action, the text from the word `installed` on says how long ago the action
    // was installed and last used.
    let line = line.split(" installed ").next().unwrap_or(line);
    let mut words: Vec<&str> = line.split(' ').collect();
    for at in 1..words.len() {
        if AGES.contains(&words[at - 1]) || more.contains(&words[at - 1]) {
            words[at] = "*";
        }
    }
    words.join(" ")
}

/// Returns the objects in a listing, without the values that depend on a hash, or on a timer that
/// only Linux sets. `changed` says whether `tc` changed the tree while packets came, `collected`
/// whether Linux has removed flows of `fq`.
fn comparable(text: &str, changed: bool, collected: bool) -> Vec<Object> {
    let mut objects = objects(text, changed);
    let later = text.lines().any(|line| line.starts_with(ASKS_LATER));
    objects.retain(|object| !(later && object.is_flow()));
    for Object { name, lines } in &mut objects {
        lines.retain(|line| !BY_HASH.iter().any(|word| line.starts_with(word)));
        let of_fq = collected && name.starts_with("qdisc fq ");
        for line in lines.iter_mut().skip(1) {
            if later {
                *line = ageless(line, &FLOWS_KNOWN);
            } else if of_fq {
                *line = ageless(line, &FLOWS_KEPT);
            }
        }
    }
    objects
}

fn compare(ours: &str, theirs: &str, changed: bool) -> Vec<String> {
    let mut counts = theirs.lines().filter_map(|line| line.strip_prefix(COLLECTED));
    let collected = counts.any(|count| !count.starts_with("0 "));
    let known = |text: &str| comparable(text, changed, collected);
    let (ours, theirs) = (known(ours), known(theirs));
    let names = |objects: &[Object]| objects.iter().map(|it| it.name.clone()).collect::<Vec<_>>();
    if names(&ours) != names(&theirs) {
        let only = |these: &[String], those: &[String]| {
            these
                .iter()
                .filter(|name| !those.contains(name))
                .cloned()
                .collect::<Vec<_>>()
                .join(", ")
        };
        let (ours, theirs) = (names(&ours), names(&theirs));
        let (more, less) = (only(&ours, &theirs), only(&theirs, &ours));
        return vec![format!(
            "listed: only ours `{more}`, only Linux's `{less}`, or in another order"
        )];
    }
    let mut told = Vec::new();
    for (ours, theirs) in ours.iter().zip(&theirs) {
        for at in 0..ours.lines.len().max(theirs.lines.len()) {
            let (mine, other) = (ours.lines.get(at), theirs.lines.get(at));
            if mine != other && told.len() < TOLD_MAX {
                let line = |line: Option<&String>| line.map_or("nothing", |line| line).to_owned();
                let name = &ours.name;
                told.push(format!("{name}: ours `{}`, Linux `{}`", line(mine), line(other)));
            }
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "\
qdisc htb 1: root refcnt 2 r2q 10 default 0x20 direct_packets_stat 3
 Sent 33 bytes 4 pkt (dropped 5, overlimits 6 requeues 7) 
 backlog 8b 9p requeues 7
qdisc fq_codel 10: parent 1:10 limit 10240p
 Sent 33 bytes 4 pkt (dropped 5, overlimits 6 requeues 7) 
 backlog 8b 9p requeues 7
  maxpacket 1514 new_flow_count 144 ecn_mark 0
class htb 1:10 parent 1:1 leaf 10: prio 0 rate 3Mbit
 lended: 11 borrowed: 12 giants: 13
 tokens: -14 ctokens: 15

class fq_codel 10:396 parent 10: 
 backlog 0b 0p requeues 0
  deficit 5 count 172 lastcount 1 ldelay 634ms
class fq_codel 10:98 parent 10: 
 backlog 1b 0p requeues 0
  deficit 128 count 0 lastcount 3 ldelay 7us
filter parent 1: protocol ip pref 1 matchall chain 0 handle 0x1 flowid 1:27 
  not_in_hw (rule hit 114)
\taction order 1:  police 0x1 rate 4Mbit
\tref 1 bind 1 
";

    /// Returns the positions in the text at which a number begins.
    fn numbers(text: &str) -> impl Iterator<Item = usize> {
        let digit = |at: usize| text.as_bytes()[at].is_ascii_digit();
        (0..text.len()).filter(move |at| digit(*at) && !digit(at - 1))
    }

    /// The number of flows of `fq` without packets is compared only if Linux has removed no flows.
    #[test]
    fn flows_that_linux_collects() {
        let listing = |flows: u32, gc: u32, throttled: u32| {
            format!(
                "qdisc fq 1: root refcnt 2\n  flows {flows} (inactive {flows} throttled 0)\n  \
                 gc {gc} highprio 0 throttled {throttled}\n"
            )
        };
        let differ = |ours: String, theirs: String| compare(&ours, &theirs, false).len();
        assert_eq!(differ(listing(7, 0, 3), listing(6, 1, 3)), 0);
        assert_eq!(differ(listing(7, 0, 3), listing(6, 1, 4)), 1);
        assert_eq!(differ(listing(7, 0, 3), listing(6, 0, 3)), 1);
        assert_eq!(differ(listing(7, 1, 3), listing(7, 0, 3)), 1);
    }

    /// In a qdisc below `cbs`, the number of flows depends on a timer and is not compared. The
    /// other counts are compared.
    #[test]
    fn flows_below_cbs() {
        let listing = |root: &str, old: u32, memory: u32| {
            let counts = format!("new_flows_len 0 old_flows_len {old} memory_used {memory}");
            format!(
                "qdisc {root} 1: root\nqdisc fq_pie 2: parent 1:1\n  new_flow_count 3 {counts}\n"
            )
        };
        let differ = |ours: String, theirs: String| compare(&ours, &theirs, false).len();
        assert_eq!(differ(listing("cbs", 1, 0), listing("cbs", 0, 0)), 0);
        assert_eq!(differ(listing("cbs", 1, 0), listing("cbs", 0, 9)), 1);
        assert_eq!(differ(listing("tbf", 1, 0), listing("tbf", 0, 0)), 1);
    }

    /// A different first digit of any number in the listing is reported, except in the class
    /// numbers of flows.
    #[test]
    fn every_number_counts() {
        assert_eq!(compare(LISTING, LISTING, false), [""; 0]);
        let mut silent = Vec::new();
        for at in numbers(LISTING) {
            let digit = if LISTING[at..].starts_with('3') { "4" } else { "3" };
            let wrong = format!("{}{digit}{}", &LISTING[..at], &LISTING[at + 1..]);
            if compare(LISTING, &wrong, false).is_empty() {
                silent.push(LISTING[..at].lines().next_back().unwrap_or("").to_owned());
            }
        }
        assert_eq!(silent, ["class fq_codel 10:"; 2]);
    }

    /// If Linux's listing shows a backlog of bytes but of zero packets, this is ignored. If
    /// Onramp's listing shows it, it is reported.
    #[test]
    fn only_linux_loses_count_of_bytes() {
        let told = |ours: &str, theirs: &str| compare(ours, &recounted(theirs), false).len();
        let (none, lost) = (" backlog 0b 0p requeues 3\n", " backlog 7b 0p requeues 3\n");
        let of = |line: &str| format!("qdisc tbf 1: root\n{line}");
        assert_eq!(told(&of(none), &of(lost)), 0);
        assert_eq!(told(&of(lost), &of(lost)), 1);
        assert_eq!(told(&of(none), &of(&lost.replace('3', "4"))), 1);
        assert_eq!(told(&of(none), &of(&lost.replace("0p", "1p"))), 1);
    }

    /// If a line is missing in one of the two listings, this is reported, whichever line it is.
    #[test]
    fn every_line_counts() {
        for line in LISTING.lines().filter(|line| !line.is_empty()) {
            let less = LISTING.replacen(&format!("{line}\n"), "", 1);
            assert!(!compare(LISTING, &less, false).is_empty(), "{line}");
            assert!(!compare(&less, LISTING, false).is_empty(), "{line}");
        }
    }

    /// A difference in a value that cannot be compared is ignored. Any difference beside such a
    /// value is reported.
    #[test]
    fn what_is_left_out_is_little() {
        let same = |ours: &str, theirs: &str, changed| compare(ours, theirs, changed).is_empty();
        let (codel, later) = ("qdisc codel 1: root\n dropping drop_next 3ms\n", "drop_next 4us");
        assert!(same(codel, &codel.replace("drop_next 3ms", later), false));
        assert!(!same(codel, &codel.replace("dropping ", ""), false));
        let used = LISTING.replace("bind 1 ", "bind 1  installed 21 sec used 2 sec");
        assert!(same(LISTING, &used, false));
        assert!(!same(LISTING, &used.replace("bind 1", "bind 2"), false));
        // The kernel and Onramp count packets that a change by `tc` drops in different ways. Only a
        // difference that comes from that is ignored, and only if `tc` changed the tree.
        let head = " Sent 9 bytes 4 pkt (dropped 5, overlimits 6 requeues 7) ";
        let sent = |kind: &str| format!("qdisc {kind} 1: root\n{head}\n backlog 0b\n");
        // `moved`: the second listing counts two packets as sent that the first counts as dropped.
        // `both`: the second listing counts two packets as sent that both listings count as
        // dropped. `others`: differences that a change cannot cause.
        let moved = ("9 bytes 4 pkt (dropped 5", "12 bytes 6 pkt (dropped 3");
        let both = ("9 bytes 4 pkt", "12 bytes 6 pkt");
        let others = [("dropped 5", "dropped 4"), ("limits 6", "limits 5"), ("ues 7", "ues 8")];
        for (kind, place, free) in [
            ("fq", "root", Some(moved)),
            ("fq_codel", "root", Some(moved)),
            ("fq_pie", "parent 1:1", Some(moved)),
            ("pfifo", "root", None),
            ("codel", "root", None),
            ("pie", "root", None),
            ("codel", "parent 1:1", Some(both)),
            ("pie", "parent 1:1", Some(both)),
        ] {
            let ours = sent(kind).replace("root", place);
            for wrong in [moved, both].into_iter().chain(others) {
                let other = ours.replace(wrong.0, wrong.1);
                assert!(!same(&ours, &other, false), "{kind} {place}: {wrong:?}");
                assert_eq!(same(&ours, &other, true), free == Some(wrong), "{kind}: {wrong:?}");
            }
            assert!(!same(&ours, &ours.replace("0b", "1b"), true), "{kind}");
        }
        let shown = "qdisc dualpi2 1: root refcnt 2 limit 9p\n Sent 1\n backlog 2\nprob 0.5\n";
        let unknown = "qdisc dualpi2 1: root refcnt 2 [Unknown qdisc]\n Sent 1\n backlog 2\n\
                       class dualpi2 1: parent 1: \n";
        assert!(same(shown, unknown, false));
        for (word, other) in
            [("Sent 1", "Sent 2"), ("backlog 2", "backlog 3"), ("refcnt 2", "refcnt 3")]
        {
            assert!(!same(shown, &unknown.replace(word, other), false), "{word}");
        }
    }

    /// The flows of a qdisc may be listed in any order and with any numbers, because their numbers
    /// have no meaning.
    #[test]
    fn flows_stand_in_any_order() {
        let flow = |number: u32, deficit: u32| {
            format!("class sfq 1:{number} parent 1: \n  allot {deficit}\n")
        };
        let (ours, theirs) = (flow(1, 5) + &flow(2, 6), flow(33, 6) + &flow(44, 5));
        assert!(compare(&ours, &theirs, false).is_empty());
        assert!(!compare(&ours, &(flow(33, 5) + &flow(44, 5)), false).is_empty());
        assert!(!compare(&ours, &flow(33, 6), false).is_empty());
    }

    /// The flows of one qdisc may be listed in any order, but the flows of different qdiscs may not
    /// change places.
    #[test]
    fn what_is_listed_otherwise_is_named() {
        let flow = |major: u32| format!("class sfq {major}:1 parent {major}: \n  allot 5\n");
        let turned = compare(&(flow(1) + &flow(2)), &(flow(2) + &flow(1)), false);
        assert_eq!(turned, ["listed: only ours ``, only Linux's ``, or in another order"]);
        let (ours, theirs) = ("qdisc fq 1: root\nqdisc tbf 3: root\n", "qdisc fq 2: root\n");
        let told = "listed: only ours `qdisc fq 1:, qdisc tbf 3:`, only Linux's `qdisc fq 2:`, or \
                    in another order";
        assert_eq!(compare(ours, theirs, false), [told]);
    }

    /// At most six differences are reported, because six are enough to see what is wrong.
    #[test]
    fn no_more_than_six_differences_are_told() {
        let lines = |count: usize, word: &str| {
            "qdisc fq 1: root\n".to_owned() + &format!(" {word}\n").repeat(count)
        };
        for (count, told) in [(1, 1), (6, 6), (7, 6), (20, 6)] {
            assert_eq!(compare(&lines(count, "a"), &lines(count, "b"), false).len(), told);
        }
        let told = compare(&lines(1, "a"), &lines(2, "a"), false);
        assert_eq!(told, ["qdisc fq 1:: ours `nothing`, Linux ` a`"]);
    }

    /// Values that depend on a hash, or on a timer that only Linux sets, are ignored. The values
    /// beside them are compared.
    #[test]
    fn what_nobody_can_compare_is_left_out() {
        let cake = |inds: u32, miss: u32| {
            format!("qdisc cake 1: root\n  way_inds {inds}\n  way_miss {miss}\n  way_cols {inds}\n")
        };
        assert!(compare(&cake(1, 5), &cake(2, 5), false).is_empty());
        assert!(!compare(&cake(1, 5), &cake(1, 6), false).is_empty());
        let flow = "class fq_codel 2:1 parent 2: \n  deficit 5\n";
        for (root, compared) in [("cbs", false), ("tbf", true)] {
            let qdisc = format!("qdisc {root} 1: root\n");
            let told = compare(&(qdisc.clone() + flow), &qdisc, false);
            assert_eq!(told.is_empty(), !compared, "{root}");
        }
        let other = |number: u32| format!("qdisc cbs {number}: root\n{flow}");
        assert!(!compare(&other(1), &other(3), false).is_empty());
    }

    /// The line of `pie` with its drop probability is ignored, because Linux updates the
    /// probability by a timer. The other figures of `pie`, and all figures of `fq_pie`, are
    /// compared.
    #[test]
    fn the_law_of_pie_is_not_compared() {
        let pie = "qdisc pie 1: root\n Sent 3\n  prob 0.5 delay 1us\n  pkts_in 7\n";
        for (line, other, counts) in
            [("prob 0.5", "prob 0.6", false), ("Sent 3", "Sent 4", true), ("in 7", "in 8", true)]
        {
            let theirs = pie.replace(line, other);
            assert_eq!(compare(pie, &theirs, false).is_empty(), !counts, "{line}");
            let theirs = theirs.replace("qdisc pie", "qdisc fq_pie");
            let ours = pie.replace("qdisc pie", "qdisc fq_pie");
            assert!(!compare(&ours, &theirs, false).is_empty(), "{line}");
        }
    }
}
