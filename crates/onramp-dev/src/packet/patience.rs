//! How often a packet socket offers a frame again that the kernel has refused.

/// Decides how often a frame is offered again that the kernel has refused while it held no other
/// frame of the socket.
///
/// The kernel's answer does not tell a frame for which there is no room at present from a frame
/// that a filter or a qdisc drops each time. So the device learns whether it is of use to wait: at
/// first it offers a frame again [`Patience::MOST`] times. Each time that this was in vain, it
/// halves the number, down to one; when a frame is taken that has waited, it starts again with all.
/// A filter then holds the other frames up for a fifth of a second in all, and later for one short
/// wait in each burst; and frames do not get lost where the traffic of other programs fills the
/// interface's qdisc now and then.
#[derive(Debug)]
pub(super) struct Patience {
    /// How often a frame is offered again.
    retries: u32,
    /// How often the frame that waits was refused.
    refused: u32,
    /// Whether a frame was given up in the present call of the device. The frames behind it have
    /// waited with it, so those that are refused, too, do not wait again.
    over: bool,
}

impl Patience {
    /// How often a frame is offered again at most: with the waits of the device's `Backoff`, for
    /// about 100 ms. In that time, a link of 1 Mbit/s sends eight full frames.
    pub(super) const MOST: u32 = 100;

    pub(super) const fn new() -> Self {
        Self { retries: Self::MOST, refused: 0, over: false }
    }

    /// A call of the device begins.
    pub(super) const fn begin(&mut self) {
        self.over = false;
    }

    /// The kernel has refused the first frame. Returns whether the frame is to be offered again.
    pub(super) fn wait(&mut self) -> bool {
        if self.over {
            return false;
        }
        self.refused += 1;
        if self.refused <= self.retries {
            return true;
        }
        self.retries = (self.retries / 2).max(1);
        self.over = true;
        false
    }

    /// The kernel has taken the first frame, or a segment of it.
    pub(super) const fn taken(&mut self) {
        if self.refused > 0 {
            self.retries = Self::MOST;
            self.refused = 0;
        }
    }

    /// The first frame was dropped.
    pub(super) const fn dropped(&mut self) {
        self.refused = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offers a frame that is always refused, once in each call of the device. Returns how often it
    /// waited.
    fn in_vain(patience: &mut Patience) -> u32 {
        let mut waits = 0;
        patience.begin();
        while patience.wait() {
            waits += 1;
            patience.begin();
        }
        patience.dropped();
        waits
    }

    #[test]
    fn waits_less_while_it_is_of_no_use() {
        let mut patience = Patience::new();
        let mut waits = || in_vain(&mut patience);
        assert_eq!([waits(), waits(), waits(), waits()], [100, 50, 25, 12]);
        assert_eq!([waits(), waits(), waits(), waits()], [6, 3, 1, 1]);
        // A frame that is taken at once says nothing about waiting.
        patience.begin();
        patience.taken();
        assert_eq!(in_vain(&mut patience), 1);
        // One that was refused before does.
        patience.begin();
        assert!(patience.wait());
        patience.begin();
        patience.taken();
        assert_eq!(in_vain(&mut patience), 100);
    }

    #[test]
    fn those_behind_have_waited_too() {
        let mut patience = Patience::new();
        in_vain(&mut patience);
        // In the same call: one is refused, one is taken, and one is refused again.
        assert!(!patience.wait());
        patience.dropped();
        patience.taken();
        assert!(!patience.wait());
        patience.dropped();
        assert_eq!(in_vain(&mut patience), 50, "the next call");
    }

    /// The waits of a frame that was dropped for another reason are not those of the next one.
    #[test]
    fn each_frame_waits_for_itself() {
        let mut patience = Patience::new();
        (0..60).for_each(|_| assert!(patience.wait()));
        patience.dropped();
        assert_eq!(in_vain(&mut patience), 100);
    }
}
