//! Writes the description of a tree as `tc` commands, and finds the commands that change one tree
//! into another.

use super::qdisc::place_name as place_of;
use super::{Node, Setup};
use crate::base::Handle;
use crate::base::params::{Options, Param, Site, U32_MAX, Unit, Value};
use crate::base::units::exact_size;
use crate::filter::FilterSpec;

/// An option of a qdisc or class that says how many bytes may be sent at once.
/// [`Setup::burst_options`] returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BurstOption {
    /// Name of the option.
    pub key: &'static str,
    /// The option's value as a command gives it; empty if the option is not given.
    pub given: String,
    /// The smallest value with which the qdisc drops no packet because of its length, in bytes.
    pub least: u64,
}

impl BurstOption {
    /// Returns the value for `bytes` as a command gives it: not less than [`least`](Self::least),
    /// and not more than 2^32 - 1, which is the largest that there is.
    #[must_use]
    pub fn text(&self, bytes: u64) -> String {
        exact_size(bytes.max(self.least).min(U32_MAX))
    }
}

impl Setup {
    /// Returns the commands that create the tree, parents first, without the command that creates
    /// the device.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let device = self.device().unwrap_or("any");
        let mut lines = Vec::new();
        let mut majors: Vec<u16> = self.root.into_iter().collect();
        let mut at = 0;
        while let Some(&major) = majors.get(at) {
            at += 1;
            let node = &self.qdiscs[&major];
            lines.extend(self.line_on(device, "add", Handle::new(major, 0), false, &[]));
            for class in node.classes.rows() {
                let name = Handle::new(major, class.minor);
                lines.extend(self.line_on(device, "add", name, true, &[]));
            }
            majors.extend(self.children(major).map(|(_, child)| child));
        }
        if let Some(node) = &self.ingress {
            lines.push(format!("qdisc add dev {device} {}", node.spec.kind().id));
        }
        for (place, (verb, words)) in self.filter_lines() {
            let place = self.filter_place_called(place);
            lines.push(format!("filter {verb} dev {device} parent {place} {words}"));
        }
        lines
    }

    /// Returns the commands that change this tree into `other`, if the trees differ only in the
    /// parameters of qdiscs and classes, these can be changed, and no parameter was removed that a
    /// change keeps. Returns `None` otherwise; the tree must then be replaced.
    #[must_use]
    pub fn changes_to(&self, other: &Self) -> Option<Vec<String>> {
        let same = self.qdiscs.keys().eq(other.qdiscs.keys())
            && self.ingress_spec() == other.ingress_spec()
            && self.filter_lines().eq(other.filter_lines());
        if !same {
            return None;
        }
        let device = self.device().unwrap_or("any");
        let mut lines = Vec::new();
        for (major, node) in &self.qdiscs {
            let then = other.qdiscs.get(major)?;
            let kind = node.spec.kind();
            if node.parent != then.parent || kind.id != then.spec.kind().id {
                return None;
            }
            let sites = [self, other].map(|setup| setup.site(*major, setup.facts.mtu, 0));
            if differs(kind.params, sites, node.spec.given(), then.spec.given())? {
                if !then.spec.may_change() {
                    return None;
                }
                lines.extend(other.line_on(device, "change", Handle::new(*major, 0), false, &[]));
            }
            let rows = |node: &Node| {
                node.classes.rows().map(|row| (row.minor, row.parent)).collect::<Vec<_>>()
            };
            if rows(node) != rows(then) {
                return None;
            }
            let params = super::class_params(&node.spec);
            for (row, then) in node.classes.rows().zip(then.classes.rows()) {
                if differs(params, sites, &row.given, &then.given)? {
                    let class = Handle::new(*major, row.minor);
                    lines.extend(other.line_on(device, "change", class, true, &[]));
                }
            }
        }
        Some(lines)
    }

    /// Returns the name in listings of the option `word` of a qdisc (`M:0`) or class, if the option
    /// is a rate, is given and can be changed. `None` otherwise.
    #[must_use]
    pub fn rate_option(&self, place: Handle, word: &str) -> Option<&'static str> {
        let (params, given) = self.options_at(place, place.minor != 0)?;
        let is_rate = |param: &Param| {
            param.is_named(word)
                && matches!(param.unit, Unit::Rate | Unit::RateOr(_))
                && param.fixed.is_none()
        };
        let at = params.iter().position(is_rate)?;
        given[at].is_some().then_some(params[at].key)
    }

    /// Returns why packets could pass a qdisc (`M:0`) or class faster than its options `rates` say,
    /// which are names as [`rate_option`](Self::rate_option) returns them; `None` if they could
    /// not. A class of `htb` below the class is another matter: it has a rate of its own.
    #[must_use]
    pub fn escapes(&self, place: Handle, rates: &[&str]) -> Option<&'static str> {
        let has = |key| self.rate_option(place, key).is_some();
        let keeps = |key| rates.contains(&key);
        let estimates = || {
            let line = self.line("add", place, &[]).unwrap_or_default();
            line.split(' ').any(|word| word == "autorate-ingress")
        };
        match self.kind_of(place.major)? {
            "fq" => Some("`maxrate` is the rate of each flow, and not of the qdisc"),
            "tbf" if has("peakrate") => Some("a tbf with a `peakrate` keeps its rate"),
            "cake" if estimates() => Some("`autorate-ingress` finds a rate of its own"),
            "htb" if keeps("rate") && has("ceil") && !keeps("ceil") => {
                Some("the class would borrow up to its `ceil`: give no ceil, or the same limit")
            }
            _ => None,
        }
    }

    /// Returns the options of a qdisc (`M:0`) or class that say how much it sends at once at its
    /// options `rates`, which are names as [`rate_option`](Self::rate_option) returns them. Empty
    /// if it has no such options, as `cake`, which sends no more than its rate in any interval.
    ///
    /// In `htb`, the bursts of both rates count: a class sends no more at once than `cburst` and a
    /// packet, also if it borrows. An `htb` sends packets of any length with the smallest burst; a
    /// `tbf` drops packets that are longer than its burst, so the least burst is there the largest
    /// packet of the device.
    #[must_use]
    pub fn burst_options(&self, place: Handle, rates: &[&str]) -> Vec<BurstOption> {
        let Some((params, given)) = self.options_at(place, place.minor != 0) else {
            return Vec::new();
        };
        let keys: &[&str] = match self.kind_of(place.major) {
            Some("tbf") if rates.contains(&"rate") => &["burst"],
            Some("htb") if rates.contains(&"rate") => &["burst", "cburst"],
            Some("htb") if rates.contains(&"ceil") => &["cburst"],
            _ => &[],
        };
        let is_tbf = place.minor == 0;
        let all = params.iter().zip(given).filter(|(param, _)| keys.contains(&param.key));
        all.map(|(param, value)| {
            let bytes = match value {
                Some(Value::Number(bytes)) => Some(*bytes),
                _ => None,
            };
            let least = match self.facts.mtu {
                _ if !is_tbf => 1,
                // A command that was right for the device gave the burst.
                0 => bytes.unwrap_or(1),
                mtu => mtu.into(),
            };
            BurstOption { key: param.key, given: bytes.map(exact_size).unwrap_or_default(), least }
        })
        .collect()
    }

    /// Returns the words that describe a qdisc (`M:0`) or class, from `qdisc` or `class` on with
    /// `verb` as its verb, with the given options. Each of `edits` is the name of an option, as
    /// listings show it, and a text that stands in place of its value; an option whose text is
    /// empty is left out. `None` if there is no such qdisc or class.
    ///
    /// ```
    /// use onramp_core::{Handle, Setup};
    ///
    /// let mut setup = Setup::default();
    /// setup.apply("qdisc add dev eth0 root handle 1: htb")?;
    /// setup.apply("class add dev eth0 parent 1: classid 1:a htb rate 8mbit burst 8kb")?;
    /// let class = Handle::new(1, 0xa);
    /// assert_eq!(setup.rate_option(class, "rate"), Some("rate"));
    /// assert_eq!(
    ///     setup.line("change", class, &[("rate", "7mbit")]).as_deref(),
    ///     Some("class change dev eth0 parent 1: classid 1:a htb rate 7mbit burst 8kb"),
    /// );
    /// # Ok::<(), onramp_core::ConfigError>(())
    /// ```
    #[must_use]
    pub fn line(&self, verb: &str, place: Handle, edits: &[(&str, &str)]) -> Option<String> {
        let device = self.device().unwrap_or("any");
        self.line_on(device, verb, place, place.minor != 0, edits)
    }

    /// Returns the same as [`line`](Self::line) for a qdisc or a class, which may have the number
    /// `M:0`, too.
    fn line_on(
        &self,
        device: &str,
        verb: &str,
        place: Handle,
        is_class: bool,
        edits: &[(&str, &str)],
    ) -> Option<String> {
        let (params, given) = self.options_at(place, is_class)?;
        let mut given = given.to_vec();
        let node = &self.qdiscs[&place.major];
        let kind = node.spec.kind().id;
        let mut line = if is_class {
            let parent = Handle::new(place.major, node.classes.get(place.minor)?.parent);
            format!("class {verb} dev {device} parent {parent} classid {place} {kind}")
        } else {
            let at = place_of(node.parent);
            format!("qdisc {verb} dev {device} {at} handle {:x}: {kind}", place.major)
        };
        if !is_class {
            (node.spec.kind().quirks.written)(&mut Options { params, given: &mut given });
        }
        for (param, value) in params.iter().zip(&given) {
            match (edits.iter().find(|(key, _)| *key == param.key), value) {
                (Some((_, "")), _) | (None, None) => {}
                (Some((key, text)), _) => line += &format!(" {key} {text}"),
                (None, Some(value)) => param.write_exact(&mut line, value),
            }
        }
        Some(line)
    }

    /// Returns the options of a qdisc (`M:0`) or class: the table, and the values given.
    fn options_at(
        &self,
        place: Handle,
        is_class: bool,
    ) -> Option<(&'static [Param], &[Option<Value>])> {
        let node = self.qdiscs.get(&place.major)?;
        if !is_class {
            return Some((node.spec.kind().params, node.spec.given()));
        }
        Some((super::class_params(&node.spec), &node.classes.get(place.minor)?.given))
    }

    /// Returns the qdiscs and classes that have filters.
    fn filter_places(&self) -> impl Iterator<Item = Handle> {
        let majors = self.qdiscs.keys().copied().chain(self.ingress.as_ref().map(|_| u16::MAX));
        majors.flat_map(|major| {
            self.filters.places(major).map(move |minor| Handle::new(major, minor))
        })
    }

    pub(super) fn all_filters(&self) -> impl Iterator<Item = &FilterSpec> {
        self.filter_places().flat_map(|place| self.filters.at(place))
    }

    /// Returns the lines that make all filters again, each with the qdisc or class of the filter:
    /// the verb, and the words after the qdisc or class.
    fn filter_lines(&self) -> impl Iterator<Item = (Handle, (&'static str, String))> {
        self.filter_places()
            .flat_map(|place| self.filters.lines(place).into_iter().map(move |line| (place, line)))
    }
}

