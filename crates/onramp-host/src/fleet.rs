//! Rates that follow the host's shares of limits that a fleet of hosts has in common: the words
//! `rate fleet NAME` in commands of `tc`.
//!
//! The host only keeps the names and sets the rates. The caller finds out what the shares are, for
//! example with the crate `onramp-fleet`. A share may have to be lowered at a certain time, so
//! [`Following`] sets shares without the host, which a command may use for many seconds.

use onramp::{Changing, Link, PortError};
use onramp_core::view::Counted;
use onramp_core::{Handle, Instant, Rate};

use crate::Host;
use crate::follow::{Follower, Lent, List, Part, borrowed, edits, keys};
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
    /// Takes over the shares that the same rates have on another device: `there` follows the same
    /// limits at the same places.
    pub(crate) fn keep_shares(&self, there: &Self) {
        let others = there.followers.lock().clone();
        for other in others {
            let same = |it: &Follower| {
                (it.place, it.key, &it.limit) == (other.place, other.key, &other.limit)
            };
            if self.followers.lock().iter().any(same) {
                let following = self.following();
                // A trial device takes any rate that the real device has taken.
                let _ = following.set_share(other.place, &other.limit, other.rate, other.burst);
            }
        }
    }

    /// Lets the next call of [`set_share`](Following::set_share) set all bursts, because the least
    /// burst of a `tbf` follows from the device's largest packet.
    pub(crate) fn forget_bursts(&self) {
        self.followers.lock().iter_mut().for_each(|it| it.burst = None);
    }

    fn following(&self) -> Following {
        let (link, followers) = (self.link.clone(), self.followers.clone());
        Following { device: self.name.clone(), link, followers }
    }
}

/// The rates of a device that follow shares. [`Host::following`] returns it.
///
/// It needs no access to the host, so a thread can set shares while another one carries out
/// commands, however long these wait for other devices. It keeps the device's link open until the
/// device is deleted. It knows the device under the name that it had when
/// [`following`](Host::following) was called.
#[derive(Clone, Debug)]
pub struct Following {
    device: String,
    link: Link,
    followers: List,
}

impl Following {
    /// Sets the rates of the qdisc or class `place` that follow the limit `limit` to `share`, and
    /// the bursts there to `burst` bytes, as [`Host::set_share`] does. Does nothing if there are no
    /// such rates, or if the device was deleted.
    ///
    /// The call waits until the device has the rate, for at most a second. A device that needs more
    /// time gets the rate before it sends the next packet, and that is no error.
    ///
    /// # Errors
    ///
    /// [`TcError`] if the rate cannot be set, for example because it is out of the option's range.
    pub fn set_share(
        &self,
        place: Handle,
        limit: &str,
        share: Rate,
        burst: Option<u64>,
    ) -> Result<(), TcError> {
        self.give(place, limit, Part { rate: share, burst }, None)
    }

