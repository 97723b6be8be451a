//! The reasons for which packets are dropped: one closed list, with one sentence for each reason.
//!
//! Source: the idea, and the names of the qdisc reasons, come from Linux
//! `include/net/dropreason-qdisc.h`.

macro_rules! reasons {
    ($($variant:ident = $name:literal, $about:literal;)*) => {
        /// Why a packet left the system without being transmitted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum DropReason {
            $(#[doc = $about] $variant,)*
        }

        impl DropReason {
            /// All drop reasons, in the order of their numeric values.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the name of the reason, as statistics and JSON show it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// Returns one sentence that says when a packet is dropped for this reason.
            #[must_use]
            pub const fn about(self) -> &'static str {
                match self { $(Self::$variant => $about),* }
            }
        }
    };
}

reasons! {
    Overlimit = "overlimit",
        "The qdisc held its `limit` of packets or bytes.";
    FqBandLimit = "fq_band_limit",
        "fq held `limit` packets in the packet's priority band.";
    FqFlowLimit = "fq_flow_limit",
        "fq held `flow_limit`, or sfq `depth`, packets of the packet's flow.";
    FqHorizonLimit = "fq_horizon_limit",
        "The departure time asked for lies beyond fq's `horizon`, and `horizon_drop` is set.";
    Congested = "congested",
        "A qdisc dropped the packet to signal congestion to the sender.";
    FloodProtection = "flood_protection",
        "A law against unresponsive flows dropped the packet (BLUE, PIE's cap).";
    L4sStepNonEcn = "l4s_step_non_ecn",
        "The packet waited too long in dualpi2's L-queue, and its sender does not understand ECN.";
    TooBig = "too_big",
        "The packet is larger than the token bucket of the qdisc.";
    Unclassified = "unclassified",
        "The packet belongs to no class of the qdisc.";
    Filter = "filter",
        "The action of a filter dropped the packet.";
    Late = "late",
        "The packet's departure time had passed, or the packet had none and the qdisc needs one.";
    Impaired = "impaired",
        "netem dropped the packet, as its option `loss` demands.";
    Blackhole = "blackhole",
        "The qdisc is `blackhole` or `noop`, which drops all packets.";
    Purged = "purged",
        "The qdisc was reset or replaced, or the link closed, while the packet was in the qdisc.";
    MessageSize = "message_size",
        "The packet is larger than the device or the path allows (EMSGSIZE).";
    Refused = "refused",
        "No socket listens at the destination (ECONNREFUSED).";
    Unreachable = "unreachable",
        "There is no route to the destination (ENETUNREACH, EHOSTUNREACH and similar errors).";
    NoBuffers = "no_buffers",
        "The kernel had no buffer for the packet, even after a retry (ENOBUFS, ENOMEM).";
    NoPermission = "no_permission",
        "The kernel refused the packet: a firewall rule, or broadcast not enabled (EPERM, EACCES).";
    PortDead = "port_dead",
        "The qdisc or the device panicked, which ended the port that held the packet.";
    DeviceError = "device_error",
        "The device reported an error for which there is no other reason in this list.";
    Cancelled = "cancelled",
        "The sender took the packet back before the device had it (`Sender::cancel`).";
}