/// Whether some values of `then` differ from those of `before`. Returns `None` if an option is no
/// longer given that a change without it keeps, or if the value of an option has changed that can
/// only be given when the qdisc is added. `sites` gives the defaults before and after that follow
/// from the device.
fn differs(
    params: &[Param],
    sites: [Site; 2],
    before: &[Option<Value>],
    then: &[Option<Value>],
) -> Option<bool> {
    let mut differs = false;
    // Linux does not look at a change without any option.
    let says_something = then.iter().any(Option::is_some);
    for (param, (before, then)) in params.iter().zip(before.iter().zip(then)) {
        let [was, is] = sites.map(|site| param.device_default(site));
        if before.as_ref().or(was.as_ref()) == then.as_ref().or(is.as_ref()) {
            continue;
        }
        if (then.is_none() && !(param.resets && says_something)) || param.fixed.is_some() {
            return None;
        }
        differs = true;
    }
    Some(differs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Facts;

    const TREE: [&str; 6] = [
        "qdisc add dev d0 root handle 1: htb default 20",
        "class add dev d0 parent 1: classid 1:1 htb rate 1mbit",
        "class add dev d0 parent 1:1 classid 1:20 htb rate 500kbit ceil 1mbit",
        "qdisc add dev d0 parent 1:20 handle 20: fq_codel limit 100",
        "qdisc add dev d0 clsact",
        "filter add dev d0 parent 1: protocol ip pref 3 chain 0 matchall classid 1:20",
    ];

    fn tree(lines: &[&str]) -> Setup {
        let mut setup = Setup::default();
        lines.iter().for_each(|line| setup.apply(line).expect(line));
        setup
    }

    #[test]
    fn lines_make_the_tree_again() {
        let first = tree(&TREE);
        let lines = first.lines();
        let again = tree(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(again.lines(), lines);
        assert_eq!(lines.len(), TREE.len());
        assert_eq!(first.changes_to(&again), Some(Vec::new()));
    }

    #[test]
    fn bursts_are_those_of_the_rates() {
        let mut setup = tree(&TREE);
        setup
            .apply("class add dev d0 parent 1: classid 1:30 htb rate 8kbit ceil 9kbit burst 2k")
            .expect("sound");
        let class = Handle::new(1, 0x30);
        let found = |setup: &Setup, place, rates: &[&str]| -> Vec<(&str, String, u64)> {
            let all = setup.burst_options(place, rates).into_iter();
            all.map(|option| (option.key, option.given, option.least)).collect()
        };
        let (burst, cburst) = (("burst", "2kb".to_owned(), 1), ("cburst", String::new(), 1));
        assert_eq!(found(&setup, class, &["ceil", "rate"]), [burst, cburst.clone()]);
        assert_eq!(found(&setup, class, &["ceil"]), [cburst]);
        assert_eq!(found(&setup, class, &[]), []);
        assert_eq!(found(&setup, Handle::new(1, 0), &["rate"]), [], "an htb itself has no rate");
        assert_eq!(found(&setup, Handle::new(9, 0), &["rate"]), [], "there is no such qdisc");
        // An option that is not given is added, and one with an empty text is left out.
        let edits = [("burst", ""), ("cburst", "7b")];
        let line = "class change dev d0 parent 1: classid 1:30 htb rate 8kbit ceil 9kbit cburst 7b";
        assert_eq!(setup.line("change", class, &edits).as_deref(), Some(line));
        let tbf = "qdisc add dev d0 root handle 1: tbf rate 8mbit burst 15k limit 99kb";
        let mut setup = tree(&[tbf]);
        let root = Handle::new(1, 0);
        assert_eq!(found(&setup, root, &["rate"]), [("burst", "15kb".to_owned(), 15 << 10)]);
        setup.of_device("d0", Facts { mtu: 1_514, ..Facts::default() });
        let options = setup.burst_options(root, &["rate"]);
        assert_eq!(options[0].text(9), "1514b");
        assert_eq!(options[0].text(1 << 20), "1mb");
        assert_eq!(options[0].text(u64::MAX), "4294967295b");
        let cake = tree(&["qdisc add dev d0 root handle 1: cake bandwidth 8mbit"]);
        assert_eq!(found(&cake, root, &["bandwidth"]), []);
    }

    #[test]
    fn other_parameters_are_changes_and_another_tree_is_none() {
        let before = tree(&TREE);
        let with = |from: &str, to: &str| {
            let lines = TREE.map(|line| line.replace(from, to));
            tree(&lines.each_ref().map(String::as_str))
        };
        let changes = before.changes_to(&with("limit 100", "limit 200 target 7ms"));
        let line = "qdisc change dev d0 parent 1:20 handle 20: fq_codel limit 200 target 7ms";
        assert_eq!(changes, Some(vec![line.to_owned()]));
        let changes = before.changes_to(&with("ceil 1mbit", "ceil 2mbit")).expect("parameters");
        assert_eq!(changes.len(), 1);
        assert!(changes[0].starts_with("class change dev d0 parent 1:1 classid 1:20 htb "));
        let mut after = before.clone();
        changes.iter().for_each(|line| after.apply(line).expect(line));
        assert_eq!(after.lines(), with("ceil 1mbit", "ceil 2mbit").lines());
        // A change of a `netem` sets back the loss that it does not name.
        let netem =
            |words: &str| tree(&[&format!("qdisc add dev d0 root handle 1: netem {words}")]);
        let changes = netem("delay 9ms loss 1%").changes_to(&netem("delay 9ms"));
        let line = "qdisc change dev d0 root handle 1: netem delay 9ms";
        assert_eq!(changes, Some(vec![line.to_owned()]));
        for (from, to) in [
            (" limit 100", ""),
            ("fq_codel limit", "pfifo limit"),
            ("pref 3", "pref 4"),
            // Linux cannot change an `htb`.
            ("default 20", "default 30"),
        ] {
            assert_eq!(before.changes_to(&with(from, to)), None, "{from} {to}");
        }
    }
}
