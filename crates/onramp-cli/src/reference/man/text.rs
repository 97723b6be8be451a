//! The text of the manual pages that is not in any table.

/// A section: its title, and its items. An item is a word with its meaning, or, if the word is
/// empty, a paragraph.
pub(super) type Section = (&'static str, &'static [(&'static str, &'static str)]);

pub(super) const TC: &[&str] = &[
    "Does with the devices of onramp-daemon(8) what tc of iproute2 does with those of the kernel: \
     the same words, the same listings as text and as JSON, the same exit status. A link or a \
     copy of the program that is called tc is the same as onramp tc.",
    "Words may be shortened as in tc: qdisc, qdis and q are one. Numbers of qdiscs and classes are \
     hexadecimal. A bare number is bits per second where a rate is expected, microseconds where a \
     time is, bytes where a size is. The words qdisc add dev NAME KIND help say what a kind takes.",
];

pub(super) const IP: &[&str] = &[
    "Makes and shows the devices of onramp-daemon(8) as ip link of iproute2 does with those of the \
     kernel. A link or a copy of the program that is called ip is the same as onramp ip.",
    "Devices are in user space: no other program sees them, and they need no root. A device takes \
     packets when it is up.",
];

pub(super) const REMOTE: &[Section] = &[
    (
        "EXIT STATUS",
        &[
            ("0", "It is done."),
            ("1", "A line was not understood, or a command of a batch failed."),
            ("2", "It was understood and refused, as the kernel would, or no daemon answers."),
            ("255", "An argument is wrong, or the line is not complete."),
        ],
    ),
    (
        "ENVIRONMENT",
        &[(
            "ONRAMP_SOCKET",
            "The control socket of the daemon; else $XDG_RUNTIME_DIR/onramp.sock, else \
             /run/onramp/onramp.sock.",
        )],
    ),
];

pub(super) const TC_EXAMPLES: &[&str] = &[
    "onramp ip link add d0 up type dummy",
    "onramp tc qdisc add dev d0 root handle 1: htb default 20",
    "onramp tc class add dev d0 parent 1: classid 1:10 htb rate 8mbit ceil 10mbit",
    "onramp tc class add dev d0 parent 1: classid 1:20 htb rate 2mbit ceil 10mbit",
    "onramp tc qdisc add dev d0 parent 1:20 fq_codel",
    "onramp tc filter add dev d0 parent 1: protocol ip u32 match ip dport 53 0xffff classid 1:10",
    "onramp tc -s qdisc show dev d0",
    "onramp tc -j class show dev d0",
];

pub(super) const IP_EXAMPLES: &[&str] = &[
    "onramp ip link add d0 up numtxqueues 4 type dummy",
    "onramp ip link add v0 type veth peer name v1",
    "onramp ip link add u0 type udp local 127.0.0.1:0 remote 127.0.0.1:4000",
    "onramp ip -s link show dev d0",
    "onramp ip link delete v0",
];

pub(super) const DAEMON: &[Section] = &[
    (
        "CONFIGURATION",
        &[(
            "",
            "The file that --config names has commands of tc and ip, one a line; what stands \
                 behind a # is a comment. The daemon begins with them, or, if one of them cannot \
                 be done, not at all. SIGHUP has it read the file again: all of it comes into \
                 force, or nothing does and the log says which line was wrong.",
        )],
    ),
    (
        "SIGNALS",
        &[
            (
                "SIGTERM, SIGINT",
                "The daemon ends: devices may send what they hold for half a second.",
            ),
            ("SIGHUP", "It reads its configuration again."),
        ],
    ),
    (
        "SECURITY",
        &[(
            "",
            "The socket has mode 0600, and the daemon hears nobody but its own user and root. What \
             is behind --metrics is read by whoever can connect to the address; with --web-control \
             they can change things as well.",
        )],
    ),
    (
        "FILES",
        &[(
            "/run/onramp/onramp.sock",
            "The control socket, where neither --socket, $ONRAMP_SOCKET nor $XDG_RUNTIME_DIR says \
             another. One that a dead daemon left is taken over.",
        )],
    ),
    (
        "ENVIRONMENT",
        &[
            ("ONRAMP_SOCKET", "The control socket, unless --socket says another."),
            ("RUST_LOG", "What is logged, unless --log says it."),
            ("NOTIFY_SOCKET", "Where systemd is told that the daemon is ready, and that it ends."),
        ],
    ),
];

pub(super) const PROGRAM: &[Section] = &[
    (
        "EXIT STATUS",
        &[
            ("0", "All went well."),
            ("1", "Something went wrong; one line on standard error says what."),
            ("2", "The command line is wrong."),
            ("", "Those of onramp tc and onramp ip are iproute2's: see their pages."),
        ],
    ),
    (
        "EXAMPLES",
        &[
            ("onramp demo", "240 threads send over loopback."),
            (
                "onramp replay uplink.pcap --qdisc fq_codel --rate 10mbit --html report.html",
                "What fq_codel would do to the packets of a capture.",
            ),
            ("onramp daemon", "Owns devices, and does what onramp tc and onramp ip say."),
        ],
    ),
];
