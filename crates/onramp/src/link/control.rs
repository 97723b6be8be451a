//! Changing and listing the trees of a link while other threads send.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use onramp_core::filter::FilterSpec;
use onramp_core::qdisc::Cx;
use onramp_core::view::{self, QdiscView};
use onramp_core::{Change, Clock, Edit, Facts, Handle, Instant, Pending, RootQdisc, Setup};

use super::Link;
use crate::ingress::LinkIngress;
use crate::shared::{BoxDevice, LinkConfig, Locked, Shared};
use crate::slots::Slot;
use crate::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use crate::{Line, PortError};

/// How long a caller waits for an answer of ports whose owners are calling their devices at the
/// moment.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often a caller that waits for answers makes the rounds of a link without threads,
/// nanoseconds.
const ROUND_NS: u64 = 1_000_000;

/// Work that is done on the tree of a port, and that returns a result.
type PortJob<T> = Box<dyn FnOnce(&mut RootQdisc, &mut Cx<'_>) -> T + Send>;

/// The answers that are expected from ports to which work was given: the channel on which the
/// answers come, and the ports that were asked.
struct Answers<T> {
    from: Receiver<(usize, Option<T>)>,
    /// The ports that were asked, in order of their numbers. A port that could not be asked has an
    /// error beside it.
    asked: Vec<(usize, Option<PortError>)>,
}

/// The answer that a port owes. A dead port drops the work that it is given, and this with it,
/// which answers `None`.
struct Owed<T> {
    port: usize,
    to: Sender<(usize, Option<T>)>,
    answer: Option<T>,
}

impl<T> Owed<T> {
    fn give(mut self, answer: T) {
        self.answer = Some(answer);
    }
}

impl<T> Drop for Owed<T> {
    fn drop(&mut self) {
        // `send` fails if the thread that asked has stopped waiting for the answer.
        let _ = self.to.send((self.port, self.answer.take()));
    }
}

/// A change of a link's tree that has begun. [`Link::begin_change`] returns it. The ports make the
/// change even if this is dropped.
pub struct Changing {
    answers: Answers<()>,
    /// The link, which this does not keep open.
    link: Weak<Shared>,
}

impl fmt::Debug for Changing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changing").field("asked", &self.answers.asked).finish_non_exhaustive()
    }
}

impl Changing {
    /// Whether the change concerns no port.
    pub(super) const fn asks_nobody(&self) -> bool {
        self.answers.asked.is_empty()
    }

    /// Waits until all ports have made the change, for at most a second.
    ///
    /// # Errors
    ///
    /// [`PortError::Late`], [`PortError::Blocked`] and [`PortError::Dead`], as
    /// [`Link::change`] returns them.
    pub fn wait(self) -> Result<(), PortError> {
        let answers = match self.link.upgrade() {
            Some(link) => self.answers.gather(&link),
            // Ports that are gone have answered, or never will.
            None => {
                let came = std::iter::from_fn(|| self.answers.from.try_recv().ok()).collect();
                self.answers.all(came)
            }
        };
        // If several ports report errors, return the error of a port that will not make the change,
        // rather than the error of a port that will make it late.
        let is_late = |error: &PortError| matches!(error, PortError::Late(_));
        let worst = answers.into_iter().filter_map(|(_, done)| done.err()).min_by_key(is_late);
        worst.map_or(Ok(()), Err)
    }
}

