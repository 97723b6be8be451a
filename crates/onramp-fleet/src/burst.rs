//! How much of a limit's burst a host may use.

/// What the limit of a host and the limits above it allow all their hosts together to send at once.
///
/// A host gets the part of a burst that its share is of the limit. So, whatever the shares are, the
/// bursts of all hosts are at most the limit's burst as long as the shares are at most the limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bursts(Vec<(u32, u64)>);

impl Bursts {
    /// Adds a limit of `rate` bytes per second with a burst of `bytes`.
    pub(crate) fn add(&mut self, bytes: u32, rate: u64) {
        self.0.push((bytes, rate.max(1)));
    }

    /// Returns how many bytes a host whose share is `share` bytes per second may send beyond its
    /// share in any interval: the least that one of the limits allows, rounded down. `None`: no
    /// limit has a burst, so each host has the one of its own qdisc.
    ///
    /// ```
    /// use onramp_fleet::{Definition, Definitions};
    ///
    /// let mut all = Definitions::new();
    /// let (rate, burst) = (1_000_000, Some(60_000));
    /// let limit =
    ///     Definition { rate, burst, weight: 1, guaranteed: 0, hosts: 4, floor: 1, parent: None };
    /// all.set("tenant", limit)?;
    /// let bursts = all.joined("tenant", "host", 1).expect("it has hosts").bursts;
    /// assert_eq!(bursts.of(250_000), Some(15_000));
    /// # Ok::<(), onramp_fleet::DefinitionError>(())
    /// ```
    #[must_use]
    pub fn of(&self, share: u64) -> Option<u64> {
        let part = |&(bytes, rate): &(u32, u64)| {
            // An operator may have just lowered the limit, and the share may still be the old one.
            let share = share.min(rate);
            let part = u128::from(bytes) * u128::from(share) / u128::from(rate);
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        self.0.iter().map(part).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_the_part_of_the_burst_that_its_share_is_of_the_limit() {
        assert_eq!(Bursts::default().of(7), None);
        let mut bursts = Bursts::default();
        bursts.add(1_000, 300);
        let parts: Vec<_> = [0, 1, 100, 299, 300, 400].map(|share| bursts.of(share)).into();
        assert_eq!(parts, [0, 3, 333, 996, 1_000, 1_000].map(Some));
        // The limit above has a larger rate, so a share is a smaller part of it.
        bursts.add(1_200, 600);
        assert_eq!([100, 300].map(|share| bursts.of(share)), [Some(200), Some(600)]);
        bursts.add(u32::MAX, u64::MAX);
        assert_eq!(bursts.of(u64::MAX), Some(1_000));
    }
}
