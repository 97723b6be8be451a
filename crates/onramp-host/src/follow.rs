//! The words `fleet NAME` in commands of `tc`: a rate that follows the host's share of a limit.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onramp_core::cmd::Operand;
use onramp_core::{Change, Handle, Instant, Lease, Rate, Setup};

use crate::Reply;
use crate::configured::Configured;

/// The word in a command of `tc` before the name of a limit.
pub(crate) const WORD: &str = "fleet";
/// The share before anyone has said what it is: the smallest rate that there is.
pub(crate) const UNKNOWN: Rate = Rate::bytes_per_second(1);

/// A rate of a qdisc or class that follows a share.
#[derive(Clone, Debug)]
pub(crate) struct Follower {
    /// The qdisc (`M:0`) or class.
    pub(crate) place: Handle,
    /// Name of the option.
    pub(crate) key: &'static str,
    pub(crate) limit: String,
    pub(crate) weight: u32,
    /// The present share.
    pub(crate) rate: Rate,
    /// What the qdisc or class may send at once as a part of the limit's burst, in bytes. `None`:
    /// as much as its own options say, or the burst has to be set again.
    pub(crate) burst: Option<u64>,
    /// The names and values of the options that are the burst, as the last command gave them.
    pub(crate) own: Vec<(&'static str, String)>,
    /// Whether the device may have another rate or burst than this says, so that they have to be
    /// set again.
    pub(crate) is_stale: bool,
    /// For how long the device has the rate and the burst; `None`: it keeps them.
    pub(crate) lent: Option<Lent>,
}

impl Follower {
    /// Whether the device has this part, for good or, with what comes afterwards, for a time. In
    /// the latter case, moves the end.
    pub(crate) fn has(&mut self, part: Part, ends: Option<(Instant, Part)>) -> bool {
        (self.rate, self.burst, self.is_stale) == (part.rate, part.burst, false)
            && match (ends, &mut self.lent) {
                (None, None) => true,
                (Some((end, after)), Some(lent)) => {
                    let lasts = after == lent.after && lent.lease.renew(end);
                    if lasts {
                        lent.end = lent.end.max(end);
                    }
                    lasts
                }
                _ => false,
            }
    }

    /// Whether a command names here what this follows already.
    fn is(&self, place: Handle, key: Option<&str>, named: &Named<'_>) -> bool {
        (self.place, Some(self.key)) == (place, key)
            && (self.limit.as_str(), self.weight) == (named.limit, named.weight)
    }
}

/// Until when a device has a part of a limit, and what it has afterwards.
#[derive(Clone, Debug)]
pub(crate) struct Lent {
    pub(crate) now: Part,
    pub(crate) lease: Lease,
    /// The end of the lease, by the clock of the device's link.
    pub(crate) end: Instant,
    pub(crate) after: Part,
}

/// A part of a limit: a rate, and a burst in bytes (`None`: the one of the qdisc's or class's own
/// options).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The rate.
    pub rate: Rate,
    /// The burst, in bytes.
    pub burst: Option<u64>,
}

/// The rates of a device that follow shares. Copies are the same list.
///
/// Commands of the host change the list, and so does the thread that sets the shares, which does
/// not wait until a command is done. So both change the device's tree and the list together, under
/// the list's lock, and neither waits for the device under it.
#[derive(Clone, Debug, Default)]
pub(crate) struct List(Arc<Mutex<Vec<Follower>>>);

impl List {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<Follower>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A limit's name and weight in a command, with the name of the option that they stand behind.
pub(crate) struct Named<'w> {
    /// The place of the rate among the words.
    at: usize,
    pub(crate) option: &'w str,
    pub(crate) limit: &'w str,
    pub(crate) weight: u32,
}