impl Link {
    /// Carries out a line of `tc` that adds, changes or deletes a qdisc, class or filter, such as
    /// `qdisc replace root fq`. The line need not name a device; the link's only device is called
    /// `link`, unless the lines with which the link was built gave it another name. Returns what
    /// has changed.
    ///
    /// ```
    /// let link = onramp::Link::devices([Box::new(onramp::dev::Null::default()) as _]).build()?;
    /// link.change("qdisc replace root handle 1: fq limit 1000")?;
    /// link.change("qdisc change dev link root fq flow_limit 50")?;
    /// let error = link.change("qdisc").unwrap_err().to_string();
    /// assert!(error.contains("the line lists, and changes nothing"), "{error}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// If the root is `mq`, the tree below class `k` belongs to port `k - 1`. Any other root stands
    /// in front of each port, or, on a device of a host (crate `onramp-host`), in front of all
    /// ports together.
    ///
    /// A qdisc that is replaced drops the packets that it holds (drop reason `purged`), as in
    /// Linux. A qdisc that only gets other parameters keeps its packets, if its kind can.
    ///
    /// Threads that send never wait for the change. If a port's owner is calling the device, the
    /// port makes the change when the owner returns. The crate `onramp-host` has a function `tc`
    /// that also lists.
    ///
    /// # Errors
    ///
    /// [`PortError::Config`]: the line is wrong, and nothing has changed. [`PortError::Closed`]:
    /// the link is closed, and nothing has changed. [`PortError::Late`]: a port has not made the
    /// change after a second, but is going to. [`PortError::Blocked`] or [`PortError::Dead`]: all
    /// ports except the named one have made the change, or are going to. A port that was blocked
    /// gets the whole tree with the next change.
    pub fn change(&self, line: impl Into<Line>) -> Result<Change, PortError> {
        let (change, done) = self.change_and_report(line)?;
        done?;
        Ok(change)
    }

    /// Carries out a line as [`change`](Self::change) does. If a port does not make the change,
    /// still returns what has changed in the description of the tree, together with the error of
    /// that port.
    ///
    /// # Errors
    ///
    /// [`PortError::Config`] and [`PortError::Closed`]: nothing has changed.
    pub fn change_and_report(
        &self,
        line: impl Into<Line>,
    ) -> Result<(Change, Result<(), PortError>), PortError> {
        let (change, changing) = self.begin_change(line)?;
        Ok((change, changing.wait()))
    }

    /// Begins to carry out a line as [`change`](Self::change) does, and returns what has changed in
    /// the description of the tree. The call waits for no device: a port whose owner is calling its
    /// device makes the change when the owner returns. [`Changing::wait`] waits for the ports.
    ///
    /// A program that keeps something beside the tree uses this to change both under a lock, and to
    /// wait for the ports without the lock.
    ///
    /// # Errors
    ///
    /// [`PortError::Config`] and [`PortError::Closed`]: nothing has changed.
    pub fn begin_change(&self, line: impl Into<Line>) -> Result<(Change, Changing), PortError> {
        let shared = self.shared();
        // Convert before the configuration is locked: the conversion may be foreign code that calls
        // this link.
        let line = line.into();
        let mut plan = shared.open_plan().ok_or(PortError::Closed)?;
        let line = line.on(plan.tree.device().unwrap_or("link"));
        // `make_mut` clones the tree only if another thread holds a reference to the tree. That is
        // rare, because threads hold such references only for a short time.
        let change = Arc::make_mut(&mut plan.tree).change(&line).map_err(PortError::Config)?;
        let changing = self.spread(plan, &change, |_| None);
        Ok((change, changing))
    }