    /// Returns the present time by the clock of the device's link.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.link.now()
    }

    /// Sets rates and bursts as [`set_share`](Self::set_share) does, until `end` (by
    /// [`now`](Self::now)). Afterwards the device has `after`: it changes to that by itself, before
    /// its qdiscs release the next packet, even if no thread of the program comes to run. If it has
    /// the same parts for a time already, this only moves the end to a later time, and waits for
    /// nothing.
    ///
    /// A command that gives the qdisc or class other options, or replaces it, keeps the share and
    /// the end. If the device gets its whole tree anew ([`Host::configure`]), the share is without
    /// an end until the next call of `lend_share`.
    ///
    /// # Errors
    ///
    /// As [`set_share`](Self::set_share).
    pub fn lend_share(
        &self,
        place: Handle,
        limit: &str,
        share: Part,
        end: Instant,
        after: Part,
    ) -> Result<(), TcError> {
        self.give(place, limit, share, Some((end, after)))
    }

    /// Moves the end of what [`lend_share`](Self::lend_share) has set to a later time. Returns
    /// false if the device does not have these parts until an end, or no longer: then call
    /// `lend_share`, which may wait.
    #[must_use]
    pub fn renew_share(
        &self,
        place: Handle,
        limit: &str,
        share: Part,
        end: Instant,
        after: Part,
    ) -> bool {
        let is_it = |it: &Follower| it.place == place && it.limit == limit;
        let mut followers = self.followers.lock();
        followers.iter_mut().filter(|it| is_it(it)).all(|it| it.has(share, Some((end, after))))
    }

    fn give(
        &self,
        place: Handle,
        limit: &str,
        part: Part,
        ends: Option<(Instant, Part)>,
    ) -> Result<(), TcError> {
        let is_it = |it: &Follower| it.place == place && it.limit == limit;
        let Some(changing) = self.begin(is_it, part, ends)? else { return Ok(()) };
        match changing.wait() {
            // The port changes its rate when its device returns, and sends nothing before.
            Ok(()) | Err(PortError::Late(_)) => Ok(()),
            Err(error) => {
                let mut followers = self.followers.lock();
                followers.iter_mut().filter(|it| is_it(it)).for_each(|it| it.is_stale = true);
                Err(error.into())
            }
        }
    }

    /// Gives a part to the followers for which `is_it` holds, for a time if `ends` says so. They
    /// are at one place. `None`: they have it, or there are none.
    fn begin(
        &self,
        is_it: impl Fn(&Follower) -> bool,
        part: Part,
        ends: Option<(Instant, Part)>,
    ) -> Result<Option<Changing>, TcError> {
        let mut followers = self.followers.lock();
        let lacks_it = |it: &mut Follower| is_it(it) && !it.has(part, ends);
        let Some(place) = followers.iter_mut().find_map(|it| lacks_it(it).then_some(it.place))
        else {
            return Ok(None);
        };
        let setup = self.link.setup();
        let edits = |part: Part| edits(&setup, &followers, place, part);
        let (now, then) = (edits(part), ends.map(|(end, after)| (end, after, edits(after))));
        let line = setup.line("adjust", place, &borrowed(&now));
        drop(setup);
        let begun = match &then {
            None => line
                .map(|line| self.link.begin_change(line))
                .transpose()
                .map(|begun| begun.map(|(_, changing)| (None, changing))),
            Some((end, after, then)) => {
                let begun = self.link.begin_lease(place, &borrowed(&now), *end, &borrowed(then));
                let (end, after) = (*end, *after);
                let lent = |lease| Some(Lent { now: part, lease, end, after });
                begun.map(|begun| begun.map(|(lease, changing)| (lent(lease), changing)))
            }
        };
        let begun = match begun {
            // The device was deleted.
            Err(PortError::Closed) => None,
            begun => begun?,
        };
        let (lent, changing) = begun.unzip();
        let lent = lent.flatten();
        for it in followers.iter_mut().filter(|it| is_it(it)) {
            (it.rate, it.burst, it.is_stale) = (part.rate, part.burst, false);
            it.lent.clone_from(&lent);
        }
        Ok(changing)
    }

    /// Returns the qdiscs and classes whose rates follow shares, with what they have counted. The
    /// call waits for the device, for at most a second.
    #[must_use]
    pub fn shares(&self) -> Vec<Share> {
        let followers = self.followers.lock().clone();
        let mut shares: Vec<Share> = Vec::new();
        if followers.is_empty() {
            return shares;
        }
        let views = self.link.whole_tree_views().unwrap_or_default();
        let setup = self.link.setup();
        for it in &followers {
            let is_same = |share: &Share| share.place == it.place && share.limit == it.limit;
            if !shares.iter().any(is_same) {
                let bursts = setup.burst_options(it.place, &keys(&followers, it.place));
                shares.push(Share {
                    device: self.device.clone(),
                    place: it.place,
                    limit: it.limit.clone(),
                    weight: it.weight,
                    share: it.rate,
                    burst: it.burst,
                    has_burst: !bursts.is_empty(),
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
        self.following().iter().flat_map(Following::shares).collect()
    }

    /// Returns the rates that follow shares, for each device that has some. The caller can then set
    /// shares without the host: see [`Following`].
    #[must_use]
    pub fn following(&self) -> Vec<Following> {
        let following = self.devices.iter().filter(|device| !device.followers.lock().is_empty());
        following.map(Netdev::following).collect()
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
        let device = self.devices.get(device).map(Netdev::following);
        device.map_or(Ok(()), |device| device.set_share(place, limit, share, burst))
    }
}
