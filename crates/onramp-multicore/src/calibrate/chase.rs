//! Chases of pointers: how long a load takes that hits a level of the caches, or memory. Each load
//! needs the result of the one before, so nothing overlaps.
//!
//! Nodes are 128 bytes apart, because processors fetch lines in pairs. Their order is random in
//! windows of 64 pages of 4 KiB: so small that the page tables hardly cost anything, and so large
//! that no prefetcher finds a pattern.

use std::hint::black_box;

use super::rounds::{NotMeasured, losses, now};

/// Distance of two nodes, and size of a window, in words.
const NODE: usize = 128 / size_of::<usize>();
const WINDOW: usize = 64 * 4_096 / size_of::<usize>();

/// Memory in which each node has the place of the next one.
pub(super) struct Chain {
    words: Vec<usize>,
    /// Place of the node at which the next chase begins.
    at: usize,
}

impl Chain {
    /// Makes a ring of nodes in a buffer of `bytes` bytes.
    pub(super) fn new(bytes: u64) -> Self {
        let words = usize::try_from(bytes).unwrap_or(usize::MAX) / size_of::<usize>();
        let nodes = (words / NODE).max(1);
        let mut random = fastrand::Rng::with_seed(1);
        let mut windows: Vec<Vec<usize>> = (0..nodes)
            .collect::<Vec<_>>()
            .chunks(WINDOW / NODE)
            .map(|window| window.iter().map(|node| node * NODE).collect())
            .collect();
        random.shuffle(&mut windows);
        windows.iter_mut().for_each(|window| random.shuffle(window));
        let order: Vec<usize> = windows.into_iter().flatten().collect();
        let mut words = vec![0; nodes * NODE];
        for (node, next) in order.iter().zip(order.iter().cycle().skip(1)) {
            words[*node] = *next;
        }
        Self { words, at: order[0] }
    }

    /// Returns the number of nodes.
    pub(super) fn nodes(&self) -> usize {
        self.words.len() / NODE
    }

    /// Follows the chain for `loads` loads, from where the last chase ended.
    fn follow(&mut self, loads: usize) {
        let mut at = self.at;
        for _ in 0..loads {
            at = self.words[at];
        }
        self.at = black_box(at);
    }

    /// Follows the chain once around, so that the nodes are in the caches.
    pub(super) fn warm(&mut self) {
        self.follow(self.nodes());
    }

    /// Follows the chain for `loads` loads. Returns nanoseconds for each; `None` if the thread lost
    /// its processor meanwhile.
    pub(super) fn time(&mut self, loads: usize) -> Result<Option<f64>, NotMeasured> {
        let before = losses()?;
        let from = now();
        self.follow(loads);
        let took = now() - from;
        #[expect(clippy::cast_precision_loss, reason = "rounds are short")]
        let each = took as f64 / loads as f64;
        Ok((losses()? == before).then_some(each))
    }
}

/// Writes so much other memory that the caches hold nothing else.
pub(super) fn evict(bytes: u64) {
    let words = usize::try_from(bytes).unwrap_or(usize::MAX) / size_of::<u64>();
    let mut memory = vec![0_u64; words];
    for line in memory.chunks_mut(64 / size_of::<u64>()) {
        line[0] = 1;
    }
    black_box(&memory);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_visits_each_node_once() {
        for bytes in [0, 128, 16 << 10, 1 << 20] {
            let mut chain = Chain::new(bytes);
            let nodes = chain.nodes();
            assert_eq!(nodes, (usize::try_from(bytes).expect("small") / 128).max(1));
            let first = chain.at;
            let mut seen = std::collections::BTreeSet::new();
            for _ in 0..nodes {
                assert!(seen.insert(chain.at), "visited twice");
                chain.follow(1);
            }
            assert_eq!(chain.at, first);
            chain.warm();
            assert_eq!(chain.at, first);
        }
    }

    #[test]
    fn the_order_is_random_in_windows() {
        let mut chain = Chain::new(1 << 20);
        let steps = (0..2_000).filter(|_| {
            let before = chain.at;
            chain.follow(1);
            chain.at == before + NODE
        });
        assert!(steps.count() < 20, "hardly any node follows its neighbour");
    }
}
