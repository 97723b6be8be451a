//! The help texts of `ip`.

use std::fmt::Write as _;

use crate::device::{Opt, TYPES, Type};

/// The output of `ip help`.
pub(super) const IP: &str = "\
Usage: ip [ OPTIONS ] OBJECT { COMMAND | help }
       ip [ -force ] -batch filename
where  OBJECT := { link | help }
       OPTIONS := { -V[ersion] | -s[tatistics] | -d[etails] | -j[son] | -p[retty] |
                    -br[ief] | -o[neline] | -b[atch] [filename] }
";

/// Returns the output of `ip link help`.
pub(super) fn link() -> String {
    let mut text = String::from(
        "\
Usage: ip link add [ name ] NAME
\t\t    [ txqueuelen PACKETS ]
\t\t    [ address LLADDR ]
\t\t    [ mtu MTU ] [ index IDX ]
\t\t    [ numtxqueues QUEUE_COUNT ]
\t\t    [ up | down ]
\t\t    type TYPE [ ARGS ]

\tip link delete { DEVICE | dev DEVICE }

\tip link set { DEVICE | dev DEVICE }
\t\t\t[ { up | down } ]
\t\t\t[ txqueuelen PACKETS ]
\t\t\t[ name NEWNAME ]
\t\t\t[ address LLADDR ]
\t\t\t[ mtu MTU ]

\tip link show [ DEVICE ] [ up ] [ type TYPE ]

\tip link help

TYPE :=
",
    );
    for kind in TYPES {
        let _ = writeln!(text, "  {:12} {}", kind.name, kind.help);
        for option in kind.options {
            let _ = writeln!(text, "    {:24} {}", usage(option), option.help);
        }
    }
    text
}

/// Returns the output of `ip link add type TYPE help`.
pub(super) fn of(kind: &Type) -> String {
    let options: String = kind.options.iter().map(|option| format!(" {}", usage(option))).collect();
    let mut text = format!("Usage: ip link <options> type {}{options}\n", kind.name);
    for option in kind.options {
        let _ = writeln!(text, "  {:24} {}", usage(option), option.help);
    }
    text.push_str("To get <options> type 'ip link add help'\n");
    text
}

fn usage(option: &Opt) -> String {
    let operand = option.what.name();
    match option.needed {
        true => format!("{} {operand}", option.key),
        false => format!("[{} {operand}]", option.key),
    }
}
