//! How `tc filter show` shows filters.
//!
//! Source: behaviour of iproute2 6.1, compared for each kind of filter.
//! Differs: where iproute2 writes plain text into its JSON (`fw`, `flow`, expressions) or does not
//! close objects (`-p` and `u32`), the output here is valid JSON; where iproute2 has no name for a
//! number under `-p`, the number is shown; the ages of filters and actions are not shown.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::action::{class_name, show_all, show_bare, show_bare_stats};
use super::head::Head;
use super::read::FilterSpec;
use super::words::{SHARED, show_table};
use super::{Matcher, protocol};
use crate::base::Handle;
use crate::base::show::Out;

/// Which filters of a device `tc filter show` asks for. As in `tc`, the listing does not repeat the
/// chain, preference and protocol that the query gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// The qdisc or class whose filters are shown, or `None` if the command named none.
    pub parent: Option<Handle>,
    /// The preference whose filters are shown, or `None` for all preferences.
    pub pref: Option<u16>,
    /// The protocol whose filters are shown, or `None` for all protocols.
    pub protocol: Option<u16>,
    /// The chain whose filters are shown, or `None` for all chains.
    pub chain: Option<u32>,
}

impl Head {
    /// Returns which filters the options of a `tc filter show` line ask for.
    pub(crate) fn query(&self) -> Query {
        let protocol = self.protocol;
        Query { parent: self.parent, pref: self.pref(), protocol, chain: self.chain }
    }
}

impl Query {
    fn means(&self, filter: &FilterSpec) -> bool {
        self.pref.is_none_or(|pref| pref == filter.pref)
            && self.protocol.is_none_or(|protocol| protocol == filter.protocol)
            && self.chain.is_none_or(|chain| chain == filter.chain)
    }
}

/// Shows the filters of one qdisc or class that the query asks for.
pub fn show_filters<'a>(
    filters: impl Iterator<Item = &'a FilterSpec>,
    place: Handle,
    query: &Query,
    out: &mut Out,
) {
    let mut filters = listed(filters);
    filters.retain(|filter| query.means(filter));
    filters.sort_by_cached_key(|filter| {
        (filter.chain_born, filter.chain, filter.pref, filter.rank_shown())
    });
    let mut last = None;
    for filter in &*filters {
        let name = (filter.chain, filter.pref);
        if last.replace(name) != Some(name) {
            show_head(filter, place, query, out);
            out.text(format_args!("\n"));
            out.close();
        }
        if !matches!(filter.matcher, Matcher::MarkIsClass(_)) {
            show_filter(filter, place, query, out);
        }
    }
}

/// Returns the filters as they are listed: as in Linux, a hash table of `u32` is listed, with its
/// nodes, in each chain that has `u32` filters of the table's preference, and in no other.
fn listed<'a>(filters: impl Iterator<Item = &'a FilterSpec>) -> Vec<Cow<'a, FilterSpec>> {
    let all: Vec<_> = filters.collect();
    let mut homes: BTreeMap<u16, Vec<&FilterSpec>> = BTreeMap::new();
    for table in all.iter().filter(|it| it.chain != SHARED) {
        if let Matcher::Table(_) = table.matcher {
            homes.entry(table.pref).or_default().push(table);
        }
    }
    let mut listed = Vec::with_capacity(all.len());
    for filter in all {
        match (&filter.matcher, homes.get(&filter.pref)) {
            (Matcher::U32(_) | Matcher::Table(_), homes) => {
                let homes = homes.into_iter().flatten();
                listed.extend(homes.map(|home| match home.chain == filter.chain {
                    true => Cow::Borrowed(filter),
                    false => Cow::Owned(filter.seen_from(home)),
                }));
            }
            _ => listed.push(Cow::Borrowed(filter)),
        }
    }
    listed
}

/// Shows one filter.
pub fn show_filter(filter: &FilterSpec, place: Handle, query: &Query, out: &mut Out) {
    show_head(filter, place, query, out);
    out.open(Some("options"));
    filter.show(out);
    out.close();
    out.text(format_args!("\n"));
    out.close();
}

fn show_head(filter: &FilterSpec, place: Handle, query: &Query, out: &mut Out) {
    out.open(None);
    out.text(format_args!("filter "));
    if query.parent != Some(place) {
        let parent = class_name(place);
        match (place.major, place.minor) {
            (0xffff, 0xfff2) => out.text(format_args!("ingress ")),
            (0xffff, 0xfff3) => out.text(format_args!("egress ")),
            _ => out.string("parent", &parent, format_args!("parent {parent} ")),
        }
    }
    if query.protocol.is_none() {
        let name = protocol::name(filter.protocol);
        out.string("protocol", &name, format_args!("protocol {name} "));
    }
    if query.pref.is_none() {
        out.uint("pref", filter.pref.into(), format_args!("pref {} ", filter.pref));
    }
    out.string("kind", filter.kind, format_args!("{} ", filter.kind));
    if query.chain.is_none() {
        out.uint("chain", filter.chain.into(), format_args!("chain {} ", filter.chain));
    }
}

