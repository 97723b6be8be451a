//! How `tc` shows a `flow` filter, which computes a class.

use super::{Flow, KEYS, Key};
use crate::base::show::Out;
use crate::filter::action::class_name;

fn name(key: Key) -> &'static str {
    KEYS.iter().find(|(_, known)| *known == key).map_or("", |(name, _)| name)
}

impl Flow {
    /// Shows the options of the filter, from its mode (`map` or `hash`) to its expression.
    pub(in crate::filter) fn show(&self, out: &mut Out) {
        let mode = if self.hash { "hash" } else { "map" };
        out.string("mode", mode, format_args!("{mode} keys "));
        let keys: Vec<_> = self.keys.iter().map(|key| name(*key)).collect();
        out.text(format_args!("{} ", keys.join(",")));
        out.json(|json| {
            json.open_array(Some("keys"));
            keys.iter().for_each(|key| json.string(None, key));
            json.close_array();
        });
        if !self.hash {
            self.show_bits(out);
        }
        let number = |out: &mut Out, key: &str, number: u32| {
            if number > 0 {
                out.uint(key, number.into(), format_args!("{key} {number} "));
            }
        };
        number(out, "rshift", self.rshift);
        if self.addend > 0 {
            let addend = format!("0x{:x}", self.addend);
            out.string("addend", &addend, format_args!("addend {addend} "));
        }
        number(out, "divisor", self.divisor);
        let base = class_name(self.base);
        out.string("baseclass", &base, format_args!("baseclass {base} "));
        if self.perturb_s > 0 {
            let seconds = self.perturb_s;
            out.uint("perturb", seconds.into(), format_args!("perturb {seconds}sec "));
        }
        self.only.show(out);
    }

    /// Shows which bits of the key the filter keeps, sets and inverts.
    fn show_bits(&self, out: &mut Out) {
        let (mask, xor) = (self.mask, self.xor);
        if mask == u32::MAX && xor == 0 {
            return;
        }
        // A bit that is first cleared and then inverted is always set, so it is shown with `or`.
        let parts = [
            ("and", mask, mask != u32::MAX),
            ("xor", mask & xor, mask & xor != 0),
            ("or", !mask & xor, !mask & xor != 0),
        ];
        for (key, bits, shown) in parts {
            if shown {
                let hex = format!("0x{bits:08x}");
                out.string(key, &hex, format_args!("{key} {hex} "));
            }
        }
    }
}
