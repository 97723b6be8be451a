//! Adding, changing and removing classes of `htb`.

use super::class::{Below, Class, Config, Mode, ROOT};
use super::{ABOVE_ALL, Htb, NONE};
use crate::base::params::Values;
use crate::base::{Counters, Instant};
use crate::sched::{Backlog, Child, Classes, Cx};

impl Htb {
    /// Removes a class from all turns and from the classes that wait for tokens.
    fn retire(&mut self, place: usize) {
        self.deactivate(place);
        self.unwait(place);
        self.classes[place].mode = Mode::CanSend;
    }

    /// Makes a leaf class an inner class, so that it can have children.
    fn become_inner(&mut self, place: usize) {
        if !self.classes[place].is_leaf() {
            return;
        }
        self.retire(place);
        let above = self.classes.get(self.classes[place].parent).map(|parent| parent.level);
        let class = &mut self.classes[place];
        class.level = above.unwrap_or(ABOVE_ALL) - 1;
        if let Below::Leaf(child) = std::mem::replace(&mut class.below, Below::inner()) {
            self.orphans.push(child);
        }
    }

    /// Removes a class that takes no turns, does not wait, and has no children. All other classes
    /// keep their places.
    fn forget(&mut self, place: usize) {
        let class = &mut self.classes[place];
        self.places[usize::from(class.minor)] = NONE;
        class.below = Below::leaf(self.site);
        self.free.push(place);
    }

    /// Drops the packets that classes still held when they got children and so ceased to be leaves.
    #[cold]
    pub(super) fn purge_orphans(&mut self, cx: &mut Cx<'_>) {
        for mut child in std::mem::take(&mut self.orphans) {
            child.reset(cx, &mut self.held);
        }
    }
}

impl Classes for Htb {
    fn set(&mut self, minor: u16, parent: u16, values: &Values<'_>, now: Instant) {
        let config = Config::new(values, self.rate_to_quantum);
        self.site = values.site;
        if let Some(place) = self.place(minor) {
            let keeps_bytes = values.site.keeps_bytes;
            self.classes[place].change(&config, keeps_bytes, now);
            if keeps_bytes && self.classes[place].waits != 0 {
                // The class may have waited long enough at its new rate.
                self.unwait(place);
                self.wait(place, 0, now);
            }
            return;
        }
        let above = self.place(parent);
        if let Some(above) = above {
            self.become_inner(above);
            self.classes[above].children += 1;
        }
        let index = usize::from(minor);
        if index >= self.places.len() {
            self.places.resize(index + 1, NONE);
        }
        let class = Class::new(minor, above.unwrap_or(ROOT), &config, self.site, now);
        let place = self.free.pop().unwrap_or(self.classes.len());
        match self.classes.get_mut(place) {
            Some(gone) => *gone = class,
            None => self.classes.push(class),
        }
        self.places[index] = u32::try_from(place).unwrap_or(NONE);
    }

    fn remove(&mut self, minor: u16, cx: &mut Cx<'_>) {
        let Some(place) = self.place(minor) else { return };
        if let Below::Leaf(child) = &mut self.classes[place].below {
            child.reset(cx, &mut self.held);
        }
        self.retire(place);
        let parent = self.classes[place].parent;
        if let Some(above) = self.classes.get_mut(parent) {
            above.children -= 1;
            if above.children == 0 {
                self.retire(parent);
                self.classes[parent].become_leaf(self.site, cx.now);
            }
        }
        self.forget(place);
    }

    fn child(&mut self, minor: u16) -> Option<&mut Child> {
        let place = self.place(minor)?;
        match &mut self.classes[place].below {
            Below::Leaf(child) => Some(child),
            Below::Inner(_) => None,
        }
    }

    fn recount(&mut self, minor: u16) {
        let Some(place) = self.place(minor) else { return };
        let Below::Leaf(child) = &mut self.classes[place].below else { return };
        child.recount(&mut self.held);
        match child.held().packets {
            0 => self.deactivate(place),
            _ => self.activate(place),
        }
    }

    fn counters(&mut self, minor: u16) -> (Counters, Backlog) {
        let Some(place) = self.place(minor) else { return Default::default() };
        let class = &self.classes[place];
        let held = match &class.below {
            Below::Leaf(child) => child.held(),
            Below::Inner(_) => Backlog::default(),
        };
        (class.stats.counters(), held)
    }

    fn stats(&self, minor: u16, out: &mut dyn FnMut(&'static str, i64)) {
        if let Some(place) = self.place(minor) {
            self.classes[place].show(out);
        }
    }
}
