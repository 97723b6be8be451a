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
        "A qdisc that manages its queue dropped it, to tell the sender of congestion.";
    FloodProtection = "flood_protection",
        "The control law for flows that do not answer to congestion dropped it (BLUE, PIE's cap).";
    L4sStepNonEcn = "l4s_step_non_ecn",
        "It waited too long for dualpi2's L-queue, and its sender does not understand marks.";
    TooBig = "too_big",
        "It is larger than the bucket of its qdisc will ever be.";
    Unclassified = "unclassified",
        "No class takes it.";
    Filter = "filter",
        "The action of a filter dropped it.";
    Late = "late",
        "Its departure time had passed, or it had none where one is needed.";
    Impaired = "impaired",
        "netem lost it, as it was told to.";
    Blackhole = "blackhole",
        "Its qdisc is `blackhole` or `noop`.";
    Purged = "purged",
        "The qdisc was reset or replaced, or the link closed, while it held the packet.";
    MessageSize = "message_size",
        "The packet is larger than the device or the path takes (EMSGSIZE).";
    Refused = "refused",
        "Nobody listens at the destination (ECONNREFUSED).";
    Unreachable = "unreachable",
        "There is no way to the destination (ENETUNREACH, EHOSTUNREACH and their kin).";
    NoBuffers = "no_buffers",
        "The kernel had no buffer for it, also when asked again (ENOBUFS, ENOMEM).";
    NoPermission = "no_permission",
        "The kernel forbade the send: a firewall rule, or broadcast without leave (EPERM, EACCES).";
    PortDead = "port_dead",
        "The qdisc or the device panicked, and the port with the packet died.";
    DeviceError = "device_error",
        "The device failed in a way that has no reason of its own.";
}
