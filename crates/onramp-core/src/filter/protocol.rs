//! Protocols of link headers, and the names that `tc` gives them.

use super::reader::count;

/// The number that means every protocol, as in `protocol all`.
pub(super) const ALL: u16 = 3;

/// Names of protocols, with their numbers in link headers (Ethernet types). Numbers below 0x600
/// exist only in Linux.
const NAMES: &[(&str, u16)] = &[
    ("802_3", 0x0001),
    ("ax25", 0x0002),
    ("all", ALL),
    ("802_2", 0x0004),
    ("snap", 0x0005),
    ("ddcmp", 0x0006),
    ("wan_ppp", 0x0007),
    ("ppp_mp", 0x0008),
    ("localtalk", 0x0009),
    ("can", 0x000c),
    ("ppptalk", 0x0010),
    ("tr_802_2", 0x0011),
    ("mobitex", 0x0015),
    ("control", 0x0016),
    ("irda", 0x0017),
    ("econet", 0x0018),
    ("loop", 0x0060),
    ("pup", 0x0200),
    ("pupat", 0x0201),
    ("ip", 0x0800),
    ("x25", 0x0805),
    ("arp", 0x0806),
    ("bpq", 0x08ff),
    ("ieeepup", 0x0a00),
    ("ieeepupat", 0x0a01),
    ("dec", 0x6000),
    ("dna_dl", 0x6001),
    ("dna_rc", 0x6002),
    ("dna_rt", 0x6003),
    ("lat", 0x6004),
    ("diag", 0x6005),
    ("cust", 0x6006),
    ("sca", 0x6007),
    ("teb", 0x6558),
    ("rarp", 0x8035),
    ("atalk", 0x809b),
    ("aarp", 0x80f3),
    ("802.1Q", 0x8100),
    ("ipx", 0x8137),
    ("ipv6", 0x86dd),
    ("mpls_uc", 0x8847),
    ("mpls_mc", 0x8848),
    ("atmmpoa", 0x884c),
    ("ppp_disc", 0x8863),
    ("ppp_ses", 0x8864),
    ("atmfate", 0x8884),
    ("profinet", 0x8892),
    ("aoe", 0x88a2),
    ("ethercat", 0x88a4),
    ("802.1ad", 0x88a8),
    ("tipc", 0x88ca),
    ("LLDP", 0x88cc),
    ("ipv4", 0x0800),
];

/// What a user may write as the protocol. Error messages quote this text.
pub(super) const EXPECTED: &str = "all, ip, ipv6, arp, 802.1q, 802.1ad or a number";

/// Returns the number of a protocol, which is given by its name, in upper or lower case, or by its
/// number.
pub(super) fn read(word: &str) -> Option<u16> {
    let named = NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(word));
    named.map(|(_, number)| *number).or_else(|| u16::try_from(count(word, 0xffff)?).ok())
}

/// Returns the name of a protocol as listings show it, or its number in brackets if it has no name.
pub(super) fn name(number: u16) -> String {
    known(number).map_or_else(|| format!("[{number}]"), str::to_owned)
}

/// Returns the name of a protocol as users type it, or its number if it has no name.
pub(super) fn word(number: u16) -> String {
    known(number).map_or_else(|| format!("{number:#06x}"), str::to_owned)
}

fn known(number: u16) -> Option<&'static str> {
    NAMES.iter().find(|(_, known)| *known == number).map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        for (name, number) in NAMES.iter().filter(|(name, _)| *name != "ipv4") {
            assert_eq!((read(name), super::name(*number).as_str()), (Some(*number), *name));
        }
        assert_eq!(
            (read("IPv4"), read("lldp"), read("0x88a8")),
            (Some(0x800), Some(0x88cc), Some(0x88a8))
        );
        assert_eq!((read("x"), read("65536")), (None, None));
        assert_eq!((name(0x1234), word(0x1234)), ("[4660]".into(), "0x1234".into()));
        assert_eq!((name(0x0800), word(0x0800)), ("ip".into(), "ip".into()));
        assert_eq!(read("65535"), Some(u16::MAX));
    }
}
