//! Describes filters, actions and their options for a reference page. The parsers of filters are
//! written by hand, so each option here has an example, and a test checks that the parsers accept
//! it.

/// The description of a kind of filter, or of an action.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The word that names the filter or action in a line.
    pub id: &'static str,
    /// A one-line description of the filter or action, for users.
    pub about: &'static str,
    /// The options of this filter or action.
    pub options: &'static [Opt],
}

/// The description of one option of a filter or an action.
#[derive(Clone, Copy, Debug)]
pub struct Opt {
    /// The word that the option begins with.
    pub key: &'static str,
    /// What must follow `key`, as documentation shows it: placeholders for values, or words.
    pub operand: &'static str,
    /// The words of which one must follow `key`. Empty if `key` takes other values or none.
    pub words: &'static [&'static str],
    /// A one-line description of the option, for users.
    pub help: &'static str,
    /// An example of the words that may follow the option's word.
    pub example: &'static str,
}

impl Opt {
    const fn new(key: &'static str, operand: &'static str, help: &'static str) -> Self {
        Self { key, operand, words: &[], help, example: "" }
    }

    const fn such_as(mut self, example: &'static str) -> Self {
        self.example = example;
        self
    }

    const fn one_of(mut self, words: &'static [&'static str]) -> Self {
        self.words = words;
        self
    }

    /// Returns the option with its values as users write it.
    #[must_use]
    pub fn usage(&self) -> String {
        format!("{} {}", self.key, self.operand).trim_end().to_owned()
    }
}

impl Entry {
    /// Returns the help text: one line about the filter or action, then one line for each option.
    #[must_use]
    pub fn help(&self) -> String {
        let lines = self.options.iter().map(|o| format!("  {:28} {}\n", o.usage(), o.help));
        lines.fold(format!("{}: {}\n", self.id, self.about), |text, line| text + &line)
    }
}

/// Options that every kind of filter has.
pub const COMMON: &[Opt] = &[
    Opt::new("classid", "CLASS", "the class of packets that match").such_as("1:1"),
    Opt::new("flowid", "CLASS", "the same as `classid`").such_as("1:1"),
    Opt::new("action", "ACTION", "what happens to packets that match; may be repeated")
        .such_as("drop"),
];

/// The kinds of filters.
pub const FILTERS: &[Entry] = &[
    Entry { id: "matchall", about: "matches every packet", options: &[] },
    Entry {
        id: "fw",
        about: "matches the mark given as the handle; without one, the mark is the class",
        options: &[],
    },
    Entry {
        id: "u32",
        about: "matches words of the packet under masks",
        options: &[
            Opt::new(
                "match",
                "{ u32 | u16 | u8 } VALUE MASK at [nexthdr+]OFFSET",
                "bits at an offset from the network header, or from the header after it",
            )
            .such_as("u16 0x0035 0xffff at nexthdr+2")
            .one_of(&["u32", "u16", "u8", "ip", "ip6", "tcp", "udp", "icmp", "ether", "mark"]),
            Opt::new(
                "match ip",
                "{ src | dst } PREFIX | { sport | dport | protocol | tos | .. } VALUE MASK",
                "a field of the IPv4 header",
            )
            .such_as("dport 53 0xffff"),
            Opt::new(
                "match ip6",
                "{ src | dst } PREFIX | { sport | dport | protocol | .. } VALUE MASK",
                "a field of the IPv6 header",
            )
            .such_as("dst fd00::/8"),
            Opt::new("match { tcp | udp }", "{ src | dst } PORT MASK", "a TCP or UDP port"),
            Opt::new("match icmp", "{ type | code } VALUE MASK", "a field of the ICMP header")
                .such_as("type 8 0xff"),
            Opt::new("match ether", "{ src | dst } ADDRESS", "an Ethernet address")
                .such_as("src 02:00:00:00:00:01"),
            Opt::new("match mark", "VALUE MASK", "the packet's mark").such_as("1 0xff"),
            Opt::new(
                "divisor",
                "NUMBER",
                "creates a hash table with this number of buckets; `handle` names the table",
            )
            .such_as("256"),
            Opt::new(
                "ht",
                "TABLE:[BUCKET]",
                "the hash table, and the bucket in it, that the filter is added to",
            ),
            Opt::new("link", "TABLE:", "continues with the filters of this hash table"),
            Opt::new(
                "hashkey",
                "mask MASK at OFFSET",
                "the bits of the packet that choose the bucket of the linked table",
            ),
            Opt::new(
                "offset",
                "{ at OFFSET [mask M] [shift N] | plus N } [eat]",
                "where the next header begins",
            ),
            Opt::new(
                "sample",
                "MATCH [divisor N]",
                "with `ht`: the bucket of packets that match this",
            ),
            Opt::new("indev", "DEVICE", "the device on which the packet arrived")
                .such_as("d1 match u32 0 0"),
        ],
    },
    Entry {
        id: "basic",
        about: "matches packets for which an expression is true",
        options: &[
            Opt::new(
                "match",
                "'EXPRESSION'",
                "tests, combined with `and`, `or`, `not` and parentheses",
            )
            .such_as("'cmp(u8 at 9 layer 1 eq 17) and not meta(priority eq 6)'"),
            Opt::new(
                "match cmp(..)",
                "{ u8 | u16 | u32 } at OFFSET layer N [mask M] [trans] { eq | lt | gt } VALUE",
                "a number in the packet",
            ),
            Opt::new("match u32(..)", "u32 VALUE MASK at OFFSET", "bits, as with the filter u32"),
            Opt::new(
                "match meta(..)",
                "OBJECT { eq | lt | gt } VALUE",
                "a property of the packet, such as its length",
            ),
            Opt::new("match nbyte(..)", "\"BYTES\" at OFFSET layer N", "bytes of the packet"),
        ],
    },
    Entry { id: "flower", about: "matches fields of the packet's headers", options: FLOWER },
    Entry { id: "flow", about: "computes the class from fields of the packet", options: FLOW },
    Entry {
        id: "bpf",
        about: "runs a classic BPF or eBPF program",
        options: &[
            Opt::new("bytecode", "'COUNT,CODE JT JF K,..'", "a classic BPF program")
                .such_as("'1,6 0 0 1'"),
            Opt::new("bytecode-file", "FILE", "a classic BPF program in a file"),
            Opt::new("ebpf-bytecode", "HEX", "an eBPF program, as hexadecimal digits")
                .such_as("b7000000010000009500000000000000"),
            Opt::new("object-file", "FILE", "an eBPF program in an ELF file"),
            Opt::new("section", "NAME", "the program's section in that file"),
            Opt::new("direct-action", "", "the program returns an action")
                .such_as("ebpf-bytecode b7000000010000009500000000000000"),
        ],
    },
];

