//! What happens to the interfaces while they are shaped, as far as users should hear of it.

use std::collections::BTreeMap;
use std::io;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

/// Returns the flags of all interfaces, by name.
pub(super) fn flags() -> io::Result<BTreeMap<String, InterfaceFlags>> {
    Ok(getifaddrs()?.map(|of| (of.interface_name, of.flags)).collect())
}

/// What is known of an interface: whether it is up, and its MTU in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    is_up: bool,
    mtu: u32,
}

/// An interface of a shaper.
#[derive(Debug)]
struct Interface<'a> {
    name: &'a str,
    /// Its MTU when the command started, and its state at the last look, as far as it was there.
    first_mtu: Option<u32>,
    state: Option<State>,
}

/// The interfaces of a shaper.
#[derive(Debug)]
pub(super) struct Interfaces<'a>(Vec<Interface<'a>>);

impl<'a> Interfaces<'a> {
    pub(super) fn new(names: impl Iterator<Item = &'a str>) -> Self {
        let unknown = |name| Interface { name, first_mtu: None, state: None };
        let mut all = Self(names.map(unknown).collect());
        all.look();
        all.0.iter_mut().for_each(|of| of.first_mtu = of.state.map(|state| state.mtu));
        all
    }

    /// Looks at the interfaces. Returns a line about each whose state has changed since the last
    /// look. (The bridge itself notices that an interface is gone, and breaks.)
    pub(super) fn look(&mut self) -> Vec<String> {
        // Without a list, nothing is known: the next look compares with the last one.
        let Ok(flags) = flags() else { return Vec::new() };
        let mut news = Vec::new();
        for Interface { name, first_mtu, state } in &mut self.0 {
            let before = *state;
            *state = flags.get(*name).and_then(|flags| {
                let is_up = flags.contains(InterfaceFlags::IFF_UP);
                Some(State { is_up, mtu: onramp_dev::interface_mtu(name).ok()? })
            });
            match (before, *state) {
                (Some(before), Some(now)) => news.extend(tell(name, *first_mtu, before, now)),
                (Some(_), None) => news.push(format!(
                    "there is no interface {name} any more: if it has another name now, its frames \
                     still pass, but its changes are told only under this one"
                )),
                (None, _) => {}
            }
        }
        news
    }
}

/// Returns what to tell of an interface whose MTU was `first` at the start, and whose state was
/// `before` and is `now`.
fn tell(name: &str, first: Option<u32>, before: State, now: State) -> Vec<String> {
    let mut lines = Vec::new();
    if before.is_up && !now.is_up {
        let again = format!("set it up with `ip link set {name} up`");
        lines.push(format!("{name} is down: what should leave through it is lost; {again}"));
    }
    if !before.is_up && now.is_up {
        lines.push(format!("{name} is up again"));
    }
    if before.mtu != now.mtu {
        let mtu = now.mtu;
        lines.push(match first.filter(|first| *first != mtu) {
            Some(first) => format!(
                "the MTU of {name} is {mtu} now, and was {first} at the start: set it back with \
                 `ip link set {name} mtu {first}`, or start the command again, because the qdiscs \
                 and AF_XDP know only the first one"
            ),
            None => format!("the MTU of {name} is {mtu} again"),
        });
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_told() {
        let (up, down) = (State { is_up: true, mtu: 1_500 }, State { is_up: false, mtu: 1_500 });
        let tell = |before, now| tell("e", Some(1_500), before, now);
        assert_eq!(tell(up, up), [""; 0]);
        assert!(tell(up, down)[0].contains("`ip link set e up`"));
        assert_eq!(tell(down, up), ["e is up again"]);
        let small = State { is_up: false, mtu: 1_400 };
        let both = tell(up, small);
        assert!(both.len() == 2 && both[1].contains("is 1400 now, and was 1500"), "{both:?}");
        assert_eq!(tell(small, up)[1], "the MTU of e is 1500 again");
    }
}
