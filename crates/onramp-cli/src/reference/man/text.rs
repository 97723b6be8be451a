//! The text of the manual pages that is not in any table.

/// A section: its title, and its items. An item is a word with its meaning, or, if the word is
/// empty, a paragraph.
pub(super) type Section = (&'static str, &'static [(&'static str, &'static str)]);

pub(super) const TC: &[&str] = &[
    "Does with the devices of onramp-daemon(8) what tc of iproute2 does with those of the kernel: \
     the same words, the same listings as text and as JSON, the same exit status. A link or a \
     copy of the program that is called tc is the same as onramp tc.",
    "Words may be shortened as in tc: qdisc, qdis and q mean the same. Numbers of qdiscs and \
     classes are hexadecimal. A number without a unit means bits per second where a rate is \
     expected, microseconds where a time is expected, and bytes where a size is expected. The \
     command tc qdisc add dev NAME KIND help shows the options of a kind.",
];

pub(super) const IP: &[&str] = &[
    "Makes and shows the devices of onramp-daemon(8) as ip link of iproute2 does with those of the \
     kernel. A link or a copy of the program that is called ip is the same as onramp ip.",
    "Devices are in user space: no other program sees them, and those of the types dummy, \
     loopback, veth and udp need no root. A device takes packets when it is up.",
];

pub(super) const REMOTE: &[Section] = &[
    (
        "EXIT STATUS",
        &[
            ("0", "The command was carried out."),
            ("1", "A line was not understood, or a command of a batch failed."),
            (
                "2",
                "The command was understood but refused, as by the kernel, or no daemon answers.",
            ),
            ("255", "An argument is wrong, or the line is not complete."),
        ],
    ),
    (
        "ENVIRONMENT",
        &[(
            "ONRAMP_SOCKET",
            "The control socket of the daemon. If it is not set, the socket is \
             $XDG_RUNTIME_DIR/onramp.sock, or /run/onramp/onramp.sock without \
             $XDG_RUNTIME_DIR.",
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
            "The file that --config names contains commands of tc and ip, one per line; text \
                 after a # is a comment. The daemon carries them out before it serves clients; if \
                 one of them fails, the daemon does not start. On SIGHUP, the daemon reads the \
                 file again and carries out either all of it or nothing; if it carries out \
                 nothing, the log says which line was wrong.",
        )],
    ),
    (
        "SIGNALS",
        &[
            (
                "SIGTERM, SIGINT",
                "The daemon ends; its devices may send held packets for another half a second.",
            ),
            ("SIGHUP", "The daemon reads its configuration again."),
        ],
    ),
    (
        "SECURITY",
        &[(
            "",
            "The socket has mode 0600, and the daemon serves only its own user and root there. \
             Anybody who can connect to the address of --metrics can read the metrics and the web \
             page; with --web-control, they can also run commands of tc and ip.",
        )],
    ),
    (
        "FILES",
        &[(
            "/run/onramp/onramp.sock",
            "The control socket, unless --socket, $ONRAMP_SOCKET or $XDG_RUNTIME_DIR gives another \
             path. A socket that a dead daemon left is replaced.",
        )],
    ),
    (
        "ENVIRONMENT",
        &[
            ("ONRAMP_SOCKET", "The control socket, unless --socket names another."),
            ("RUST_LOG", "The level of the log, unless --log gives it."),
            (
                "NOTIFY_SOCKET",
                "The socket of systemd, to which the daemon reports that it is ready or ends.",
            ),
        ],
    ),
];

pub(super) const PROGRAM: &[Section] = &[
    (
        "EXIT STATUS",
        &[
            ("0", "The command succeeded."),
            ("1", "The command failed; one line on standard error says why."),
            ("2", "The command line is wrong."),
            ("", "onramp tc and onramp ip have the exit status of iproute2: see their pages."),
        ],
    ),
    (
        "EXAMPLES",
        &[
            ("onramp demo", "240 threads send over loopback."),
            (
                "onramp replay uplink.pcap --qdisc fq_codel --rate 10mbit --html report.html",
                "Shows what fq_codel would do with the packets of a capture.",
            ),
            (
                "onramp daemon",
                "Owns devices, and carries out the commands of onramp tc and onramp ip.",
            ),
        ],
    ),
];
