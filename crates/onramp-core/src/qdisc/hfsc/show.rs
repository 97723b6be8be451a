//! How `tc` shows an `hfsc`.

use crate::base::params::Values;
use crate::base::show::Out;
use crate::base::{Extra, shown};
use crate::sched::Shown;

pub(super) const SHOWN: Shown = Shown { options, class, class_extra, ..Shown::TABLE };

fn options(values: &Values<'_>, _: &Extra, out: &mut Out) {
    let default = values.number("default");
    if default > 0 {
        // The JSON here has the form of that of `htb`, because what iproute2 prints for `hfsc` is
        // not valid JSON.
        out.string("default", &format!("{default:#x}"), format_args!("default {default:x} "));
    }
}

/// Shows the curves of a class; if `rt` and `ls` are equal, shows them as one curve `sc`.
fn class(values: &Values<'_>, _: &Extra, out: &mut Out) {
    // The root has no curves to show: curves divide the rate of a parent among its children, and
    // the root has no parent.
    if !values.has("rt") {
        return;
    }
    let either = |key| {
        let own = values.list(key);
        if own.is_empty() { values.list("sc") } else { own }
    };
    let (rt, ls) = (either("rt"), either("ls"));
    if rt == ls {
        curve("sc", &rt, out);
    } else {
        curve("rt", &rt, out);
        curve("ls", &ls, out);
    }
    curve("ul", &values.list("ul"), out);
}

fn curve(key: &str, list: &[u64], out: &mut Out) {
    let [m1, d, m2] = *list else { return };
    out.text(format_args!("{key} "));
    out.open(Some(key));
    out.uint("m1", m1, format_args!("m1 {} ", out.style.rate(m1)));
    shown::time(out, "d", d / 1_000);
    out.uint("m2", m2, format_args!("m2 {} ", out.style.rate(m2)));
    out.close();
}

fn class_extra(extra: &Extra, out: &mut Out) {
    let number = |key| extra.get(key).unsigned_abs();
    out.uint("period", number("period"), format_args!(" period {} ", number("period")));
    for key in ["work", "rtwork"] {
        if number(key) > 0 {
            out.uint(key, number(key), format_args!("{key} {} bytes ", number(key)));
        }
    }
    out.uint("level", number("level"), format_args!("level {} \n\n", number("level")));
}