const FLOWER: &[Opt] =
    &[
        Opt::new("src_ip", "PREFIX", "the source address").such_as("10.0.0.0/8"),
        Opt::new("dst_ip", "PREFIX", "the destination address").such_as("10.1.0.0/16"),
        Opt::new("ip_proto", "PROTOCOL", "the transport protocol")
            .such_as("udp")
            .one_of(&["tcp", "udp", "sctp", "icmp", "icmpv6"]),
        Opt::new("src_port", "PORT | PORT-PORT", "the source port").such_as("53"),
        Opt::new("dst_port", "PORT | PORT-PORT", "the destination port").such_as("1000-2000"),
        Opt::new("ip_tos", "TOS[/MASK]", "the type of service").such_as("0xb8/0xfc"),
        Opt::new("ip_ttl", "TTL[/MASK]", "the time to live").such_as("64"),
        Opt::new("ip_flags", "FLAGS", "whether the packet is a fragment")
            .such_as("nofrag")
            .one_of(&["frag", "nofrag", "firstfrag", "nofirstfrag"]),
        Opt::new("tcp_flags", "FLAGS[/MASK]", "the TCP flags").such_as("0x2/0x3f"),
        Opt::new("type", "TYPE[/MASK]", "the ICMP type").such_as("8"),
        Opt::new("code", "CODE[/MASK]", "the ICMP code").such_as("0"),
        Opt::new("src_mac", "ADDRESS[/MASK]", "the source Ethernet address")
            .such_as("02:00:00:00:00:01"),
        Opt::new("dst_mac", "ADDRESS[/MASK]", "the destination Ethernet address")
            .such_as("02:00:00:00:00:02"),
        Opt::new("vlan_id", "ID", "the number of the VLAN").such_as("5"),
        Opt::new("vlan_prio", "PRIORITY", "the priority in the VLAN tag").such_as("3"),
        Opt::new("indev", "DEVICE", "the device on which the packet arrived").such_as("d1"),
        Opt::new("vlan_ethtype", "PROTOCOL", "the protocol after the VLAN tag").such_as("ip"),
    ];

const FLOW: &[Opt] = &[
    Opt::new("hash keys", "KEY,..", "the class number is a hash of these fields, modulo `divisor`")
        .such_as("src,dst divisor 16"),
    Opt::new("map key", "KEY", "the class number is this field, changed by the options below")
        .such_as("mark"),
    Opt::new("divisor", "NUMBER", "the number of classes").such_as("16 map key mark"),
    Opt::new("baseclass", "CLASS", "the first class").such_as("1:1 map key mark"),
    Opt::new("perturb", "SECONDS", "seconds after which the hash changes")
        .such_as("10 hash keys src divisor 16"),
    Opt::new("and | or | xor | addend", "NUMBER", "what `map` does with the field"),
    Opt::new("rshift", "BITS", "bits by which the field is shifted to the right")
        .such_as("1 map key mark"),
];

