//! Rates that follow the host's shares of limits that a fleet of hosts has in common: the words
//! `rate fleet NAME` in commands of `tc`.
//!
//! The host only keeps the names and sets the rates. The caller finds out what the shares are, for
//! example with the crate `onramp-fleet`.

use std::collections::{BTreeMap, BTreeSet};

use onramp_core::view::Counted;
use onramp_core::{Change, Handle, Rate, Setup};

use crate::Host;
use crate::follow::{Follower, Named, UNKNOWN, WORD, exact, given, place};
use crate::netdev::Netdev;
use crate::tc::TcError;

/// A qdisc or class whose rate follows its share of a limit. [`Host::shares`] returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Share {
    /// Name of the device.
    pub device: String,
    /// The qdisc (`M:0`) or class.
    pub place: Handle,
    /// Name of the limit.
    pub limit: String,
    /// Weight among the members of the limit.
    pub weight: u32,
    /// The present share, as [`Host::set_share`] set it.
    pub share: Rate,
    /// The present burst, in bytes, as [`Host::set_share`] set it. `None`: the qdisc or class has
    /// its own, or an option of the device has changed so that the burst has to be set again.
    pub burst: Option<u64>,
    /// Whether the qdisc or class has a burst that can be set: a `cake` has none, and sends no more
    /// than its rate in any interval.
    pub has_burst: bool,
    /// What the qdisc or class has counted; `None` if a transmit queue does not answer at present.
    pub counted: Option<Counted>,
}

