//! Tests of `flower` filters: what each field compares, how it is shown, and which values are
//! refused.

use onramp_queue::Packet;

use super::super::How;
use super::tools::{all, apply, are_wrong, json, ports, tagged, text, v4, v6};
use super::{Decision, ask, class, filters, packet, try_table};

/// A protocol and options as users type them; how these are shown in text and in JSON.
const SHOWN: &[(&str, &str, &str, &str)] = &[
    ("all", "", "", ""),
    ("ip", "", "\n  eth_type ipv4", r#""eth_type":"ipv4""#),
    ("ipv6", "", "\n  eth_type ipv6", r#""eth_type":"ipv6""#),
    ("arp", "", "\n  eth_type arp", r#""eth_type":"arp""#),
    ("0x88cc", "", "\n  eth_type 88cc", r#""eth_type":"88cc""#),
    ("0x0101", "", "\n  eth_type 0101", r#""eth_type":"0101""#),
    ("802.1q", "vlan_id 5", "\n  vlan_id 5", r#""vlan_id":5"#),
    ("802.1ad", "vlan_id 4095", "\n  vlan_id 4095", r#""vlan_id":4095"#),
    ("802.1q", "vlan_prio 7", "\n  vlan_prio 7", r#""vlan_prio":7"#),
    ("802.1q", "vlan_prio 0", "\n  vlan_prio 0", r#""vlan_prio":0"#),
    (
        "802.1q",
        "vlan_ethtype ip",
        "\n  vlan_ethtype ip\n  eth_type ipv4",
        r#""vlan_ethtype":"ip","eth_type":"ipv4""#,
    ),
    (
        "802.1q",
        "vlan_prio 3 vlan_id 9 vlan_ethtype 0x88cc",
        "\n  vlan_id 9\n  vlan_prio 3\n  vlan_ethtype LLDP\n  eth_type 88cc",
        r#""vlan_id":9,"vlan_prio":3,"vlan_ethtype":"LLDP","eth_type":"88cc""#,
    ),
    (
        "all",
        "dst_mac 2:0:0:0:0:a",
        "\n  dst_mac 02:00:00:00:00:0a",
        r#""dst_mac":"02:00:00:00:00:0a""#,
    ),
    (
        "all",
        "src_mac 2:3:4:5:6:7/40 dst_mac 2:0:0:0:0:1/ff:ff:ff:ff:00:ff",
        "\n  dst_mac 02:00:00:00:00:01/ff:ff:ff:ff:00:ff\n  src_mac 02:03:04:05:06:07/40",
        r#""dst_mac":"02:00:00:00:00:01/ff:ff:ff:ff:00:ff","src_mac":"02:03:04:05:06:07/40""#,
    ),
    // A mask that ends within a byte is shown as its number of leading bits; a mask with a hole is
    // shown in full.
    (
        "all",
        "src_mac 2:3:4:5:6:7/20",
        "\n  src_mac 02:03:04:05:06:07/20",
        r#""src_mac":"02:03:04:05:06:07/20""#,
    ),
    (
        "all",
        "src_mac 2:3:4:5:6:7/47",
        "\n  src_mac 02:03:04:05:06:07/47",
        r#""src_mac":"02:03:04:05:06:07/47""#,
    ),
    (
        "all",
        "src_mac 2:3:4:5:6:7/ff:0f:0:0:0:0",
        "\n  src_mac 02:03:04:05:06:07/ff:0f:00:00:00:00",
        r#""src_mac":"02:03:04:05:06:07/ff:0f:00:00:00:00""#,
    ),
    (
        "all",
        "src_mac 2:3:4:5:6:7/ff:f0:0:0:0:1",
        "\n  src_mac 02:03:04:05:06:07/ff:f0:00:00:00:01",
        r#""src_mac":"02:03:04:05:06:07/ff:f0:00:00:00:01""#,
    ),
    (
        "all",
        "src_mac 2:3:4:5:6:7/ff:f8:0:0:0:0",
        "\n  src_mac 02:03:04:05:06:07/13",
        r#""src_mac":"02:03:04:05:06:07/13""#,
    ),
    ("all", "src_mac 2:3:4:5:6:7/0", "", ""),
    (
        "ip",
        "ip_proto tcp",
        "\n  eth_type ipv4\n  ip_proto tcp",
        r#""eth_type":"ipv4","ip_proto":"tcp""#,
    ),
    (
        "ip",
        "ip_proto 11",
        "\n  eth_type ipv4\n  ip_proto udp",
        r#""eth_type":"ipv4","ip_proto":"udp""#,
    ),
    (
        "ip",
        "ip_proto sctp",
        "\n  eth_type ipv4\n  ip_proto sctp",
        r#""eth_type":"ipv4","ip_proto":"sctp""#,
    ),
    (
        "ip",
        "ip_proto 1",
        "\n  eth_type ipv4\n  ip_proto icmp",
        r#""eth_type":"ipv4","ip_proto":"icmp""#,
    ),
    (
        "ipv6",
        "ip_proto icmpv6",
        "\n  eth_type ipv6\n  ip_proto icmpv6",
        r#""eth_type":"ipv6","ip_proto":"icmpv6""#,
    ),
    (
        "ip",
        "ip_proto 0x2f",
        "\n  eth_type ipv4\n  ip_proto 2f",
        r#""eth_type":"ipv4","ip_proto":"2f""#,
    ),
    (
        "ip",
        "ip_proto 4",
        "\n  eth_type ipv4\n  ip_proto 04",
        r#""eth_type":"ipv4","ip_proto":"04""#,
    ),
    // `ip_tos` and `ip_ttl` are read as decimal numbers unless they have hexadecimal digits.
    (
        "ip",
        "ip_tos 16 ip_ttl 0x40/f0",
        "\n  eth_type ipv4\n  ip_tos 16\n  ip_ttl 64/0xf0",
        r#""eth_type":"ipv4","ip_tos":16,"ip_ttl":64,"ip_ttl_mask":"f0""#,
    ),
    (
        "ip",
        "ip_tos b8/0xfc ip_ttl 255/ff",
        "\n  eth_type ipv4\n  ip_tos 184/0xfc\n  ip_ttl 255",
        r#""eth_type":"ipv4","ip_tos":184,"ip_tos_mask":"fc","ip_ttl":255"#,
    ),
    (
        "ip",
        "ip_tos 16/16",
        "\n  eth_type ipv4\n  ip_tos 16/0x16",
        r#""eth_type":"ipv4","ip_tos":16,"ip_tos_mask":"16""#,
    ),
    (
        "ip",
        "src_ip 10.1.2.3 dst_ip 10.2.0.0/15",
        "\n  eth_type ipv4\n  dst_ip 10.2.0.0/15\n  src_ip 10.1.2.3",
        r#""eth_type":"ipv4","dst_ip":"10.2.0.0/15","src_ip":"10.1.2.3""#,
    ),
    // Values are shown as the user gave them, including bits that the mask does not compare.
    (
        "ip",
        "src_ip 10.1.2.3/255.255.0.0",
        "\n  eth_type ipv4\n  src_ip 10.1.2.3/16",
        r#""eth_type":"ipv4","src_ip":"10.1.2.3/16""#,
    ),
    ("ip", "src_ip 10.1.2.3/0", "\n  eth_type ipv4", r#""eth_type":"ipv4""#),
    (
        "ipv6",
        "src_ip fd00::1 dst_ip fd00::/8",
        "\n  eth_type ipv6\n  dst_ip fd00::/8\n  src_ip fd00::1",
        r#""eth_type":"ipv6","dst_ip":"fd00::/8","src_ip":"fd00::1""#,
    ),
    (
        "ipv6",
        "src_ip fd00::1/127",
        "\n  eth_type ipv6\n  src_ip fd00::1/127",
        r#""eth_type":"ipv6","src_ip":"fd00::1/127""#,
    ),
    (
        "ipv6",
        "src_ip fd00::/32",
        "\n  eth_type ipv6\n  src_ip fd00::/32",
        r#""eth_type":"ipv6","src_ip":"fd00::/32""#,
    ),
    (
        "ip",
        "ip_proto udp src_port 53 dst_port 8080/fff0",
        "\n  eth_type ipv4\n  ip_proto udp\n  dst_port 8080/0xfff0\n  src_port 53",
        "\"eth_type\":\"ipv4\",\"ip_proto\":\"udp\",\"dst_port\":8080,\
         \"dst_port_mask\":\"fff0\",\"src_port\":53",
    ),
    (
        "ip",
        "ip_proto tcp src_port 1-65535 dst_port 5-9",
        "\n  eth_type ipv4\n  ip_proto tcp\n  dst_port 5-9\n  src_port 1-65535",
        concat!(
            r#""eth_type":"ipv4","ip_proto":"tcp","dst_port":{"start":5,"end":9},"#,
            r#""src_port":{"start":1,"end":65535}"#
        ),
    ),
    (
        "ip",
        "ip_proto sctp dst_port 65535/ffff",
        "\n  eth_type ipv4\n  ip_proto sctp\n  dst_port 65535",
        r#""eth_type":"ipv4","ip_proto":"sctp","dst_port":65535"#,
    ),
    (
        "ip",
        "ip_proto tcp tcp_flags 0x2",
        "\n  eth_type ipv4\n  ip_proto tcp\n  tcp_flags 0x2/fff",
        r#""eth_type":"ipv4","ip_proto":"tcp","tcp_flags":"0x2/fff""#,
    ),
    (
        "ip",
        "ip_proto tcp tcp_flags 12/3f",
        "\n  eth_type ipv4\n  ip_proto tcp\n  tcp_flags 0x12/3f",
        r#""eth_type":"ipv4","ip_proto":"tcp","tcp_flags":"0x12/3f""#,
    ),
    (
        "ip",
        "ip_proto udp tcp_flags 12/3f",
        "\n  eth_type ipv4\n  ip_proto udp",
        r#""eth_type":"ipv4","ip_proto":"udp""#,
    ),
    (
        "ip",
        "ip_proto icmp type 8 code 0",
        "\n  eth_type ipv4\n  ip_proto icmp\n  icmp_type 8\n  icmp_code 0",
        r#""eth_type":"ipv4","ip_proto":"icmp","icmp_type":"8","icmp_code":"0""#,
    ),
    (
        "ipv6",
        "ip_proto icmpv6 type 128/128 code 255/15",
        "\n  eth_type ipv6\n  ip_proto icmpv6\n  icmp_type 128/0x80\n  icmp_code 255/0xf",
        r#""eth_type":"ipv6","ip_proto":"icmpv6","icmp_type":"128/0x80","icmp_code":"255/0xf""#,
    ),
    (
        "ip",
        "ip_flags frag",
        "\n  eth_type ipv4\n  ip_flags frag",
        r#""eth_type":"ipv4","ip_flags":{"frag":true}"#,
    ),
    (
        "ip",
        "ip_flags nofrag",
        "\n  eth_type ipv4\n  ip_flags nofrag",
        r#""eth_type":"ipv4","ip_flags":{"frag":false}"#,
    ),
    (
        "ip",
        "ip_flags firstfrag",
        "\n  eth_type ipv4\n  ip_flags firstfrag",
        r#""eth_type":"ipv4","ip_flags":{"firstfrag":true}"#,
    ),
    (
        "ip",
        "ip_flags nofirstfrag/frag",
        "\n  eth_type ipv4\n  ip_flags frag/nofirstfrag",
        r#""eth_type":"ipv4","ip_flags":{"frag":true,"firstfrag":false}"#,
    ),
    (
        "ip",
        "ip_flags firstfrag/frag verbose",
        "\n  eth_type ipv4\n  ip_flags frag/firstfrag",
        r#""eth_type":"ipv4","ip_flags":{"frag":true,"firstfrag":true}"#,
    ),
];

#[test]
fn keys_are_shown_as_they_were_said() {
    for (protocol, keys, plain, object) in SHOWN {
        let line = format!("pref 1 protocol {protocol} flower {keys} classid 1:3");
        let expected = format!("handle 0x1 classid 1:3 {plain}\n  not_in_hw");
        assert_eq!(text(&line), expected, "{line}");
        let expected =
            format!(r#"{{"handle":1,"classid":"1:3","keys":{{{object}}},"not_in_hw":true}}"#);
        assert_eq!(json(&line), expected, "{line}");
    }
    let more = "pref 1 handle 0x1f flower skip_hw indev e1 src_mac 2:0:0:0:0:1 action ok";
    assert!(text(more).starts_with(
        "handle 0x1f \n  indev e1\n  src_mac 02:00:00:00:00:01\n  skip_hw\n  not_in_hw\n\taction"
    ));
    assert!(json(more).starts_with(concat!(
        r#"{"handle":31,"indev":"e1","keys":{"src_mac":"02:00:00:00:00:01"},"skip_hw":true,"#,
        r#""not_in_hw":true,"actions":["#
    )));
}

/// The words of a filter, a frame that the filter matches, and frames that it does not match.
type Case = (&'static str, Vec<u8>, Vec<Vec<u8>>);

/// Whether a filter of these words matches the frame.
fn takes(words: &str, frame: &[u8]) -> bool {
    let mut filters = filters(&[&format!("pref 1 protocol {words} classid 1:1")]);
    ask(&mut filters, &mut packet(frame)) == class(1)
}

/// Returns a TCP frame from port 5 to port 9 with these flags.
fn tcp(flags: u16) -> Vec<u8> {
    let mut rest = ports(5, 9);
    rest[12..14].copy_from_slice(&(0x5000 | flags).to_be_bytes());
    v4(6, &[], &rest)
}

/// Returns the frame with its bytes from index `at` on replaced by `bytes`.
fn with(frame: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn fields_are_compared_under_their_masks() {
    let (four, six) = (v4(17, &[], &ports(5, 9)), v6(17, &ports(5, 9)));
    let icmp = |kind, code| v4(1, &[], &[kind, code, 0, 0, 0, 0, 0, 0]);
    let tag = |prio, id| tagged(&four, 0x8100, prio, id);
    let part = |high, low| with(&four, 20, &[high, low]);
    let cases: Vec<Case> = vec![
        ("ip flower", four.clone(), vec![six.clone()]),
        ("ipv6 flower", six.clone(), vec![four.clone()]),
        ("802.1q flower", tag(0, 1), vec![four.clone(), tagged(&four, 0x88a8, 0, 1)]),
        ("802.1q flower vlan_id 5", tag(7, 5), vec![tag(7, 4), tag(7, 0x805), tag(7, 0x15)]),
        ("802.1q flower vlan_prio 5", tag(5, 5), vec![tag(4, 5), tag(7, 5), tag(1, 5)]),
        (
            "802.1q flower vlan_ethtype ip",
            tag(5, 5),
            vec![tagged(&six, 0x8100, 5, 5), with(&tag(5, 5), 17, &[1])],
        ),
        (
            "802.1q flower vlan_ethtype ip ip_proto udp dst_port 9",
            tag(5, 5),
            vec![with(&tag(5, 5), 41, &[8])],
        ),
        (
            "all flower dst_mac 2:0:0:0:0:2",
            four.clone(),
            vec![with(&four, 5, &[3]), with(&four, 0, &[3])],
        ),
        (
            "all flower src_mac 2:0:0:0:0:1",
            four.clone(),
            vec![with(&four, 11, &[3]), with(&four, 6, &[3])],
        ),
        (
            "all flower src_mac 2:0:0:0:0:0/44",
            with(&four, 11, &[0x0f]),
            vec![with(&four, 11, &[0x10]), with(&four, 10, &[1])],
        ),
        ("ip flower ip_proto udp", four.clone(), vec![tcp(0), icmp(0, 0)]),
        ("ipv6 flower ip_proto udp", six.clone(), vec![v6(6, &ports(5, 9))]),
        (
            "ip flower ip_tos 0xb9",
            four.clone(),
            vec![with(&four, 15, &[0xb8]), with(&four, 15, &[0x39])],
        ),
        (
            "ip flower ip_tos 0xb8/0xfc",
            four.clone(),
            vec![with(&four, 15, &[0xb4]), with(&four, 15, &[0x38])],
        ),
        ("ipv6 flower ip_tos 0xb9", six.clone(), vec![with(&six, 14, &[0x60])]),
        ("ip flower ip_ttl 64", four.clone(), vec![with(&four, 22, &[63]), with(&four, 22, &[65])]),
        (
            "ip flower ip_ttl 0x40/c0",
            with(&four, 22, &[127]),
            vec![with(&four, 22, &[63]), with(&four, 22, &[128])],
        ),
        (
            "ip flower src_ip 10.1.2.3",
            four.clone(),
            vec![with(&four, 29, &[4]), with(&four, 26, &[11])],
        ),
        (
            "ip flower dst_ip 10.9.8.7",
            four.clone(),
            vec![with(&four, 33, &[4]), with(&four, 30, &[11])],
        ),
        (
            "ip flower dst_ip 10.9.8.0/23",
            with(&four, 32, &[9, 200]),
            vec![with(&four, 32, &[10, 7])],
        ),
        (
            "ipv6 flower src_ip fd00:0:0:7700::1",
            six.clone(),
            vec![with(&six, 37, &[2]), with(&six, 22, &[0xfe])],
        ),
        (
            "ipv6 flower dst_ip fd00:0:0:7700::2",
            six.clone(),
            vec![with(&six, 53, &[1]), with(&six, 38, &[0xfe])],
        ),
        (
            "ipv6 flower dst_ip fd00:0:0:7700::/60",
            with(&six, 45, &[0x0f]),
            vec![with(&six, 45, &[0x1f]), with(&six, 39, &[1])],
        ),
        (
            "ip flower ip_proto udp src_port 5",
            four.clone(),
            vec![with(&four, 35, &[9]), with(&four, 34, &[1])],
        ),
        (
            "ip flower ip_proto udp dst_port 9",
            four.clone(),
            vec![with(&four, 37, &[5]), with(&four, 36, &[1])],
        ),
        (
            "ip flower ip_proto udp dst_port 8/fff8",
            four.clone(),
            vec![with(&four, 37, &[16]), with(&four, 36, &[1, 9])],
        ),
        (
            "ip flower ip_proto tcp tcp_flags 2/3",
            tcp(0xfe),
            vec![tcp(3), tcp(0), tcp(1), four.clone()],
        ),
        (
            "ip flower ip_proto tcp tcp_flags 0x102",
            tcp(0x102),
            vec![tcp(2), tcp(0x103), tcp(0x902)],
        ),
        ("ip flower ip_proto icmp type 8", icmp(8, 3), vec![icmp(0, 3), icmp(9, 8)]),
        ("ip flower ip_proto icmp code 3", icmp(8, 3), vec![icmp(3, 0), icmp(8, 2)]),
        ("ip flower ip_proto icmp type 8/12", icmp(11, 3), vec![icmp(4, 3), icmp(12, 3)]),
        (
            "ipv6 flower ip_proto icmpv6 type 128 code 1",
            v6(58, &[128, 1, 0, 0]),
            vec![v6(58, &[129, 1, 0, 0]), v6(58, &[128, 0, 0, 0])],
        ),
        // The first fragment of an IPv4 packet has the offset 0 and the flag "more fragments".
        ("ip flower ip_flags frag", part(0x20, 0), vec![part(0x40, 0)]),
        ("ip flower ip_flags frag", part(0x20, 1), vec![part(0, 0)]),
        ("ip flower ip_flags nofrag", part(0x40, 0), vec![part(0x20, 0), part(0, 1)]),
        ("ip flower ip_flags firstfrag", part(0x20, 0), vec![part(0x20, 1), part(0, 0)]),
        ("ip flower ip_flags nofirstfrag", part(0x20, 1), vec![part(0x20, 0)]),
        ("ip flower ip_flags nofirstfrag", part(0, 0), vec![part(0x20, 0)]),
        ("ip flower ip_flags frag/nofirstfrag", part(0, 1), vec![part(0x20, 0), part(0, 0)]),
    ];
    for (words, taken, others) in &cases {
        assert!(takes(words, taken), "{words}");
        for (place, other) in others.iter().enumerate() {
            assert!(!takes(words, other), "{words}: {place}");
        }
    }
    // Bits outside of the mask are not compared.
    assert!(takes("ip flower src_ip 10.99.2.3/255.0.0.0", &four));
    assert!(takes("ip flower ip_proto udp dst_port 65535/0", &four));
}

#[test]
fn ranges_of_ports_have_both_ends() {
    let from = |port| v4(17, &[], &ports(port, 9));
    let to = |port| v4(17, &[], &ports(9, port));
    for (first, last) in [(5, 9), (0, 1), (65534, 65535), (1000, 1001)] {
        let inside = |port: u16| (first..=last).contains(&port);
        for port in [0, 1, 4, 5, 6, 8, 9, 10, 999, 1000, 1001, 1002, 65533, 65534, 65535] {
            let words = format!("ip flower ip_proto udp src_port {first}-{last}");
            assert_eq!(takes(&words, &from(port)), inside(port), "{words}: {port}");
            let words = format!("ip flower ip_proto udp dst_port {first}-{last}");
            assert_eq!(takes(&words, &to(port)), inside(port), "{words}: {port}");
        }
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn what_flower_does_not_take() {
    let mac = "expected an address such as 02:00:00:00:00:01, optionally with /MASK or /BITS";
    let port = "expected PORT, PORT/MASK or FIRST-LAST";
    let icmp = "expected 0 to 255, optionally with /MASK";
    let byte = "expected a byte such as 0x10, optionally with /MASK";
    let flags = "expected frag, nofrag, firstfrag or nofirstfrag, separated by /";
    let tcp_flags = "expected FLAGS or FLAGS/MASK, hexadecimal, 0 to fff";
    for (words, key, value, why) in [
        ("src_mac 24", "src_mac", "24", mac),
        ("src_mac 24/24", "src_mac", "24/24", mac),
        ("dst_mac 2:0:0:0:0:1/49", "dst_mac", "2:0:0:0:0:1/49", mac),
        ("dst_mac 2:0:0:0:0", "dst_mac", "2:0:0:0:0", mac),
        (
            "ip_proto 100",
            "ip_proto",
            "100",
            "expected tcp, udp, sctp, icmp, icmpv6 or a hexadecimal number up to ff",
        ),
        ("src_ip fd00::1", "src_ip", "fd00::1", "expected an IPv4 prefix such as 10.0.0.0/8"),
        (
            "dst_ip 10.0.0.0/33",
            "dst_ip",
            "10.0.0.0/33",
            "expected an IPv4 prefix such as 10.0.0.0/8",
        ),
        ("ip_tos 256", "ip_tos", "256", byte),
        ("ip_tos +5", "ip_tos", "+5", byte),
        ("ip_ttl 1/100", "ip_ttl", "1/100", byte),
        ("ip_flags df", "ip_flags", "df", flags),
        ("ip_flags frag/", "ip_flags", "frag/", flags),
        ("ip_proto udp src_port 65536", "src_port", "65536", port),
        ("ip_proto udp dst_port 9-5", "dst_port", "9-5", port),
        ("ip_proto udp dst_port 5-5", "dst_port", "5-5", port),
        ("ip_proto udp dst_port 5-65536", "dst_port", "5-65536", port),
        ("ip_proto udp dst_port 5/10000", "dst_port", "5/10000", port),
        ("ip_proto tcp tcp_flags 1000", "tcp_flags", "1000", tcp_flags),
        ("ip_proto tcp tcp_flags 1/1000", "tcp_flags", "1/1000", tcp_flags),
        ("ip_proto icmp type 256", "type", "256", icmp),
        ("ip_proto icmp code 1/256", "code", "1/256", icmp),
        ("ip_proto icmp code 0x1", "code", "0x1", icmp),
    ] {
        let said = format!("filter flower: illegal \"{key}\" \"{value}\": {why}");
        are_wrong(&[(&format!("protocol ip flower {words}"), 1, &said)]);
    }
    for (words, key, what) in [
        ("all flower src_ip 10.0.0.1", "src_ip", "protocol ip or ipv6"),
        ("all flower dst_ip 10.0.0.1", "dst_ip", "protocol ip or ipv6"),
        ("arp flower ip_proto udp", "ip_proto", "protocol ip or ipv6"),
        ("arp flower ip_tos 1", "ip_tos", "protocol ip or ipv6"),
        ("arp flower ip_ttl 1", "ip_ttl", "protocol ip or ipv6"),
        ("arp flower ip_flags frag", "ip_flags", "protocol ip or ipv6"),
        ("802.1q flower ip_proto udp", "ip_proto", "protocol ip or ipv6"),
        ("ip flower vlan_id 1", "vlan_id", "protocol 802.1Q or 802.1ad"),
        ("ip flower vlan_prio 1", "vlan_prio", "protocol 802.1Q or 802.1ad"),
        ("all flower vlan_ethtype ip", "vlan_ethtype", "protocol 802.1Q or 802.1ad"),
        ("ip flower src_port 5", "src_port", "ip_proto tcp, udp or sctp"),
        ("ip flower ip_proto icmp dst_port 5", "dst_port", "ip_proto tcp, udp or sctp"),
        ("ip flower type 5", "type", "ip_proto icmp or icmpv6"),
        ("ip flower ip_proto tcp code 5", "code", "ip_proto icmp or icmpv6"),
    ] {
        let said = format!("filter flower: \"{key}\": it needs {what} before it");
        are_wrong(&[(&format!("protocol {words}"), 1, &said)]);
    }
    are_wrong(&[
        (
            "protocol 802.1q flower vlan_id 4096",
            1,
            "filter flower: illegal \"vlan_id\" \"4096\": expected a whole number, 0 to 4095",
        ),
        (
            "protocol 802.1q flower vlan_prio 8",
            1,
            "filter flower: illegal \"vlan_prio\" \"8\": expected a whole number, 0 to 7",
        ),
        (
            "protocol 802.1q flower vlan_ethtype x",
            1,
            "filter flower: illegal \"vlan_ethtype\" \"x\": expected ip, ipv6 or a number, \
             0 to 65535",
        ),
        (
            "protocol ipv6 flower dst_ip 10.0.0.1",
            1,
            "filter flower: illegal \"dst_ip\" \"10.0.0.1\": expected an IPv6 prefix such as \
             fd00::/8",
        ),
        (
            "protocol ip flower enc_key_id 5",
            1,
            "filter flower: unexpected \"enc_key_id\": flower takes src_mac, dst_mac, vlan_id, \
             vlan_prio, vlan_ethtype, ip_proto, src_ip, dst_ip, src_port, dst_port, ip_tos, \
             ip_ttl, tcp_flags, type, code, ip_flags, classid, action",
        ),
        (
            "protocol ip flower police mtu 500",
            1,
            "filter flower: unexpected \"police\": flower takes src_mac, dst_mac, vlan_id, \
             vlan_prio, vlan_ethtype, ip_proto, src_ip, dst_ip, src_port, dst_port, ip_tos, \
             ip_ttl, tcp_flags, type, code, ip_flags, classid, action",
        ),
        (
            "protocol ip flower src_ip",
            255,
            "filter flower: \"src_ip\": expected an IPv4 prefix such as 10.0.0.0/8",
        ),
    ]);
    // `any` means an address of the IP version that the filter is for.
    assert!(text("protocol ipv6 flower src_ip any").ends_with("eth_type ipv6\n  not_in_hw"));
}

/// Filters with the same mask are asked one after another, in the place of the first of these
/// filters.
#[test]
fn masks_come_and_go() {
    let udp = |port: u16| packet(&v4(17, &[], &ports(5, port)));
    let add = |table: &mut super::Table, keys: &str, minor: u16| {
        let line = format!("pref 1 protocol ip flower ip_proto udp {keys} classid 1:{minor}");
        apply(table, How::Add, &line).map_err(|error| error.to_string())
    };
    let first = |table: &super::Table, mut pkt: Packet| {
        let mut filters = super::Filters::default();
        filters.set(table.at(super::PLACE));
        ask(&mut filters, &mut pkt)
    };
    let delete = |table: &mut super::Table, handle: u32| {
        let line = format!("pref 1 protocol ip handle {handle} flower");
        apply(table, How::Delete, &line).expect("it is there");
    };
    let mut table = try_table(&[]).expect("an empty one");
    add(&mut table, "dst_port 1", 1).expect("room");
    add(&mut table, "dst_port 2", 2).expect("room");
    add(&mut table, "src_port 5", 3).expect("room");
    // The filter to port 1 is deleted. A filter to port 2 is left, and a new filter to port 7 has
    // the mask of that filter (all bits of the destination port), so the new filter is still asked
    // before the filter from port 5.
    delete(&mut table, 1);
    add(&mut table, "dst_port 7", 4).expect("room");
    assert_eq!((first(&table, udp(7)), first(&table, udp(8))), (class(4), class(3)));
    // Both filters with the mask for the destination port are deleted. A new filter to port 7 has
    // this mask again, but it is now asked after the filter from port 5.
    delete(&mut table, 2);
    delete(&mut table, 1);
    add(&mut table, "dst_port 7", 5).expect("what is gone can be there again");
    assert_eq!(first(&table, udp(7)), class(3));
    delete(&mut table, 3);
    assert_eq!((first(&table, udp(7)), first(&table, udp(8))), (class(5), Decision::Unknown));
    // A range of ports counts as another mask than a single port. A filter that matches the same
    // packets as another is refused.
    add(&mut table, "dst_port 5-9", 6).expect("room");
    assert_eq!((first(&table, udp(7)), first(&table, udp(8))), (class(5), class(6)));
    let twice = "filter: illegal \"pref\" \"1\": another filter with this preference matches the \
                 same packets";
    assert_eq!(add(&mut table, "dst_port 7", 1), Err(twice.into()));
    assert_eq!(add(&mut table, "dst_port 5-9", 1), Err(twice.into()));
    add(&mut table, "dst_port 5-10", 7).expect("another range");
    add(&mut table, "src_port 5-9", 8).expect("a range of sources");
    assert_eq!(first(&table, udp(10)), class(7));
    assert_eq!(all(&table).matches(" handle 0x").count(), 4);
    // A filter may be changed to other values with the same mask, or to the values that it has.
    let change = |keys: &str, minor: u16| {
        let mut table = table.clone();
        let line =
            format!("pref 1 protocol ip handle 1 flower ip_proto udp {keys} classid 1:{minor}");
        apply(&mut table, How::Change, &line).map_err(|error| error.to_string()).map(|()| table)
    };
    let changed = change("dst_port 8", 9).expect("of the same mask");
    assert_eq!((first(&changed, udp(8)), first(&changed, udp(7))), (class(9), class(6)));
    let changed = change("dst_port 7", 9).expect("the same");
    assert_eq!(first(&changed, udp(7)), class(9));
    let other = "filter: illegal \"pref\" \"1\": it matches other fields than the existing filter; \
                 delete that one first";
    assert_eq!(change("src_port 8", 9).expect_err("another mask"), other);
}
