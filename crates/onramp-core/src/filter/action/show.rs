//! How `tc` shows actions.

use super::super::control::Control;
use super::{Action, Edit, What};
use crate::base::Handle;
use crate::base::show::Out;

/// Shows the actions of a filter, after the lines of the filter itself.
pub(in crate::filter) fn show_all(actions: &[Action], out: &mut Out) {
    if actions.is_empty() {
        return;
    }
    out.json(|json| json.open_array(Some("actions")));
    for (order, action) in (1_u64..).zip(actions) {
        out.open(None);
        out.uint("order", order, format_args!("\n\taction order {order}: "));
        action.show(out);
        if out.style.stats {
            action.show_stats(out);
        }
        if !action.cookie.is_empty() {
            out.string("cookie", &action.cookie, format_args!("\tcookie {}\n", action.cookie));
        }
        if action.no_percpu {
            out.flag("no_percpu", true, format_args!("\tno_percpu\n"));
        }
        if let Some(name) = action.hw_stats {
            out.text(format_args!("\thw_stats {name}\n"));
            out.json(|json| {
                json.open_array(Some("hw_stats"));
                json.string(None, name);
                json.close_array();
            });
        }
        out.close();
    }
    out.json(|json| json.close_array());
}

/// Shows a policer that was given to a filter without the word `action` before it.
pub(in crate::filter) fn show_bare(action: &Action, out: &mut Out) {
    action.show(out);
}

/// Shows, at the end of the listing of a filter, the counters of the filter's policer that was
/// given without the word `action`.
pub(in crate::filter) fn show_bare_stats(action: &Action, out: &mut Out) {
    if out.style.stats {
        let seen = action.counters;
        out.text(format_args!(
            "\n Sent {} bytes {} pkts (dropped {}, overlimits {}) ",
            seen.bytes, seen.packets, seen.drops, seen.overlimits
        ));
    }
}

impl Action {
    fn show(&self, out: &mut Out) {
        let before = match &self.what {
            What::Gact { control, random } => {
                out.string("kind", "gact", format_args!("gact "));
                control.show(out, "action ");
                let (name, then, every) = match random {
                    None => ("none", Control::Ok, 0),
                    Some(random) if random.chance.is_some() => {
                        ("netrand", random.control, random.every)
                    }
                    Some(random) => ("determ", random.control, random.every),
                };
                out.open(Some("prob"));
                out.string("random_type", name, format_args!("\n\t random type {name} "));
                then.show(out, "");
                out.uint("val", every.into(), format_args!(" val {every}"));
                out.close();
                "\n\t "
            }
            What::Police(police) => {
                police.show(self.index, out);
                out.uint("ref", 1, format_args!("\n\tref 1 "));
                out.uint("bind", 1, format_args!("bind 1 "));
                out.text(format_args!("\n"));
                return;
            }
            What::Edit(edit) => {
                edit.show(out);
                "\n\t "
            }
        };
        let index = self.index;
        out.uint("index", index.into(), format_args!("{before}index {index}"));
        out.uint("ref", 1, format_args!(" ref 1"));
        out.uint("bind", 1, format_args!(" bind 1"));
        out.text(format_args!("\n"));
    }

    fn show_stats(&self, out: &mut Out) {
        let seen = self.counters;
        out.open(Some("stats"));
        out.text(format_args!("\tAction statistics:\n"));
        out.uint("bytes", seen.bytes, format_args!("\tSent {} bytes", seen.bytes));
        out.uint("packets", seen.packets, format_args!(" {} pkt", seen.packets));
        out.uint("drops", seen.drops, format_args!(" (dropped {}", seen.drops));
        out.uint("overlimits", seen.overlimits, format_args!(", overlimits {}", seen.overlimits));
        out.uint("requeues", 0, format_args!(" requeues 0) "));
        out.uint("backlog", 0, format_args!("\n\tbacklog 0b"));
        out.uint("qlen", 0, format_args!(" 0p"));
        out.text(format_args!(" requeues 0\n"));
        out.close();
    }
}

impl Edit {
    fn show(&self, out: &mut Out) {
        out.string("kind", "skbedit", format_args!("skbedit "));
        if let Some(queue) = self.queue {
            out.uint("queue_mapping", queue.into(), format_args!("queue_mapping {queue}"));
        }
        if let Some(priority) = self.priority {
            let class = class_name(Handle::from_priority(priority));
            out.string("priority", &class, format_args!(" priority {class}"));
        }
        if let Some((mark, mask)) = self.mark {
            out.uint("mark", mark.into(), format_args!(" mark {mark}"));
            if mask != u32::MAX {
                out.string("mask", &format!("{mask:x}"), format_args!("/0x{mask:x}"));
            }
        }
        if self.inherit {
            out.null("inheritdsfield", format_args!(" inheritdsfield"));
        }
        self.control.show(out, " ");
    }
}

/// Returns the name of a class as `tc` shows it.
pub(in crate::filter) fn class_name(class: Handle) -> String {
    match (class.major, class.minor) {
        (0xffff, 0xffff) => "root".into(),
        (0, 0) => "none".into(),
        (0, minor) => format!(":{minor:x}"),
        _ => class.to_string(),
    }
}
