//! How `tc` shows a policer.

use super::super::control::Control;
use super::Police;
use crate::base::show::Out;
use crate::base::units::Size;

impl Police {
    /// Shows the options of the policer, from its number to its overhead.
    pub(in crate::filter) fn show(&self, index: u32, out: &mut Out) {
        let told = &self.told;
        out.string("kind", "police", format_args!(" police "));
        out.uint("index", index.into(), format_args!("0x{index:x} "));
        let (rate, burst, mtu) =
            (out.style.rate(told.rate), Size(told.burst), Size(self.mtu.into()));
        out.text(format_args!("rate {rate} burst {burst} mtu {mtu} "));
        if told.peak > 0 {
            out.text(format_args!("peakrate {} ", out.style.rate(told.peak)));
        }
        if told.packet_rate > 0 {
            let (rate, burst) = (told.packet_rate, told.packet_burst);
            out.uint("pkts_rate", rate, format_args!("pkts_rate {rate} "));
            out.uint("pkts_burst", burst, format_args!("pkts_burst {burst} "));
        }
        self.exceed.show(out, "action ");
        if self.conform != Control::Ok {
            self.conform.show(out, "/");
        }
        out.text(format_args!(" "));
        out.uint("overhead", told.overhead.into(), format_args!("overhead {}b ", told.overhead));
        if told.cells || out.style.details {
            let layer = match (told.cells, told.rate) {
                (true, _) => "atm",
                (_, 0) => "unspec",
                _ => "ethernet",
            };
            out.string("linklayer", layer, format_args!("linklayer {layer} "));
        }
    }
}
