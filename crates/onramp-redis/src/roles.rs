//! Who may do what in the engine.

/// What a host may do, as arguments of Redis's command `ACL SETUSER` after the user's name: run the
/// ledger's script, write ledgers, read limits. A script may do no more than the user that calls
/// it, so a host cannot raise a limit in any way. Add `on` and a password.
pub const HOST_RULES: &[&str] = &[
    "resetkeys",
    "resetchannels",
    "-@all",
    "%RW~onramp:{*}:ledger:*",
    "%R~onramp:{*}:limit:*",
    "%R~onramp:limits",
    "+auth",
    "+hello",
    "+info",
    "+script|load",
    "+evalsha",
    "+time",
    "+get",
    "+hget",
    "+hmget",
    "+hgetall",
    "+hset",
    "+hdel",
    "+del",
    "+pexpire",
];

/// What an operator may do, as arguments of Redis's command `ACL SETUSER` after the user's name:
/// set, delete and list limits, and read ledgers. Add `on` and a password.
pub const OPERATOR_RULES: &[&str] = &[
    "resetkeys",
    "resetchannels",
    "-@all",
    "%R~onramp:{*}:ledger:*",
    "%RW~onramp:{*}:limit:*",
    "%RW~onramp:limits",
    "+auth",
    "+hello",
    "+info",
    "+script|load",
    "+eval",
    "+time",
    "+get",
    "+set",
    "+hget",
    "+hmget",
    "+hgetall",
    "+hset",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_has_the_same_rules() {
        let readme = include_str!("../README.md");
        for (user, rules) in [("host", HOST_RULES), ("operator", OPERATOR_RULES)] {
            let line = format!("user {user} on >PASSWORD {}", rules.join(" "));
            assert!(readme.lines().any(|other| other == line), "{line}");
        }
    }
}