/// The actions.
pub const ACTIONS: &[Entry] = &[
    Entry {
        id: "ok",
        about: "accepts the class that the filter found; also `pass`",
        options: RANDOM,
    },
    Entry { id: "drop", about: "drops the packet; also `shot`", options: RANDOM },
    Entry { id: "pipe", about: "continues with the next action of the filter", options: RANDOM },
    Entry { id: "reclassify", about: "starts again with the first filter", options: RANDOM },
    Entry {
        id: "continue",
        about: "continues with the next filter, as if this one had not matched",
        options: RANDOM,
    },
    Entry {
        id: "goto chain 1",
        about: "continues with the first filter of that chain",
        options: &[],
    },
    Entry {
        id: "jump 1",
        about: "continues with that action of the filter; the first is 0",
        options: &[],
    },
    Entry {
        id: "police",
        about: "chooses an action by whether the packets exceed a rate",
        options: &[
            Opt::new("rate", "RATE", "the rate that conforms").such_as("8mbit burst 3000"),
            Opt::new("burst", "SIZE", "bytes that may arrive at once").such_as("3000 rate 8mbit"),
            Opt::new("pkts_rate", "NUMBER", "packets per second; replaces `rate`")
                .such_as("100 pkts_burst 10"),
            Opt::new("pkts_burst", "NUMBER", "packets that may arrive at once")
                .such_as("10 pkts_rate 100"),
            Opt::new("peakrate", "RATE", "a second rate, for single packets")
                .such_as("16mbit mtu 2000 rate 8mbit burst 3000"),
            Opt::new("mtu", "SIZE", "packets larger than this always exceed the rate")
                .such_as("2000 rate 8mbit burst 3000"),
            Opt::new("mpu", "SIZE", "packets smaller than this count as this size")
                .such_as("64 rate 8mbit burst 3000"),
            Opt::new("overhead", "BYTES", "bytes added to the size of each packet")
                .such_as("14 rate 8mbit burst 3000"),
            Opt::new("linklayer", "LAYER", "whether the link cuts packets into cells")
                .such_as("atm rate 8mbit burst 3000")
                .one_of(&["ethernet", "atm", "adsl"]),
            Opt::new(
                "conform-exceed",
                "EXCEED[/CONFORM]",
                "the actions for packets that exceed the rate and for those that conform",
            )
            .such_as("drop/ok rate 8mbit burst 3000"),
        ],
    },
    Entry {
        id: "skbedit",
        about: "changes metadata of the packet",
        options: &[
            Opt::new("priority", "CLASS", "the packet's priority, which may name a class")
                .such_as("1:1"),
            Opt::new("mark", "MARK[/MASK]", "the packet's mark").such_as("1/0xff"),
            Opt::new("queue_mapping", "QUEUE", "the packet's transmit queue").such_as("0"),
            Opt::new("inheritdsfield", "", "sets the priority from the DS field of the IP header"),
        ],
    },
];

const RANDOM: &[Opt] = &[Opt::new(
    "random",
    "{ netrand | determ } ACTION N",
    "takes another action for one packet in N: at random (netrand), or every N-th (determ)",
)
.such_as("determ drop 10")
.one_of(&["netrand", "determ"])];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::read::KINDS;
    use crate::tc::Setup;

    /// Adds a filter to a tree. Returns the error if the tree refuses the filter.
    fn add(filter: &str) -> Result<(), crate::base::ConfigError> {
        let mut setup = Setup::default();
        setup.apply("qdisc add dev d0 root handle 1: prio")?;
        let protocol = if filter.contains("vlan") { "802.1q" } else { "ip" };
        setup.apply(&format!("filter add dev d0 parent 1: protocol {protocol} pref 1 {filter}"))
    }

    #[test]
    fn every_kind_is_here() {
        let ids: Vec<&str> = FILTERS.iter().map(|entry| entry.id).collect();
        assert_eq!(ids, KINDS);
    }

    #[test]
    fn the_examples_are_read() {
        let has_example = |option: &&Opt| !option.example.is_empty() || option.operand.is_empty();
        let lines = FILTERS.iter().flat_map(|entry| {
            let with = move |option: &Opt| {
                let before = match (entry.id, option.key) {
                    ("flow", _) => "handle 1 flow",
                    ("flower", "type" | "code") => "flower ip_proto icmp",
                    ("flower", key) if key.ends_with("port") || key.starts_with("tcp") => {
                        "flower ip_proto tcp"
                    }
                    (id, _) => id,
                };
                let none = entry.id == "flow" || option.key == "divisor";
                let class = if none { "" } else { "classid 1:1" };
                format!("{before} {} {} {class}", option.key, option.example)
            };
            entry.options.iter().filter(has_example).map(with).collect::<Vec<_>>()
        });
        let actions = ACTIONS.iter().flat_map(|entry| {
            let with = |option: &Opt| {
                format!("matchall action {} {} {}", entry.id, option.key, option.example)
            };
            entry.options.iter().filter(has_example).map(with).collect::<Vec<_>>()
        });
        let mut bad = Vec::new();
        for line in lines.chain(actions) {
            if let Err(error) = add(&line) {
                bad.push(format!("{line}: {error}"));
            }
        }
        assert!(bad.is_empty(), "{bad:#?}");
    }
}
