//! Warns if threads come so late that the shapers of a device lose part of their rate.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tracing::warn;

use crate::hub::Hub;

/// How often the daemon looks whether devices have lost time.
const PERIOD: Duration = Duration::from_secs(5);

/// Number and name of a device, and the nanoseconds that it has lost since it was made.
type Lost = (u32, String, u64);

/// Logs a warning, once for each device, if the device loses time. Returns when the daemon ends.
pub(crate) async fn watch(hub: Hub, mut ending: watch::Receiver<bool>) {
    tokio::select! {
        () = look(hub) => {}
        _ = ending.wait_for(|ending| *ending) => {}
    }
}

async fn look(hub: Hub) {
    let mut warned = BTreeSet::new();
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // If reading the devices panicked, the panic is already logged.
        let Ok(lost) = hub.with(|host| host.lost_ns()).await else { continue };
        for warning in warnings(&mut warned, &lost) {
            warn!("{warning}");
        }
    }
}

/// Returns a warning for each device that has lost time, unless its number is in `warned`, and adds
/// the number to `warned`.
fn warnings(warned: &mut BTreeSet<u32>, now: &[Lost]) -> Vec<String> {
    let is_new = |(index, _, lost_ns): &&Lost| *lost_ns > 0 && warned.insert(*index);
    now.iter().filter(is_new).map(|(_, name, lost_ns)| warning(name, *lost_ns)).collect()
}

fn warning(name: &str, lost_ns: u64) -> String {
    let lost = Duration::from_nanos(lost_ns);
    format!(
        "{name}: threads came too late to send its packets, and its shapers have lost the rate of \
         {lost:.1?}: give the daemon a higher priority (`nice -n -10 onramp daemon`, or \
         `chrt -f 10 onramp daemon`), or let \
         devices catch up on more lateness (--catch-up); further losses of {name} are only counted \
         (onramp_lost_seconds_total in the metrics)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_that_loses_time_is_warned_of_once() {
        let mut warned = BTreeSet::new();
        let mut look = |lost: [(u32, &str, u64); 2]| {
            let lost = lost.map(|(index, name, lost_ns)| (index, name.to_owned(), lost_ns));
            let lines = warnings(&mut warned, &lost);
            lines
                .iter()
                .map(|line| line.split(": ").next().unwrap_or_default().to_owned())
                .collect()
        };
        let none: [String; 0] = [];
        let seen: Vec<String> = look([(1, "d0", 0), (2, "d1", 0)]);
        assert_eq!(seen, none);
        assert_eq!(look([(1, "d0", 7), (2, "d1", 0)]), ["d0"]);
        assert_eq!(look([(1, "d0", 9), (2, "d1", 0)]), none);
        assert_eq!(look([(1, "d0", 9), (2, "d1", 1)]), ["d1"]);
        // A device that was made anew has another number.
        assert_eq!(look([(3, "d0", 9), (2, "d1", 1)]), ["d0"]);
    }

    #[test]
    fn a_warning_says_how_much_and_what_to_do() {
        let told = warning("u0", 12_340_000);
        for part in ["u0: ", " 12.3ms: ", "nice -n -10", "--catch-up", "onramp_lost_seconds_total"]
        {
            assert!(told.contains(part), "{part}: {told}");
        }
    }
}