    /// Gives a change of the description to the ports that it concerns. `hold` returns the lease
    /// that a port is to hold from then on, and the change at its end.
    pub(super) fn spread(
        &self,
        mut plan: Locked<'_, LinkConfig>,
        change: &Change,
        mut hold: impl FnMut(usize) -> Option<(Pending, Edit)>,
    ) -> Changing {
        let shared = self.shared();
        plan.ingresses.iter().for_each(|ingress| ingress.follow(&plan.tree, change));
        shared.follow(&mut plan);
        // A change of one queue concerns one port of thousands, and those that missed a change.
        let queue = Edit::queue(&plan.tree, change);
        let ports = queue.map_or_else(|| shared.fronts(), |queue| queue..queue + 1);
        let missed = plan.stale.iter().copied().filter(|port| !ports.contains(port));
        let mut concerned: Vec<usize> = ports.clone().chain(missed).collect();
        concerned.sort_unstable();
        let answers = shared.ask(concerned, |port, slot| {
            if slot.port.death().is_some() || !slot.is_open() {
                return None;
            }
            let (mtu, seed) = (plan.mtu(slot.known.mtu), plan.seed(port));
            let edit = if plan.stale.contains(&port) {
                Edit::root(&plan.tree, Some(port), mtu, seed)?
            } else {
                Edit::new(&plan.tree, change, Some(port), mtu, seed)?
            };
            let held = hold(port);
            Some(Box::new(move |root: &mut RootQdisc, cx: &mut Cx<'_>| {
                root.edit(edit, cx);
                if let Some((lease, after)) = held {
                    root.hold(lease, after);
                }
            }))
        });
        for (port, error) in &answers.asked {
            plan.set_stale(*port, error.is_some());
        }
        Changing { answers, link: Arc::downgrade(&self.handle.shared) }
    }

    /// Returns the description of the tree in front of the link's ports. Use it to list the tree,
    /// or to build another link with the same tree. In a child of `fork`, returns an empty
    /// description.
    #[must_use]
    pub fn setup(&self) -> Arc<Setup> {
        self.shared().plan().map(|plan| plan.tree.clone()).unwrap_or_default()
    }

    /// Tells the link that it belongs to the device `name` of a host, in which one root serves all
    /// queues together, and what is known of the device now. As in Linux, qdiscs and classes keep
    /// the defaults that the device gave them when they were added, and a `pfifo_fast` in front of
    /// a transmit queue gets a new `txqueuelen` at once. A host of devices calls this method; a
    /// program with a link of its own has no need to.
    ///
    /// Once the device has been up, a default qdisc at the root stays there, as in Linux: a new
    /// [`fallback`](Facts::fallback) stands at the root only after a command has added another root
    /// and a later one has deleted it.
    ///
    /// If flows move to other ports by this call, because one root serves all ports from now on, or
    /// no longer does, the link builds the trees of all ports anew and drops the packets that they
    /// hold (drop reason `purged`), as [`set_tree`](Self::set_tree) does. Otherwise newer packets
    /// of a flow could overtake them. It also does so if a device that has never been up gets
    /// another fallback.
    pub fn describe_device(&self, name: &str, facts: Facts) {
        let shared = self.shared();
        let Some(mut plan) = shared.plan() else { return };
        plan.mtu = Some(facts.mtu);
        plan.shares_root = true;
        let resizes = facts.txqueuelen != plan.tree.facts().txqueuelen;
        let is_new = Arc::make_mut(&mut plan.tree).device_changed(name, facts);
        if shared.follow(&mut plan) || is_new {
            // A port whose device blocks is marked as stale, and gets the tree with the next
            // change.
            let _ = shared.rebuild(&mut plan);
        } else if resizes {
            let answers = shared.ask(shared.fronts(), |port, slot| {
                let (mtu, seed) = (plan.mtu(slot.known.mtu), plan.seed(port));
                let edit = Edit::txqueuelen(&plan.tree, Some(port), mtu, seed)?;
                let is_live =
                    slot.port.death().is_none() && slot.is_open() && !plan.stale.contains(&port);
                let job = move |root: &mut RootQdisc, cx: &mut Cx<'_>| root.edit(edit, cx);
                is_live.then(|| Box::new(job) as PortJob<_>)
            });
            for (port, _) in answers.asked.iter().filter(|(_, error)| error.is_some()) {
                plan.set_stale(*port, true);
            }
        }
    }

    /// Tells the link that a device of its host, which may be the link's own, has the name `new` in
    /// place of `old`: filters whose `indev` is this device are listed with the new name. A host
    /// of devices calls this method; a program with a link of its own has no need to.
    pub fn rename_indev(&self, old: &str, new: &str) {
        let Some(mut plan) = self.shared().plan() else { return };
        Arc::make_mut(&mut plan.tree).rename_indev(old, new);
    }

    /// Returns the counters and backlog of every qdisc in front of a port; a parent stands before
    /// its children. Below an `mq`, the first entry is the qdisc below the class that belongs to
    /// the port. A tree that serves all ports of a device of a host (crate `onramp-host`) is
    /// returned for each of its ports.
    ///
    /// The call waits for the port's owner, up to a second.
    ///
    /// # Errors
    ///
    /// [`PortError::Unknown`], [`PortError::Late`], [`PortError::Blocked`], [`PortError::Dead`],
    /// and [`PortError::Closed`] in a child of `fork`.
    pub fn views(&self, port: usize) -> Result<Vec<QdiscView>, PortError> {
        if self.shared().is_copy() {
            return Err(PortError::Closed);
        }
        let only = self.views_of(Some(port)).pop();
        only.map_or(Err(PortError::Unknown(port)), |(_, views)| views)
    }

    /// Returns the result of [`views`](Self::views) for each port, with the port's number. Removed
    /// ports are left out. A tree that serves all ports is returned once, for the first port.
    #[must_use]
    pub fn all_views(&self) -> Vec<(usize, Result<Vec<QdiscView>, PortError>)> {
        self.views_of(None)
    }

    /// Returns the views (counters and backlogs) of the whole tree, as `tc` lists it. With an `mq`
    /// at the root, the result is the view of the `mq` and the views below each of its classes;
    /// otherwise, it is the sums over all ports. Ports that do not answer within a second are left
    /// out.
    #[must_use]
    pub fn tree_views(&self) -> Vec<QdiscView> {
        let views = self.all_views().into_iter().filter_map(|(_, views)| views.ok());
        view::whole(views)
    }

    /// Returns what [`tree_views`](Self::tree_views) returns, if all ports answer. Use it to
    /// compare counters with earlier ones: a port that is left out looks as if its packets had
    /// gone.
    ///
    /// # Errors
    ///
    /// [`PortError`] of the first port that does not answer.
    pub fn whole_tree_views(&self) -> Result<Vec<QdiscView>, PortError> {
        let views = self.all_views().into_iter().map(|(_, views)| views);
        Ok(view::whole(views.collect::<Result<Vec<_>, _>>()?))
    }

    /// Returns the filters in force at the qdisc or class `place`, with the sums of their counters
    /// over all ports, or, for packets that come in, over all that [`ingress`](Self::ingress) has
    /// returned. Ports that do not answer within a second are left out.
    #[must_use]
    pub fn filters(&self, place: Handle) -> Vec<FilterSpec> {
        let shared = self.shared();
        let Some(plan) = shared.plan() else { return Vec::new() };
        if plan.tree.is_ingress(place) {
            return FilterSpec::whole(plan.ingresses.iter().map(LinkIngress::specs));
        }
        let answers = shared.ask(shared.fronts(), |port, slot| {
            let setup = plan.tree.clone();
            let look = move |root: &mut RootQdisc, cx: &mut Cx<'_>| {
                root.filters_at(&setup, place, Some(port), cx)
            };
            slot.is_open().then(|| Box::new(look) as PortJob<_>)
        });
        drop(plan);
        let answers = answers.gather(shared);
        FilterSpec::whole(answers.into_iter().filter_map(|(_, filters)| filters.ok()))
    }

    /// Returns the filters that packets meet when they come in at the link's device: those of its
    /// `ingress` or `clsact`, such as `filter add ingress matchall action drop`. A link only sends,
    /// so a program that receives for the device asks these filters itself.
    ///
    /// Each call returns the filters once more, with counters and policers of their own. So call it
    /// once in each thread that receives. Commands change all of them, and listings of the link
    /// show the sums of their counters.
    ///
    /// ```
    /// use onramp::{Link, Packet, dev};
    ///
    /// let link = Link::devices([Box::new(dev::Null::default()) as _]).build()?;
    /// let ingress = link.ingress();
    /// link.change("qdisc add clsact")?;
    /// link.change("filter add ingress protocol ip u32 match ip dport 53 0xffff action drop")?;
    /// let mut packet = Packet::with_payload(b"a packet that the program has received");
    /// packet.set_dest("10.0.0.1:53".parse().ok());
    /// assert!(!ingress.hold().passes(link.now(), &mut packet));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The link keeps the counters as long as it exists. In a child of `fork`, there are no
    /// filters.
    #[must_use]
    pub fn ingress(&self) -> LinkIngress {
        let Some(mut plan) = self.shared().plan() else {
            return LinkIngress::of(&Setup::default());
        };
        let ingress = LinkIngress::of(&plan.tree);
        plan.ingresses.push(ingress.clone());
        ingress
    }

    /// Starts or stops measuring the sojourn time of packets (the time from push to dequeue) in
    /// each qdisc. [`QdiscView::sojourn_ns`] has the result, in nanoseconds. Measuring costs time
    /// for each packet.
    pub fn measure(&self, measures: bool) {
        let shared = self.shared();
        let Some(mut plan) = shared.plan() else { return };
        plan.measures = measures;
        let answers = shared.ask(0..shared.slots.len(), |_, _| {
            Some(Box::new(move |root: &mut RootQdisc, _: &mut Cx<'_>| root.measure(measures)))
        });
        drop(plan);
        answers.gather(shared);
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
        let (tree, ingresses) = (plan.tree.clone(), plan.ingresses.clone());
        drop(plan);
        let mut answers = answers.gather(shared);
        // What has come in counts once for the link, so the first port that answers shows it.
        let first = answers.iter_mut().find(|(_, views)| views.is_ok());
        if let Some((_, Ok(views))) = first.filter(|(first, _)| port.is_none() || *first == 0) {
            ingresses.iter().for_each(|ingress| ingress.add_to(&tree, views));
        }
        answers
    }
}

impl Shared {
    /// Gives each of these ports, which stand in the order of their numbers, the work that `job`
    /// returns for it; the owner of a port does the work. A port for which `job` returns `None` is
    /// skipped, and so is one that the link does not have.
    fn ask<T: Send + 'static>(
        &self,
        ports: impl IntoIterator<Item = usize>,
        mut job: impl FnMut(usize, &Slot<BoxDevice>) -> Option<PortJob<T>>,
    ) -> Answers<T> {
        let (answer, from) = channel();
        let mut asked = Vec::new();
        for port in ports.into_iter().filter(|port| *port < self.slots.len()) {
            let slot = self.slot(port);
            let Some(job) = job(port, slot) else { continue };
            let owed = Owed { port, to: answer.clone(), answer: None };
            let job = Box::new(move |root: &mut RootQdisc, cx: &mut Cx<'_>| {
                let answer = job(root, cx);
                owed.give(answer);
            });
            let taken = self.give(slot, job);
            asked.push((port, taken.is_err().then_some(PortError::Blocked(port))));
        }
        Answers { from, asked }
    }
}