/// Takes `fleet NAME` and `fleet NAME:WEIGHT` out of a command, and puts [`UNKNOWN`] in the place
/// of the share.
///
/// # Errors
///
/// The reply to a command that names no limit, or a wrong weight, or is for a host without a fleet.
pub(crate) fn take<'w>(
    is_in_fleet: bool,
    words: &[&'w str],
) -> Result<(Vec<String>, Vec<Named<'w>>), Reply> {
    let (mut line, mut named): (_, Vec<Named<'w>>) = (Vec::new(), Vec::new());
    let mut weights: Vec<(&str, u32)> = Vec::new();
    let mut rest = words.iter().copied();
    let mut before = "";
    while let Some(word) = rest.next() {
        // A device or a filter's argument may have this name, too.
        if word != WORD || matches!(before, "" | "dev" | "match") {
            line.push(word.to_owned());
            before = word;
            continue;
        }
        let look = "expected fleet NAME or fleet NAME:WEIGHT";
        let name =
            rest.next().ok_or_else(|| wrong(&format!("a limit's name is missing: {look}")))?;
        let (limit, weight) = match name.split_once(':') {
            None => (name, None),
            Some((limit, weight)) => (limit, Some(weight)),
        };
        let fits = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
        if limit.is_empty() || limit.len() > 64 || !limit.chars().all(fits) {
            let why = "a limit's name has 1 to 64 letters, digits, '.', '_' or '-'";
            return Err(wrong(&format!("{name:?}: {why}")));
        }
        if let Some(weight) = weight {
            let Ok(weight @ 1..) = weight.parse() else {
                let why = "the weight is no number from 1 to 4294967295";
                return Err(wrong(&format!("{name:?}: {why}: {look}")));
            };
            if weights.iter().any(|(other, before)| *other == limit && *before != weight) {
                return Err(wrong(&format!("{name:?}: the line gives the limit two weights")));
            }
            weights.push((limit, weight));
        }
        if !is_in_fleet {
            let why = "this host belongs to no fleet; `onramp daemon --fleet URL` joins one";
            return Err(wrong(why));
        }
        named.push(Named { at: line.len(), option: before, limit, weight: 1 });
        line.push(exact(UNKNOWN));
    }
    for name in &mut named {
        let given = weights.iter().find(|(limit, _)| *limit == name.limit);
        name.weight = given.map_or(1, |(_, weight)| *weight);
    }
    Ok((line, named))
}

/// Checks that each limit of a command stands in place of a rate that can change, and that nothing
/// would send more than its share after the command. `words` are the words of `line` from the
/// device on. Returns the qdisc or class to which the command gives options.
///
/// # Errors
///
/// The reply to a command in which a limit stands elsewhere, or after which a qdisc or class would
/// send more than its share.
pub(crate) fn check(
    setup: &Setup,
    line: &str,
    words: &[String],
    named: &[Named<'_>],
    followers: &[Follower],
) -> Result<Option<Handle>, Reply> {
    let mut setup = setup.clone();
    let elsewhere = |name: &Named<'_>| {
        wrong(&format!(
            "`{} {WORD} {}`: a limit can only stand in place of a single rate that can change",
            name.option, name.limit
        ))
    };
    let place = match setup.change(line) {
        Ok(change) => place(&change),
        Err(error) => {
            let at = named.iter().find(|_| error.value == exact(UNKNOWN));
            // Another error is reported when the command is carried out.
            return at.map_or(Ok(None), |name| Err(elsewhere(name)));
        }
    };
    let is_rate = |name: &&Named<'_>| {
        place.is_some_and(|place| setup.rate_option(place, name.option).is_some())
    };
    if let Some(name) = named.iter().find(|name| !is_rate(name)) {
        return Err(elsewhere(name));
    }
    let Some(place) = place else { return Ok(None) };
    // Some options may be given twice, and then the last one counts.
    let has_share = |name: &&Named<'_>| {
        let key = setup.rate_option(place, name.option).unwrap_or_default();
        let with_share = setup.line("add", place, &[(key, &exact(UNKNOWN))]);
        with_share == setup.line("add", place, &[])
    };
    if let Some(name) = named.iter().find(|name| !has_share(name)) {
        return Err(elsewhere(name));
    }
    let given = given(&setup, place, words);
    let keeps = |it: &&Follower| it.place == place && !given.contains(&it.key);
    let mut follows: Vec<(&str, &str)> =
        followers.iter().filter(keeps).map(|it| (it.key, &*it.limit)).collect();
    for name in named {
        follows.extend(setup.rate_option(place, name.option).map(|key| (key, name.limit)));
    }
    let Some((_, limit)) = follows.first().copied() else { return Ok(Some(place)) };
    if follows.iter().any(|(_, other)| *other != limit) {
        return Err(wrong("a qdisc or class follows one limit, but these are two"));
    }
    let keys: Vec<&str> = follows.iter().map(|(key, _)| *key).collect();
    match setup.escapes(place, &keys) {
        None => Ok(Some(place)),
        Some(why) if named.is_empty() => {
            let err = format!("Error: {place} follows the limit {limit} of a fleet, but {why}.\n");
            Err(Reply { code: 255, err, ..Reply::default() })
        }
        Some(why) => Err(wrong(why)),
    }
}

