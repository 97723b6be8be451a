//! Commands of `tc` on a tree of qdiscs that a program runs itself.

use std::cell::RefCell;
use std::sync::Arc;

use onramp_core::filter::FilterSpec;
use onramp_core::view::QdiscView;
use onramp_core::{Change, Handle, Instant, Setup, Tree};

use onramp::{Changing, Line, PortError};

use super::TcError;
use super::link::on_one;
use crate::configured::Configured;

/// A tree, and the time of the command.
#[derive(Debug)]
struct AtTime<'a> {
    tree: RefCell<&'a mut Tree>,
    now: Instant,
}

impl Configured for AtTime<'_> {
    fn setup(&self) -> Arc<Setup> {
        Arc::new(self.tree.borrow().setup().clone())
    }

    fn tree_views(&self) -> Vec<QdiscView> {
        self.tree.borrow_mut().views()
    }

    fn filters(&self, place: Handle) -> Vec<FilterSpec> {
        self.tree.borrow_mut().filters(self.now, place)
    }

    fn begin_change(&self, line: &str) -> Result<(Change, Option<Changing>), PortError> {
        let change = self.tree.borrow_mut().change(self.now, line);
        Ok((change.map_err(PortError::Config)?, None))
    }
}

/// Carries out a command of `tc` on a [`Tree`] at the time `now`, and returns what `tc` would
/// print. The command need not name a device. The tree's device is called `tree`, unless the `tc`
/// lines with which the tree was built gave it another name.
///
/// Use this function to change or list a tree that your program runs itself, without a link. To
/// only change it, [`Tree::apply`] needs no `onramp-host`. Packets that a change drops are in
/// [`Tree::drops`] afterwards.
///
/// ```
/// use onramp_core::{Instant, Spec, Tree};
/// use onramp_host::tc_tree;
/// use onramp_queue::Packet;
///
/// let spec: Spec = "pfifo".parse()?;
/// let (mut tree, now) = (Tree::new(&spec, 1514), Instant(1_000_000_000));
/// tc_tree(&mut tree, now, "qdisc replace root handle 1: pfifo limit 50")?;
/// let _ = tree.enqueue(now, Packet::new(100));
/// let shown = tc_tree(&mut tree, now, "-s qdisc show")?;
/// assert!(shown.starts_with("qdisc pfifo 1: root refcnt 2 limit 50p"));
/// assert!(shown.contains("backlog 100b 1p"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`TcError::Config`] or [`TcError::Reply`]: the command cannot be understood or carried out, and
/// nothing has changed.
pub fn tc_tree(tree: &mut Tree, now: Instant, command: impl Into<Line>) -> Result<String, TcError> {
    let mtu = tree.mtu();
    on_one(&AtTime { tree: RefCell::new(tree), now }, "tree", Some(mtu), command.into())
}

#[cfg(test)]
mod tests {
    use onramp_core::Spec;
    use onramp_queue::{DropReason, Packet};

    use super::*;

    const NOW: Instant = Instant(1_000_000_000);

    fn tree(spec: &str) -> Tree {
        Tree::new(&spec.parse::<Spec>().expect("a qdisc"), 1_514)
    }

    /// A tree is changed, and lists qdiscs, classes and filters with their counters.
    #[test]
    fn a_tree_is_changed_and_listed() {
        let mut tree = tree("pfifo");
        for line in [
            "qdisc replace root handle 1: htb default 20",
            "class add parent 1: classid 1:10 htb rate 1mbit",
            "class add parent 1: classid 1:20 htb rate 2mbit",
            "tc qdisc add parent 1:10 handle 10: sfq",
            "filter add parent 1: protocol ip handle 5 fw classid 1:10 action pass",
        ] {
            assert_eq!(tc_tree(&mut tree, NOW, line).expect(line), "", "{line}");
        }
        let mut pkt = Packet::new(700);
        pkt.mark = 5;
        let _ = tree.enqueue(NOW, pkt);
        let mut told = |line: &str| tc_tree(&mut tree, NOW, line).expect(line);
        let qdiscs = told("-s -j qdisc show");
        assert!(qdiscs.starts_with(r#"[{"kind":"htb","handle":"1:""#), "{qdiscs}");
        assert!(qdiscs.contains(r#""backlog":700,"qlen":1"#), "{qdiscs}");
        assert!(told("class show").contains("class htb 1:20 root "));
        assert!(told("class show parent 1:").contains("class htb 1:10 root leaf 10: "));
        let filters = told("-s filter show parent 1:");
        assert!(filters.contains("fw ") && filters.contains("Sent 700 bytes 1 pkt"), "{filters}");
    }

    /// Packets that a change drops are handed to the program, and a wrong line changes nothing.
    #[test]
    fn a_change_hands_out_what_it_drops() {
        let mut tree = tree("pfifo");
        let _ = tree.enqueue(NOW, Packet::new(100));
        let before = tc_tree(&mut tree, NOW, "-s qdisc show").expect("a listing");
        for (line, why) in [
            ("qdisc replace root pfifo limt 5", "limt"),
            ("qdisc add dev eth0 root pfifo", "eth0"),
            ("bogus", "bogus"),
        ] {
            let error = tc_tree(&mut tree, NOW, line).expect_err(line).to_string();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(tc_tree(&mut tree, NOW, "-s qdisc show").expect("a listing"), before);
        assert_eq!(tree.drops().len(), 0);
        tc_tree(&mut tree, NOW, "qdisc replace root handle 7: fq").expect("a kind");
        let reasons: Vec<_> = tree.drops().map(|pkt| pkt.drop_reason).collect();
        assert_eq!(reasons, [Some(DropReason::Purged)]);
    }
}