impl FilterSpec {
    /// Returns the number by which the listing sorts the filters of one preference.
    fn rank_shown(&self) -> (u64, u64) {
        match &self.matcher {
            Matcher::Flower(_) => (self.handle.into(), 0),
            // In Linux's listings, the hash table that was created last comes first, and the nodes
            // of each table follow the table.
            Matcher::U32(_) | Matcher::Table(_) => (u64::MAX - self.rank.0, self.rank.1),
            _ => self.rank,
        }
    }

    /// Shows the options of the filter in the layout of its kind.
    fn show(&self, out: &mut Out) {
        let handle = self.handle;
        match &self.matcher {
            Matcher::Matchall => {
                out.uint("handle", handle.into(), format_args!("handle 0x{handle:x} "));
                self.show_class("flowid", out);
                self.show_hardware("\n  ", out);
                if out.style.stats {
                    out.uint("rule_hit", self.hits, format_args!(" (rule hit {})", self.hits));
                }
                self.show_actions("", out);
            }
            Matcher::Mark(mark, mask) => self.show_fw(*mark, *mask, out),
            Matcher::MarkIsClass(_) | Matcher::Root => {}
            Matcher::Table(divisor) => show_table(handle, *divisor, out),
            Matcher::U32(node) => {
                node.show_place(self.handle, self.class, out);
                self.show_hardware("", out);
                node.show_keys(self.protocol, out);
                self.show_actions("\n", out);
                if let Some(dev) = &self.indev {
                    out.string("input_dev", dev, format_args!("\n  input dev {dev}\n"));
                }
            }
            Matcher::Basic(tree) => {
                let hex = format!("{handle:x}");
                out.string("handle", &hex, format_args!("handle 0x{hex} "));
                self.show_class("flowid", out);
                tree.show(out);
                self.show_actions("\n", out);
            }
            Matcher::Flower(flower) => {
                out.uint("handle", handle.into(), format_args!("handle 0x{handle:x} "));
                self.show_class("classid", out);
                if let Some(dev) = &self.indev {
                    out.string("indev", dev, format_args!("\n  indev {dev}"));
                }
                out.open(Some("keys"));
                flower.show(out);
                out.close();
                self.show_hardware("\n  ", out);
                self.show_actions("", out);
            }
            Matcher::Flow(flow) => {
                let hex = format!("0x{handle:x}");
                out.string("handle", &hex, format_args!("handle {hex} "));
                flow.show(out);
                self.show_actions_apart(out);
            }
            Matcher::Bpf(..) | Matcher::Ebpf(..) => self.show_bpf(out),
        }
        if let ([police], true) = (&self.actions[..], self.bare_police) {
            show_bare_stats(police, out);
        }
    }

    fn show_bpf(&self, out: &mut Out) {
        let hex = format!("0x{:x}", self.handle);
        out.string("handle", &hex, format_args!("handle {hex} "));
        self.show_class("flowid", out);
        if let Matcher::Bpf(_, Some(_)) | Matcher::Ebpf(_, Some(_)) = self.matcher {
            out.flag("direct-action", true, format_args!("direct-action "));
        }
        self.show_hardware("", out);
        match &self.matcher {
            Matcher::Bpf(program, _) => program.show(out),
            // An eBPF program is shown as the user gave it. Linux would show the number under which
            // the kernel has loaded the program.
            _ => {
                let digits = self.word_behind("ebpf-bytecode");
                out.string("ebpf_bytecode", digits, format_args!("ebpf-bytecode {digits}"));
            }
        }
        self.show_actions("\n", out);
    }

    fn show_fw(&self, mark: u32, mask: u32, out: &mut Out) {
        let hex = format!("0x{mark:x}");
        out.string("handle", &hex, format_args!("handle {hex}"));
        if mask != u32::MAX {
            let hex = format!("0x{mask:x}");
            out.string("mask", &hex, format_args!("/{hex}"));
        }
        out.text(format_args!(" "));
        self.show_class("classid", out);
        if let Some(dev) = &self.indev {
            out.string("indev", dev, format_args!("input dev {dev} "));
        }
        self.show_actions_apart(out);
    }

    fn show_class(&self, key: &str, out: &mut Out) {
        if let Some(class) = self.class {
            let class = class_name(class);
            out.string(key, &class, format_args!("{key} {class} "));
        }
    }

    /// Shows `not_in_hw`, because no hardware runs filters here, and `skip_hw` if it was given.
    pub(super) fn show_hardware(&self, before: &str, out: &mut Out) {
        let behind = if before.is_empty() { " " } else { "" };
        if self.skip_hw {
            out.flag("skip_hw", true, format_args!("{before}skip_hw{behind}"));
        }
        out.flag("not_in_hw", true, format_args!("{before}not_in_hw{behind}"));
    }

    /// Shows the actions of the filter, after an empty line.
    fn show_actions_apart(&self, out: &mut Out) {
        if !self.bare_police && !self.actions.is_empty() {
            out.text(format_args!("\n"));
        }
        self.show_actions("", out);
    }

    /// Shows the actions of the filter. If the only action is a policer that was written without
    /// the word `action`, the text `before` is printed before it.
    fn show_actions(&self, before: &str, out: &mut Out) {
        match &self.actions[..] {
            [police] if self.bare_police => {
                out.text(format_args!("{before}"));
                show_bare(police, out);
            }
            actions => show_all(actions, out),
        }
    }
}
