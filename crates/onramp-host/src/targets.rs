//! How commands of `tc` find the devices of a host, and which events these commands cause.

use onramp_core::show::{Out, Style};
use onramp_core::view::{Listed, QdiscView, Query, mq};
use onramp_core::{Change, Handle, Kinds, Setup};

use super::What;
use super::netdev::{Netdev, Netdevs};
use crate::tc::{Target, Targets};

impl Netdev {
    fn as_target(&self) -> Target<'_> {
        Target {
            name: &self.name,
            tree: &self.link,
            mtu: self.packet_max(),
            deaf: self.deaf(),
            followers: Some(&self.followers),
        }
    }

    /// Returns the views (states and counters) of the device's qdiscs, each with the number of its
    /// transmit queue.
    pub(super) fn views(&self) -> Vec<(usize, QdiscView)> {
        let queues = self.link.all_views().into_iter();
        let queues: Vec<_> =
            queues.filter_map(|(queue, views)| Some((queue, views.ok()?))).collect();
        let mq = mq(queues.iter().filter_map(|(_, views)| views.first()));
        let below = queues
            .into_iter()
            .flat_map(|(queue, views)| views.into_iter().map(move |view| (queue, view)));
        mq.map(|view| (0, view)).into_iter().chain(below).collect()
    }
}

impl Targets for Netdevs {
    fn target(&self, name: &str) -> Option<Target<'_>> {
        self.get(name).map(Netdev::as_target)
    }

    fn targets(&self) -> Vec<Target<'_>> {
        self.iter().map(Netdev::as_target).collect()
    }

    fn kinds(&self) -> Kinds {
        self.kinds.clone()
    }

    fn changed(&mut self, name: &str, line: &str, change: &Change) {
        if !self.is_heard {
            return;
        }
        let Some(device) = self.get(name) else { return };
        let setup = device.link.setup();
        let told = told(&setup, device.packet_max(), line, change);
        let name = name.to_owned();
        self.happened.extend(told.into_iter().map(|(what, line)| (what, name.clone(), line)));
    }

    fn has_device(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    fn is_in_fleet(&self) -> bool {
        self.is_in_fleet
    }
}

/// Returns the events that a change causes, with lines as `tc monitor` writes them.
fn told(setup: &Setup, mtu: u32, line: &str, change: &Change) -> Vec<(What, String)> {
    let name = setup.device();
    let list = |query: Query, classes: bool| {
        let mut out = Out::new(Style::default());
        let listed = Listed::new(name, setup, mtu, []);
        if classes {
            listed.classes(query, &mut out)
        } else {
            listed.qdiscs(query, &mut out)
        }
        out.finish().lines().next().unwrap_or_default().trim_end().to_owned()
    };
    let qdisc = |major: u16| list(Query { handle: Some(major.into()), ..Query::default() }, false);
    let mut told: Vec<_> = setup
        .taken()
        .iter()
        .take(1)
        .map(|taken| {
            let place =
                taken.parent.map_or_else(|| "root".into(), |class| format!("parent {class}"));
            let device = name.unwrap_or_default();
            let line = format!("qdisc {} {} dev {device} {place}", taken.kind, taken.handle);
            (What::Deleted, line)
        })
        .collect();
    match change {
        Change::Nothing | Change::Gone(_) | Change::RootGone => {}
        Change::Qdisc(major) => told.push((What::Added, qdisc(*major))),
        Change::Parameters(major) => told.push((What::Changed, qdisc(*major))),
        Change::Class(class) => {
            let handle = Some(u32::from(class.major) << 16 | u32::from(class.minor));
            let parent = Some(u32::from(class.major) << 16);
            let query = Query { handle, parent, ..Query::default() };
            let what = if is_new(line) { What::Added } else { What::Changed };
            told.push((what, list(query, true)));
        }
        Change::ClassGone(class) => told.push((What::Deleted, class_line(setup, *class))),
        Change::Ingress | Change::Filters(_) => {
            let what = match line.split(' ').nth(1) {
                Some("delete") => What::Deleted,
                Some("add") => What::Added,
                _ => What::Changed,
            };
            let rest = line.splitn(3, ' ').nth(2).unwrap_or_default();
            told.push((what, format!("{} {rest}", line.split(' ').next().unwrap_or_default())));
        }
    }
    told
}

/// Returns whether the command can only have added a new object, and cannot have changed an
/// existing one.
fn is_new(line: &str) -> bool {
    line.split(' ').nth(1) == Some("add")
}

fn class_line(setup: &Setup, class: Handle) -> String {
    let kind = setup.kind_of(class.major).unwrap_or_default();
    format!("class {kind} {class} dev {}", setup.device().unwrap_or_default())
}