impl Netdev {
    /// Notes which rates follow shares after a command about this device: those that the command
    /// `named` do, those to which the command `line` gave a number do not, and those that are gone
    /// do not either.
    pub(crate) fn follow(&mut self, line: &[String], change: &Change, named: &[Named<'_>]) {
        let setup = self.link.setup();
        if let Some(place) = place(change) {
            let given = given(&setup, place, line);
            self.followers.retain(|it| it.place != place || !given.contains(&it.key));
            for name in named {
                let Some(key) = setup.rate_option(place, name.option) else { continue };
                let (limit, weight, rate) = (name.limit.to_owned(), name.weight, UNKNOWN);
                let (burst, own) = (None, Vec::new());
                self.followers.push(Follower { place, key, limit, weight, rate, burst, own });
            }
            // A command that gives a rate of `tbf` or `htb` sets all bursts that it does not give
            // back to their defaults, so what is there now is the command's.
            let keys = self.keys(place);
            let own: Vec<_> = setup
                .burst_options(place, &keys)
                .into_iter()
                .map(|option| (option.key, option.given))
                .collect();
            for it in self.followers.iter_mut().filter(|it| it.place == place) {
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
        self.followers.retain(|it| {
            let is_touched = own == Some(it.place) || gone.contains(&it.place.major);
            !is_touched || setup.rate_option(it.place, it.key).is_some()
        });
    }

    /// Returns those lines of the tree in which rates follow shares, each with the line as a person
    /// would have written it: with the names of limits in place of shares, and with the qdisc's or
    /// class's own burst in place of the limit's. `setup` is the description of the device's tree.
    pub(crate) fn with_names(&self, setup: &Setup) -> Vec<(String, String)> {
        let mut places: BTreeMap<Handle, Vec<(&str, String)>> = BTreeMap::new();
        for it in &self.followers {
            let text = match it.weight {
                1 => format!("{WORD} {}", it.limit),
                weight => format!("{WORD} {}:{weight}", it.limit),
            };
            let edits = places.entry(it.place).or_default();
            edits.push((it.key, text));
            edits.extend(it.own.iter().cloned());
        }
        let lines = places.into_iter().filter_map(|(place, texts)| {
            let edits: Vec<_> = texts.iter().map(|(key, text)| (*key, text.as_str())).collect();
            Some((setup.line("add", place, &[])?, setup.line("add", place, &edits)?))
        });
        lines.collect()
    }

    /// Takes over the shares that the same rates have on another device: `there` follows the same
    /// limits at the same places.
    pub(crate) fn keep_shares(&mut self, there: &Self) {
        for other in &there.followers {
            let same = |it: &Follower| {
                (it.place, it.key, &it.limit) == (other.place, other.key, &other.limit)
            };
            if self.followers.iter().any(same) {
                // A trial device takes any rate that the real device has taken.
                let _ = self.set_share(other.place, &other.limit, other.rate, other.burst);
            }
        }
    }

    /// Lets the next call of [`set_share`](Self::set_share) set all bursts, because the least burst
    /// of a `tbf` follows from the device's largest packet.
    pub(crate) fn forget_bursts(&mut self) {
        self.followers.iter_mut().for_each(|it| it.burst = None);
    }

    /// Returns the names of the rates at `place` that follow a limit.
    fn keys(&self, place: Handle) -> Vec<&'static str> {
        self.followers.iter().filter(|it| it.place == place).map(|it| it.key).collect()
    }

    /// Sets the rates at `place` that follow the limit to `share`, and the bursts there to `burst`
    /// bytes; `None` stands for what the last command gave.
    fn set_share(
        &mut self,
        place: Handle,
        limit: &str,
        share: Rate,
        burst: Option<u64>,
    ) -> Result<(), TcError> {
        let is_it = |it: &&Follower| it.place == place && it.limit == limit;
        let has_it = |it: &Follower| (it.rate, it.burst) == (share, burst);
        let Some(own) = self.followers.iter().find(is_it).map(|it| it.own.clone()) else {
            return Ok(());
        };
        if self.followers.iter().filter(is_it).all(has_it) {
            return Ok(());
        }
        let (keys, text, setup) = (self.keys(place), exact(share), self.link.setup());
        let bursts: Vec<(&str, String)> = match burst {
            None => own,
            Some(bytes) => {
                let options = setup.burst_options(place, &keys);
                options.iter().map(|option| (option.key, option.text(bytes))).collect()
            }
        };
        let bursts = bursts.iter().map(|(key, text)| (*key, text.as_str()));
        let edits: Vec<_> = keys.iter().map(|key| (*key, text.as_str())).chain(bursts).collect();
        if let Some(line) = setup.line("adjust", place, &edits) {
            drop(setup);
            let (_, done) = self.link.change_and_report(line.as_str())?;
            done?;
        }
        for it in self.followers.iter_mut().filter(|it| it.place == place && it.limit == limit) {
            (it.rate, it.burst) = (share, burst);
        }
        Ok(())
    }

    fn shares(&self) -> Vec<Share> {
        let mut shares: Vec<Share> = Vec::new();
        if self.followers.is_empty() {
            return shares;
        }
        let views = self.link.whole_tree_views().unwrap_or_default();
        let setup = self.link.setup();
        for it in &self.followers {
            let is_same = |share: &Share| share.place == it.place && share.limit == it.limit;
            if !shares.iter().any(is_same) {
                shares.push(Share {
                    device: self.name.clone(),
                    place: it.place,
                    limit: it.limit.clone(),
                    weight: it.weight,
                    share: it.rate,
                    burst: it.burst,
                    has_burst: !setup.burst_options(it.place, &self.keys(it.place)).is_empty(),
                    counted: Counted::at(&views, it.place),
                });
            }
        }
        shares
    }
}

impl Host {
    /// Sets whether the host belongs to a fleet, so that commands of `tc` may say `fleet NAME` and
    /// `fleet NAME:WEIGHT` in place of a rate: the rate then follows the host's share of the limit
    /// NAME. Until [`set_share`](Self::set_share) sets the share, it is one byte per second.
    pub const fn set_in_fleet(&mut self, is_in_fleet: bool) {
        self.devices.is_in_fleet = is_in_fleet;
    }

    /// Returns the qdiscs and classes whose rates follow shares, with what they have counted, from
    /// which the caller finds out how much they want to send.
    #[must_use]
    pub fn shares(&self) -> Vec<Share> {
        self.devices.iter().flat_map(Netdev::shares).collect()
    }

    /// Sets the rates of the qdisc or class `place` of a device that follow the limit `limit` to
    /// `share`. Does nothing if there are no such rates.
    ///
    /// What the qdisc or class may send at once becomes `burst` bytes, but never less than its
    /// longest packet needs: a `tbf` would drop that packet. `None` sets back the burst that the
    /// last command gave it. A `cake` has no burst ([`Share::has_burst`]), and a change of it does
    /// nothing. No bytes that the qdisc or class holds or owes change, except that it holds no more
    /// than its burst.
    ///
    /// # Errors
    ///
    /// [`TcError`] if the rate cannot be set, for example because it is out of the option's range.
    pub fn set_share(
        &mut self,
        device: &str,
        place: Handle,
        limit: &str,
        share: Rate,
        burst: Option<u64>,
    ) -> Result<(), TcError> {
        let device = self.devices.get_mut(device);
        device.map_or(Ok(()), |device| device.set_share(place, limit, share, burst))
    }
}
