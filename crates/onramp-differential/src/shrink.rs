//! Makes a case smaller as long as the kernel and Onramp still differ on it.

use crate::plan::{Line, Plan};

/// Makes `plan` smaller, with at most `tries` calls of `differs` (whether a plan still differs).
/// Returns the smallest plan for which `differs` returned true.
pub fn shrink(plan: Plan, tries: u32, differs: impl FnMut(&Plan) -> bool) -> Plan {
    let mut search = Search { best: plan, tries, differs };
    search.packets();
    search.changes();
    search.lines();
    search.options();
    search.packets();
    search.best
}

struct Search<D> {
    best: Plan,
    tries: u32,
    differs: D,
}

impl<D: FnMut(&Plan) -> bool> Search<D> {
    /// Calls `differs` for `plan` and returns its result. If the result is true, `plan` becomes the
    /// best plan.
    fn attempt(&mut self, plan: Plan) -> bool {
        if self.tries == 0 || plan == self.best || plan.rows.is_empty() {
            return false;
        }
        self.tries -= 1;
        let differs = (self.differs)(&plan);
        if differs {
            self.best = plan;
        }
        differs
    }

    /// Tries to remove ranges of packets: first halves, then smaller and smaller ranges, the last
    /// packets first.
    fn packets(&mut self) {
        let mut size = self.best.rows.len() / 2;
        while size >= 1 && self.tries > 0 {
            let mut end = self.best.rows.len();
            while end > 0 && self.tries > 0 {
                let begin = end.saturating_sub(size);
                let mut plan = self.best.clone();
                plan.rows.drain(begin..end);
                self.attempt(plan);
                end = begin.min(self.best.rows.len());
            }
            // Stop if there are more than 16 ranges of this size, because each costs a call of
            // `differs`.
            if size < self.best.rows.len() / 16 {
                break;
            }
            size /= 2;
        }
    }

    fn changes(&mut self) {
        for at in (0..self.best.changes.len()).rev() {
            let mut plan = self.best.clone();
            plan.changes.remove(at);
            self.attempt(plan);
        }
    }

    /// Tries to remove `tc` lines whose handle or class no other line names, the last lines first.
    fn lines(&mut self) {
        for at in (1..self.best.lines.len()).rev() {
            let mut plan = self.best.clone();
            let line = plan.lines.remove(at);
            let names = named(&line);
            let needed = |other: &Line| {
                let mut words = other.head.split_whitespace();
                words.any(|word| names.iter().any(|name| name == word))
            };
            let changes = plan.changes.iter().map(|(_, line)| line);
            if !plan.lines.iter().chain(changes).any(needed) {
                self.attempt(plan);
            }
        }
    }

    fn options(&mut self) {
        for at in 0..self.best.lines.len() {
            for option in (0..self.best.lines[at].options.len()).rev() {
                let mut plan = self.best.clone();
                if !plan.lines[at].options.remove(option).needed {
                    self.attempt(plan);
                }
            }
        }
    }
}

/// Returns the handle or class that a `tc` line creates.
fn named(line: &Line) -> Vec<String> {
    let words: Vec<&str> = line.head.split_whitespace().collect();
    let named = words.windows(2).filter(|pair| ["handle", "classid"].contains(&pair[0]));
    match line.kind {
        "filter" => Vec::new(),
        _ => named.map(|pair| pair[1].to_owned()).collect(),
    }
}