impl<T> Answers<T> {
    /// Waits for the answers of the ports, and returns them in the order of the ports' numbers.
    fn gather(self, shared: &Shared) -> Vec<(usize, Result<T, PortError>)> {
        let deadline = shared.clock.now() + PATIENCE;
        let mut came = Vec::with_capacity(self.asked.len());
        while came.len() < self.asked.len() {
            let Some(answer) = self.next(shared, deadline) else { break };
            came.push(answer);
        }
        self.all(came)
    }

    /// Returns the answers of the ports, of which these came in time, in the order of the ports'
    /// numbers.
    fn all(self, mut came: Vec<(usize, Option<T>)>) -> Vec<(usize, Result<T, PortError>)> {
        came.sort_by_key(|(port, _)| *port);
        let mut came = came.into_iter().peekable();
        let answer = |(port, error): (usize, Option<PortError>)| {
            let answer = came.next_if(|(answered, _)| *answered == port);
            let answer = match (error, answer) {
                (Some(error), _) => Err(error),
                (None, Some((_, answer))) => answer.ok_or(PortError::Dead(port)),
                (None, None) => Err(PortError::Late(port)),
            };
            (port, answer)
        };
        self.asked.into_iter().map(answer).collect()
    }

    /// Waits for the next answer, at most until `deadline`. In a link without threads, an owner may
    /// leave the work to the next round, and the thread that waits here may be the one that makes
    /// the rounds: so it makes one each [`ROUND_NS`].
    fn next(&self, shared: &Shared, deadline: Instant) -> Option<(usize, Option<T>)> {
        // An answer that is there needs no round, in which packets would leave.
        if let Ok(answer) = self.from.try_recv() {
            return Some(answer);
        }
        let is_by_hand = shared.rig.threads.descriptor().is_some();
        loop {
            if is_by_hand {
                shared.turn();
            }
            let left = deadline.since(shared.clock.now());
            let nap = if is_by_hand { left.min(ROUND_NS) } else { left };
            match self.from.recv_timeout(Duration::from_nanos(nap)) {
                Err(RecvTimeoutError::Timeout) if nap < left => {}
                answer => return answer.ok(),
            }
        }
    }
}
