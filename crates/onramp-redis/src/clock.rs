//! The clock of leases, and an alarm by this clock.

use std::fs::File;
use std::io;

use onramp_core::{Clock, Instant};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use tokio::net::unix::pipe::Receiver;

/// The clock `CLOCK_BOOTTIME`, by which [`drive`](fn@crate::drive) measures leases. Nobody can set
/// it, and it goes on while the machine is suspended: a machine that sleeps for longer than its
/// lease finds the lease run out when it wakes up.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Instant {
        let now = clock_gettime(ClockId::Boottime);
        let part = |number: i64| u64::try_from(number).expect("the clock began with the machine");
        Instant(part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec))
    }
}

/// An alarm by the [`BootClock`]. Tokio's own timers stand still while the machine is suspended, so
/// they would let a host send at an old rate after it wakes up.
///
/// The descriptor of a timer is waited for and read as that of a pipe, and tokio has a type for
/// pipes that does not look whether it has got one.
#[derive(Debug)]
pub(crate) struct Alarm(Receiver);

impl Alarm {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
        Ok(Self(Receiver::from_file_unchecked(File::from(timer))?))
    }

    /// Waits until the clock shows `at`. A caller that stops waiting may wait for another time.
    pub(crate) async fn until(&self, at: Instant) -> io::Result<()> {
        // A time of zero would switch the timer off.
        let ns = i64::try_from(at.0.max(1)).unwrap_or(i64::MAX);
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let it_value = Timespec { tv_sec: ns / 1_000_000_000, tv_nsec: ns % 1_000_000_000 };
        let once = Itimerspec { it_interval: zero, it_value };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &once)?;
        loop {
            self.0.readable().await?;
            match self.0.try_read(&mut [0; 8]) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_alarm_comes_at_its_time_and_not_before() {
        let alarm = Alarm::new().expect("a timer");
        for ns in [0, 1_000_000, 20_000_000] {
            let at = BootClock.now().after(ns);
            alarm.until(at).await.expect("a timer");
            assert!(BootClock.now() >= at);
        }
        alarm.until(Instant(0)).await.expect("a timer");
    }
}
