//! Combines the views of a device's transmit queues, which hold the state and counters of qdiscs,
//! to the view of the whole device.

use crate::base::Extra;
use crate::qdisc::KINDS;
use crate::sched::front::PLACE;
use crate::sched::{ClassView, QdiscView};

/// Combines the views (states and counters of qdiscs) of a device's transmit queues, given in the
/// order of the queues. If an `mq` stands above the queues, returns the view of the `mq`, followed
/// by the views of all queues. Otherwise the same tree stands in front of each queue: returns the
/// views of one tree, with the sums of the counters in all queues. An `ingress` or `clsact` is
/// last, with the sums of its counters.
#[must_use]
pub fn whole(queues: impl IntoIterator<Item = Vec<QdiscView>>) -> Vec<QdiscView> {
    let mut queues: Vec<_> = queues.into_iter().filter(|views| !views.is_empty()).collect();
    let mut front: Option<QdiscView> = None;
    for views in &mut queues {
        let Some(at) = views.iter().position(|view| view.parent == Some(PLACE)) else { continue };
        let view = views.remove(at);
        match &mut front {
            Some(sum) => sum.add_counts(&view),
            None => front = Some(view),
        }
    }
    if let Some(mq) = mq(queues.iter().filter_map(|views| views.first())) {
        let below = queues.into_iter().flatten();
        return std::iter::once(mq).chain(below).chain(front).collect();
    }
    let mut queues = queues.into_iter();
    let mut sum = queues.next().unwrap_or_default();
    for views in queues {
        for (sum, view) in sum.iter_mut().zip(&views) {
            sum.add(view);
        }
    }
    sum.extend(front);
    sum
}

/// Returns the view (the state and counters) of the `mq` above all transmit queues, or `None` if
/// there is no `mq`. `firsts` are the views of the first qdisc in front of each queue.
#[must_use]
pub fn mq<'a>(firsts: impl IntoIterator<Item = &'a QdiscView>) -> Option<QdiscView> {
    let mut firsts = firsts.into_iter().peekable();
    let class = firsts.peek()?.parent?;
    let mut mq =
        QdiscView::new(class.qdisc(), KINDS.iter().find(|kind| kind.quirks.has_queue_trees)?);
    firsts.for_each(|queue| mq.take_queue(queue));
    Some(mq)
}

impl QdiscView {
    /// Adds a transmit queue to the view of an `mq`: adds the counters of the queue's first qdisc,
    /// and a class for the queue.
    fn take_queue(&mut self, queue: &Self) {
        self.add_counts(queue);
        let Some(handle) = queue.parent else { return };
        self.classes.push(ClassView {
            handle,
            parent: None,
            leaf: Some(queue.handle.major).filter(|major| *major != 0),
            counters: queue.counters,
            backlog: queue.backlog,
            extra: Extra::default(),
        });
    }

    /// Adds the counters of `other`, the same qdisc in front of another transmit queue.
    fn add(&mut self, other: &Self) {
        self.add_counts(other);
        self.extra.add(&other.extra);
        for (sum, class) in self.classes.iter_mut().zip(&other.classes) {
            sum.counters.add(&class.counters);
            sum.backlog.packets += class.backlog.packets;
            sum.backlog.bytes += class.backlog.bytes;
            sum.extra.add(&class.extra);
        }
    }
}

impl Extra {
    fn add(&mut self, other: &Self) {
        for ((_, sum), (_, value)) in self.0.iter_mut().zip(&other.0) {
            *sum = sum.saturating_add(*value);
        }
    }
}
