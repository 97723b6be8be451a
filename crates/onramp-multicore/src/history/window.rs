//! The measured time of a simulation, what was counted in it, and work that takes not always the
//! same time.

use onramp_machine::hook;

/// The time of the simulation, picoseconds. To read it costs the simulated program nothing.
pub(super) fn now() -> u64 {
    hook::time_ps().expect("inside a simulation")
}

/// Local work outside the locks, which takes from a half to one and a half of its mean, each as
/// likely. If it took the same time for every packet, processors of the same period would meet at a
/// lock always or never.
#[derive(Debug)]
pub(super) struct Varied(fastrand::Rng);

impl Varied {
    pub(super) fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// Returns how long work takes this time whose mean is `ps` picoseconds.
    pub(super) fn time(&mut self, ps: u64) -> u64 {
        ps / 2 + self.0.u64(0..=ps)
    }
}

/// The measured time, picoseconds of simulated time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) from: u64,
    pub(super) until: u64,
}

impl Window {
    /// Whether a moment lies in the window.
    pub(super) fn has(self, at: u64) -> bool {
        (self.from..self.until).contains(&at)
    }

    /// Returns how much of the time from `begins` to `ends` lies in the window.
    pub(super) fn part(self, begins: u64, ends: u64) -> u64 {
        ends.min(self.until).saturating_sub(begins.max(self.from))
    }

    /// Returns the length of the window, seconds.
    pub(super) fn seconds(self) -> f64 {
        (self.until - self.from) as f64 / 1e12
    }
}

/// Packets of the first and of the second half of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Halves(pub(super) [u64; 2]);

impl Halves {
    /// Counts a packet that passed at a moment.
    pub(super) fn count(&mut self, window: Window, at: u64) {
        if window.has(at) {
            let is_second = at >= window.from.midpoint(window.until);
            self.0[usize::from(is_second)] += 1;
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.0 = [self.0[0] + other.0[0], self.0[1] + other.0[1]];
    }

    /// Returns the packets of both halves.
    pub(super) fn all(self) -> u64 {
        self.0[0] + self.0[1]
    }

    /// Returns how much the halves differ, as a share of their mean.
    #[cfg(test)]
    pub(super) fn difference(self) -> f64 {
        2.0 * self.0[0].abs_diff(self.0[1]) as f64 / self.all() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varied_work_keeps_its_mean() {
        let mut varied = Varied::new(1);
        let times: Vec<_> = (0..1_000).map(|_| varied.time(1_000)).collect();
        assert!(times.iter().all(|time| (500..=1_500).contains(time)));
        let sum: u64 = times.iter().sum();
        assert!((970_000..1_030_000).contains(&sum), "{sum}");
        assert_eq!(varied.time(0), 0);
    }

    #[test]
    fn only_the_window_counts() {
        let window = Window { from: 100, until: 200 };
        assert_eq!(window.part(0, 120), 20);
        assert_eq!(window.part(150, 300), 50);
        assert_eq!((window.part(0, 90), window.part(210, 220)), (0, 0));
        let mut halves = Halves::default();
        for at in [99, 100, 149, 150, 199, 200] {
            halves.count(window, at);
        }
        assert_eq!(halves, Halves([2, 2]));
        halves.add(Halves([0, 4]));
        assert_eq!(halves.all(), 8);
        assert!((halves.difference() - 1.0).abs() < 1e-9);
    }
}