/// Puts the present share into the words of a command that names the limit which the rate at
/// `place` follows already: it is no new member of the limit, so it keeps what it has. `setup` is
/// the description of the device's tree before the command.
pub(crate) fn keep(
    words: &mut [String],
    setup: &Setup,
    place: Handle,
    named: &[Named<'_>],
    followers: &[Follower],
) {
    for name in named {
        let key = setup.rate_option(place, name.option);
        let same = followers.iter().find(|it| it.is(place, key, name));
        if let Some(same) = same {
            // If the share has ended, the device has what comes afterwards.
            let ended = same.lent.as_ref().filter(|lent| lent.lease.is_over());
            words[name.at] = exact(ended.map_or(same.rate, |lent| lent.after.rate));
        }
    }
}

/// Notes which rates of a device follow shares after a command about it: those that the command
/// `named` do, those to which the command `line` gave a number do not, and those that are gone do
/// not either. `setup` is the description of the device's tree after the command.
pub(crate) fn note(
    followers: &mut Vec<Follower>,
    setup: &Setup,
    line: &[String],
    change: &Change,
    named: &[Named<'_>],
) {
    if let Some(place) = place(change) {
        let given = given(setup, place, line);
        let is_given = |it: &mut Follower| it.place == place && given.contains(&it.key);
        let before: Vec<Follower> = followers.extract_if(.., is_given).collect();
        for name in named {
            let Some(key) = setup.rate_option(place, name.option) else { continue };
            let same = before.iter().find(|it| it.is(place, Some(key), name));
            followers.push(same.cloned().unwrap_or_else(|| Follower {
                place,
                key,
                limit: name.limit.to_owned(),
                weight: name.weight,
                rate: UNKNOWN,
                burst: None,
                own: Vec::new(),
                is_stale: false,
                lent: None,
            }));
        }
        // A command that gives a rate of `tbf` or `htb` sets all bursts that it does not give
        // back to their defaults, so what is there now is the command's.
        let keys = keys(followers, place);
        let own: Vec<_> = setup
            .burst_options(place, &keys)
            .into_iter()
            .map(|option| (option.key, option.given))
            .collect();
        for it in followers.iter_mut().filter(|it| it.place == place) {
            (it.burst, it.own) = (None, own.clone());
        }
    }
    // Only at these places can the command have taken a rate away. The other followers are not
    // looked up, so that a command costs no more the more followers there are.
    let gone: BTreeSet<u16> = setup.taken().iter().map(|taken| taken.handle.major).collect();
    let own = match change {
        Change::ClassGone(class) => Some(*class),
        change => place(change),
    };
    followers.retain(|it| {
        let is_touched = own == Some(it.place) || gone.contains(&it.place.major);
        !is_touched || setup.rate_option(it.place, it.key).is_some()
    });
}

/// Gives those qdiscs and classes their share and its end again whose lease the command `change`
/// ends. The ports make the changes in this order.
pub(crate) fn lend_again(tree: &dyn Configured, followers: &mut [Follower], change: &Change) {
    let changed = place(change);
    // A port that is at work ends the lease only when it makes the change. A change of a qdisc may
    // end leases below it, too.
    let ends = |it: &&Follower| {
        let is_over = |lent: &Lent| lent.lease.is_over();
        let reaches = changed == Some(it.place) || matches!(change, Change::Parameters(_));
        it.lent.as_ref().is_some_and(|lent| reaches || is_over(lent))
    };
    let places: BTreeSet<Handle> = followers.iter().filter(ends).map(|it| it.place).collect();
    for place in places {
        // A rate that follows the limit only now has no lease yet.
        let at = |it: &&Follower| it.place == place;
        let lent = followers.iter().filter(at).find_map(|it| it.lent.clone());
        let Some(lent) = lent else { continue };
        let setup = tree.setup();
        let [now, after] = [lent.now, lent.after].map(|part| edits(&setup, followers, place, part));
        drop(setup);
        let lease = tree.lend(place, &borrowed(&now), lent.end, &borrowed(&after));
        for it in followers.iter_mut().filter(|it| it.place == place) {
            match &lease {
                Some(lease) => {
                    (it.rate, it.burst) = (lent.now.rate, lent.now.burst);
                    it.lent = Some(Lent { lease: lease.clone(), ..lent.clone() });
                }
                // The share is set again at the next tick.
                None => (it.is_stale, it.lent) = (true, None),
            }
        }
    }
}

/// Returns the names and values of the options by which a qdisc or class has a part.
pub(crate) fn edits(
    setup: &Setup,
    followers: &[Follower],
    place: Handle,
    part: Part,
) -> Vec<(&'static str, String)> {
    let keys = keys(followers, place);
    let rates = keys.iter().map(|key| (*key, exact(part.rate)));
    let bursts: Vec<_> = match part.burst {
        None => followers.iter().find(|it| it.place == place).map(|it| it.own.clone()),
        Some(bytes) => {
            let options = setup.burst_options(place, &keys);
            Some(options.iter().map(|option| (option.key, option.text(bytes))).collect())
        }
    }
    .unwrap_or_default();
    rates.chain(bursts).collect()
}

/// Returns edits as a line of `tc` takes them.
pub(crate) fn borrowed<'e>(edits: &'e [(&'static str, String)]) -> Vec<(&'e str, &'e str)> {
    edits.iter().map(|(key, text)| (*key, text.as_str())).collect()
}

/// Returns the names of the rates at `place` that follow a limit.
pub(crate) fn keys(followers: &[Follower], place: Handle) -> Vec<&'static str> {
    followers.iter().filter(|it| it.place == place).map(|it| it.key).collect()
}

/// Returns the rates of a qdisc or class that a command gives, by their names in listings. `words`
/// are the command's words from the device on.
pub(crate) fn given(setup: &Setup, place: Handle, words: &[String]) -> Vec<&'static str> {
    // A device may have the name of an option.
    let device = words.iter().position(|word| word == "dev").map(|at| at + 1);
    let words = words.iter().enumerate().filter(|(at, _)| Some(*at) != device);
    words.filter_map(|(_, word)| setup.rate_option(place, word)).collect()
}

fn wrong(why: &str) -> Reply {
    let err = format!("Error: argument \"{WORD}\" is wrong: {why}\n");
    Reply { code: 255, err, ..Reply::default() }
}

/// Returns the qdisc (`M:0`) or class to which a change gave options.
pub(crate) const fn place(change: &Change) -> Option<Handle> {
    match change {
        Change::Qdisc(major) | Change::Parameters(major) => Some(Handle::new(*major, 0)),
        Change::Class(class) => Some(*class),
        _ => None,
    }
}

/// Writes a rate as a command of `tc` reads it, without rounding.
pub(crate) fn exact(rate: Rate) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = rate.write(&mut text);
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use onramp::{Changing, PortError};
    use onramp_core::filter::FilterSpec;
    use onramp_core::view::QdiscView;

    use super::*;

    /// A tree whose port is at work, so that it has not yet made the change that ends a lease.
    #[derive(Debug)]
    struct Busy {
        setup: Arc<Setup>,
        lent: Mutex<Vec<(Handle, Instant)>>,
    }

    impl Configured for Busy {
        fn setup(&self) -> Arc<Setup> {
            self.setup.clone()
        }

        fn tree_views(&self) -> Vec<QdiscView> {
            Vec::new()
        }

        fn filters(&self, _: Handle) -> Vec<FilterSpec> {
            Vec::new()
        }

        fn begin_change(&self, _: &str) -> Result<(Change, Option<Changing>), PortError> {
            unreachable!("no command is carried out")
        }

        fn lend(
            &self,
            place: Handle,
            _: &[(&str, &str)],
            end: Instant,
            _: &[(&str, &str)],
        ) -> Option<Lease> {
            self.lent.lock().expect("nobody panics").push((place, end));
            Some(Lease::new(end))
        }
    }

    #[test]
    fn a_port_at_work_gets_the_lease_behind_the_change() {
        let tree = Busy { setup: Arc::default(), lent: Mutex::default() };
        let (root, end) = (Handle::new(1, 0), Instant(9));
        let rate = Rate::bytes_per_second(1_000_000);
        let part = Part { rate, burst: None };
        let lent = Lent { now: part, lease: Lease::new(end), end, after: part };
        let mut followers = vec![Follower {
            place: root,
            key: "rate",
            limit: "a".to_owned(),
            weight: 1,
            rate,
            burst: None,
            own: Vec::new(),
            is_stale: false,
            lent: Some(lent),
        }];
        lend_again(&tree, &mut followers, &Change::Filters(root));
        assert_eq!(*tree.lent.lock().expect("nobody panics"), []);
        lend_again(&tree, &mut followers, &Change::Parameters(1));
        assert_eq!(*tree.lent.lock().expect("nobody panics"), [(root, end)]);
    }
}
