//! Logs when an interface of the kernel that a device uses fails, and when it works again.

use std::collections::BTreeMap;
use std::time::Duration;

use onramp_host::{Interface, InterfaceState};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use crate::hub::Hub;

/// How often the daemon looks at the interfaces.
const PERIOD: Duration = Duration::from_secs(1);

/// The states of the interfaces at the last look, by the number of the device and the name of the
/// interface.
type Known = BTreeMap<(u32, String), InterfaceState>;

/// Logs each change of the state of an interface. Returns when the daemon ends.
pub(crate) async fn watch(hub: Hub, mut ending: watch::Receiver<bool>) {
    tokio::select! {
        () = look(hub) => {}
        _ = ending.wait_for(|ending| *ending) => {}
    }
}

async fn look(hub: Hub) {
    let mut known = Known::new();
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // If reading the devices panicked, the panic is already logged. If the kernel lists no
        // interfaces now, it does at the next look.
        let Ok(Ok(now)) = hub.with(|host| host.interfaces()).await else { continue };
        for (state, line) in changes(&mut known, &now) {
            match state {
                InterfaceState::Works => info!("{line}"),
                _ => warn!("{line}"),
            }
        }
    }
}

/// Returns a line for each interface whose state has changed, with the new state. An interface that
/// is seen for the first time has worked before.
fn changes(known: &mut Known, now: &[Interface]) -> Vec<(InterfaceState, String)> {
    let before = std::mem::take(known);
    let mut lines = Vec::new();
    for interface in now {
        let key = (interface.index, interface.name.clone());
        if before.get(&key).copied().unwrap_or_default() != interface.state {
            lines.push((interface.state, line(interface)));
        }
        known.insert(key, interface.state);
    }
    lines
}

fn line(interface: &Interface) -> String {
    let Interface { name, device, .. } = interface;
    match interface.state {
        InterfaceState::Works => format!("{device}: {name} works again"),
        InterfaceState::NoCarrier => format!("{device}: {name} has no carrier"),
        InterfaceState::Down => {
            format!("{device}: {name} is down: set it up with `ip link set {name} up`")
        }
        InterfaceState::Gone => format!("{device}: there is no interface {name} any more"),
        InterfaceState::Replaced => format!(
            "{device}: it has lost {name}, which was made anew, or its TAP was set down: make the \
             device again (SIGHUP does, if the configuration has it)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_one_line() {
        let mut known = Known::new();
        let mut look = |index, state| {
            let (name, device) = ("eth1".to_owned(), "wan".to_owned());
            let lines = changes(&mut known, &[Interface { name, device, index, state }]);
            lines.into_iter().map(|(_, line)| line).collect::<Vec<_>>()
        };
        use InterfaceState::{Down, Gone, NoCarrier, Replaced, Works};
        let none: [String; 0] = [];
        assert_eq!(look(1, Works), none);
        assert_eq!(look(1, NoCarrier), ["wan: eth1 has no carrier"]);
        assert_eq!(look(1, NoCarrier), none);
        assert_eq!(look(1, Down), ["wan: eth1 is down: set it up with `ip link set eth1 up`"]);
        assert_eq!(look(1, Works), ["wan: eth1 works again"]);
        assert_eq!(look(1, Gone), ["wan: there is no interface eth1 any more"]);
        assert!(look(1, Replaced)[0].starts_with("wan: it has lost eth1, which was made anew"));
        // The device was made again, and has another number.
        assert_eq!(look(2, Works), none);
        assert_eq!(look(3, NoCarrier), ["wan: eth1 has no carrier"]);
    }
}
