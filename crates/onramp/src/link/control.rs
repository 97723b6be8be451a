//! Trees that are changed and looked at while others send.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use onramp_core::filter::FilterSpec;
use onramp_core::qdisc::Cx;
use onramp_core::view::{self, QdiscView};
use onramp_core::{Change, Clock, Edit, Facts, Handle, RootQdisc, Setup};

use super::{Link, PortError};
use crate::Line;
use crate::shared::{BoxDevice, Shared};
use crate::slots::Slot;

/// How long somebody waits for the owners of ports that are with their devices.
const PATIENCE: Duration = Duration::from_secs(1);

/// Something to do with a tree, and what it gives.
type PortJob<T> = Box<dyn FnOnce(&mut RootQdisc, &mut Cx<'_>) -> T + Send>;

/// What was asked of ports, and who answers.
struct Answers<T> {
    from: Receiver<(usize, T)>,
    /// The ports that were asked, in order, and those that could not be.
    asked: Vec<(usize, Option<PortError>)>,
}

impl Link {
    /// Does what a line of `tc` says that adds, changes or deletes something: `qdisc replace dev d0
    /// root fq`. Of an `mq` at the root, what stands below class `k` is port `k - 1`; any other
    /// root stands in front of each port; of a [`Host`](crate::Host)'s device, in front of all.
    /// What a qdisc holds that is replaced is dropped (`purged`), as in Linux; one that only gets
    /// other parameters wakers it, if its kind can.
    ///
    /// Nobody who sends waits for it. A port that is with its device does it when it is back.
    ///
    /// # Errors
    ///
    /// [`PortError::Config`]: nothing has changed. [`PortError::Late`]: that
    /// takes long; it is going to be done. [`PortError::Blocked`] or [`PortError::Dead`]: but
    /// for that port, it is done; one that was blocked gets the whole tree anew with the next
    /// change.
    pub fn change(&self, line: impl Into<Line>) -> Result<Change, PortError> {
        let (change, done) = self.change_and_report(line)?;
        done?;
        Ok(change)
    }

    /// As [`change`](Self::change), but returns what has changed in the description of the tree also
    /// where a port has not followed: its error then stands beside the change.
    ///
    /// # Errors
    ///
    /// [`PortError::Config`], [`PortError::Closed`]: nothing has changed.
    pub fn change_and_report(
        &self,
        line: impl Into<Line>,
    ) -> Result<(Change, Result<(), PortError>), PortError> {
        let shared = self.shared();
        let mut plan = shared.open_plan().ok_or(PortError::Closed)?;
        let line = line.into().on(plan.tree.device().unwrap_or("link"));
        // Nobody else has it for long: it is rarely cloned.
        let change = Arc::make_mut(&mut plan.tree).change(&line).map_err(PortError::Config)?;
        let setup = plan.tree.clone();
        shared.follow(&plan);
        let queue = Edit::queue(&setup, &change);
        let ports = queue.map_or_else(|| shared.fronts(), |queue| queue..queue + 1);
        let answers = shared.ask(0..usize::MAX, |port, slot| {
            if slot.port.death().is_some() || !slot.is_open() {
                return None;
            }
            let (mtu, seed) = (plan.mtu(slot.known.mtu), plan.seed(port));
            let edit = if slot.is_stale() {
                Edit::root(&setup, Some(port), mtu, seed)?
            } else if ports.contains(&port) {
                Edit::new(&setup, &change, Some(port), mtu, seed)?
            } else {
                return None;
            };
            Some(Box::new(move |root: &mut RootQdisc, cx: &mut Cx<'_>| root.edit(edit, cx)))
        });
        for (port, error) in &answers.asked {
            shared.slot(*port).set_stale(error.is_some());
        }
        drop((plan, setup));
        let answers = answers.gather(&shared.clock).into_iter();
        // What is not done is worse than what is going to be.
        let is_late = |error: &PortError| matches!(error, PortError::Late(_));
        let worst = answers.filter_map(|(_, done)| done.err()).min_by_key(is_late);
        Ok((change, worst.map_or(Ok(()), Err)))
    }

    /// The description of the tree in front of its ports.
    #[must_use]
    pub fn setup(&self) -> Arc<Setup> {
        self.shared().plan().map(|plan| plan.tree.clone()).unwrap_or_default()
    }

    /// Tells its tree what the device below is: one whose root serves all queues together. Qdiscs
    /// that are built or changed from now on go by its largest packet; others keep what they were
    /// built with, as in Linux.
    pub fn describe_device(&self, name: &str, facts: Facts) {
        let shared = self.shared();
        let Some(mut plan) = shared.plan() else { return };
        plan.mtu = Some(facts.mtu);
        plan.shares_root = true;
        Arc::make_mut(&mut plan.tree).of_device(name, facts);
        shared.follow(&plan);
    }

    /// What every qdisc in front of a port has counted, and holds; parents first. Below an `mq`,
    /// the first one stands below the port's class. What serves all ports of a
    /// [`Host`](crate::Host)'s device is in front of each.
    ///
    /// # Errors
    ///
    /// [`PortError::Unknown`], [`PortError::Late`], [`PortError::Blocked`], [`PortError::Dead`].
    pub fn views(&self, port: usize) -> Result<Vec<QdiscView>, PortError> {
        if self.shared().is_copy() {
            return Err(PortError::Closed);
        }
        let only = self.views_of(Some(port)).pop();
        only.map_or(Err(PortError::Unknown(port)), |(_, views)| views)
    }

    /// The same of all ports, by their numbers, those that were removed left out; what serves all
    /// of them stands once, in front of the first.
    #[must_use]
    pub fn all_views(&self) -> Vec<(usize, Result<Vec<QdiscView>, PortError>)> {
        self.views_of(None)
    }

    /// The whole tree, as `tc` lists it: of an `mq`, its own view, and what stands below it;
    /// else the sums of what stands in front of all ports. Ports that do not answer are left out.
    #[must_use]
    pub fn tree_views(&self) -> Vec<QdiscView> {
        let views = self.all_views().into_iter().filter_map(|(_, views)| views.ok());
        view::whole(views)
    }

    /// The filters at a qdisc or class, as they run, with the sums of what they have counted at all
    /// ports. Ports that do not answer are left out.
    #[must_use]
    pub fn filters(&self, place: Handle) -> Vec<FilterSpec> {
        let shared = self.shared();
        let Some(plan) = shared.plan() else { return Vec::new() };
        let answers = shared.ask(shared.fronts(), |port, slot| {
            let setup = plan.tree.clone();
            let look = move |root: &mut RootQdisc, cx: &mut Cx<'_>| {
                root.filters_at(&setup, place, Some(port), cx)
            };
            slot.is_open().then(|| Box::new(look) as PortJob<_>)
        });
        drop(plan);
        let answers = answers.gather(&shared.clock);
        FilterSpec::whole(answers.into_iter().filter_map(|(_, filters)| filters.ok()))
    }

    /// From now on, each qdisc measures how long packets take from push to dequeue, or no longer:
    /// [`QdiscView::sojourn_ns`].
    pub fn measure(&self, measures: bool) {
        let shared = self.shared();
        let Some(mut plan) = shared.plan() else { return };
        plan.measures = measures;
        let answers = shared.ask(0..usize::MAX, |_, _| {
            Some(Box::new(move |root: &mut RootQdisc, _: &mut Cx<'_>| root.measure(measures)))
        });
        drop(plan);
        answers.gather(&shared.clock);
    }

    fn views_of(&self, port: Option<usize>) -> Vec<(usize, Result<Vec<QdiscView>, PortError>)> {
        let shared = self.shared();
        let Some(plan) = shared.plan() else { return Vec::new() };
        let known = |port| if port < shared.ports() { shared.front(port) } else { port };
        let ports =
            port.map(known).map_or_else(|| shared.fronts(), |port| port..port.saturating_add(1));
        let answers = shared.ask(ports, |port, slot| {
            let setup = plan.tree.clone();
            let look = move |root: &mut RootQdisc, _: &mut Cx<'_>| root.views(&setup, Some(port));
            slot.is_open().then(|| Box::new(look) as PortJob<_>)
        });
        drop(plan);
        answers.gather(&shared.clock)
    }
}

impl Shared {
    /// Has something done at some of the ports, as `job` says.
    fn ask<T: Send + 'static>(
        &self,
        ports: Range<usize>,
        mut job: impl FnMut(usize, &Slot<BoxDevice>) -> Option<PortJob<T>>,
    ) -> Answers<T> {
        let (answer, from) = channel();
        let mut asked = Vec::new();
        for port in ports.start..ports.end.min(self.slots.len()) {
            let slot = self.slot(port);
            let Some(job) = job(port, slot) else { continue };
            let answer = answer.clone();
            let job = Box::new(move |root: &mut RootQdisc, cx: &mut Cx<'_>| {
                // Who asked may have gone.
                let _ = answer.send((port, job(root, cx)));
            });
            let taken = slot.port.with(job, self.clock.now(), &self.waker(slot));
            asked.push((port, taken.is_err().then_some(PortError::Blocked(port))));
        }
        Answers { from, asked }
    }
}

impl<T> Answers<T> {
    /// What the ports say, by their numbers.
    fn gather(self, clock: &impl Clock) -> Vec<(usize, Result<T, PortError>)> {
        let deadline = clock.now() + PATIENCE;
        let missing = self.asked.iter().filter(|(_, error)| error.is_none()).count();
        let mut came = Vec::with_capacity(missing);
        let mut silent: fn(usize) -> PortError = PortError::Late;
        for _ in 0..missing {
            match self.from.recv_timeout(Duration::from_nanos(deadline.since(clock.now()))) {
                Ok(answer) => came.push(answer),
                Err(RecvTimeoutError::Timeout) => break,
                // A dead port drops what is asked of it.
                Err(RecvTimeoutError::Disconnected) => {
                    silent = PortError::Dead;
                    break;
                }
            }
        }
        came.sort_by_key(|(port, _)| *port);
        let mut came = came.into_iter().peekable();
        let answer = |(port, error): (usize, Option<PortError>)| {
            let answer = came.next_if(|(answered, _)| *answered == port);
            let answer = answer.map(|(_, answer)| answer);
            (port, answer.ok_or_else(|| error.unwrap_or_else(|| silent(port))))
        };
        self.asked.into_iter().map(answer).collect()
    }
}
