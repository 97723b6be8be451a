//! Tests how `tc filter` names, lists, refuses and deletes filters. The expected texts come from
//! Linux 7.2 and iproute2 6.1, line by line.

use onramp_core::filter::{Query, show_filters};
use onramp_core::qdisc::Dequeue;
use onramp_core::show::{Out, Style};
use onramp_core::{ConfigError, Handle, Instant, Setup, Tree};
use onramp_queue::Packet;

const ROOT: &str = "qdisc add dev e0 root handle 1: prio";

fn setup(lines: &[&str]) -> Setup {
    let mut setup = Setup::default();
    setup.apply(ROOT).expect(ROOT);
    for line in lines {
        setup.apply(&format!("filter add dev e0 {line}")).expect(line);
    }
    setup
}

fn shown(setup: &Setup, query: &str, style: Style) -> String {
    let mut out = Out::new(style);
    setup.show_filters(query, &mut out).expect(query);
    out.finish()
}

fn text(setup: &Setup, query: &str) -> String {
    shown(setup, query, Style::default())
}

/// Applies a `tc filter` line. Returns the exit status of `tc` and the kernel's message.
fn answer(setup: &mut Setup, line: &str) -> (u8, String) {
    said(setup.apply(&format!("filter {line}")))
}

fn said<T>(answer: Result<T, ConfigError>) -> (u8, String) {
    answer.err().map_or((0, String::new()), |error| {
        (error.fault.code(), error.fault.kernel_text().unwrap_or_default())
    })
}

const ONE_OF_EACH: &[&str] = &[
    "parent 1: protocol ip prio 1 u32 match ip dport 53 0xffff flowid 1:1",
    "parent 1: protocol ip prio 1 u32 match ip src 10.0.0.0/8 match ip tos 0x10 0xff flowid 1:2 \
     action police rate 8mbit burst 3000 mtu 2000 drop",
    "parent 1: matchall classid 1:1 action ok",
    "parent 1: handle 5 fw classid 1:3",
    "parent 1: basic match 'cmp(u8 at 9 eq 17) and (u32(u16 5 0xf at 2) or meta(vlan gt 3))' \
     classid 1:3 action drop",
    "parent 1: protocol ip flower ip_proto udp dst_port 5-9 src_ip 10.0.0.0/8 \
     src_mac 2:0:0:0:0:1/24 classid 1:3 action skbedit priority 1:2 mark 5/7",
    "parent 1: handle 1 flow map key src and 0xff or 3 baseclass 1:1",
    "parent 1: bpf bytecode '1,6 0 0 1' classid 1:2",
];

const ONE_OF_EACH_SHOWN: &str = "\
filter parent 1: protocol ip pref 1 u32 chain 0 
filter parent 1: protocol ip pref 1 u32 chain 0 fh 800: ht divisor 1 
filter parent 1: protocol ip pref 1 u32 chain 0 fh 800::800 order 2048 key ht 800 bkt 0 \
    *flowid 1:1 not_in_hw 
  match 00000035/0000ffff at 20
filter parent 1: protocol ip pref 1 u32 chain 0 fh 800::801 order 2049 key ht 800 bkt 0 \
    *flowid 1:2 not_in_hw 
  match 0a000000/ff000000 at 12
  match 00100000/00ff0000 at 0
	action order 1:  police 0x1 rate 8Mbit burst 3000b mtu 2000b action drop overhead 0b 
	ref 1 bind 1 

filter parent 1: protocol all pref 49147 bpf chain 0 
filter parent 1: protocol all pref 49147 bpf chain 0 handle 0x1 flowid 1:2 not_in_hw \
    bytecode '1,6 0 0 1'
filter parent 1: protocol all pref 49148 flow chain 0 
filter parent 1: protocol all pref 49148 flow chain 0 handle 0x1 map keys src and \
    0x000000fc or 0x00000003 baseclass 1:1 
filter parent 1: protocol ip pref 49149 flower chain 0 
filter parent 1: protocol ip pref 49149 flower chain 0 handle 0x1 classid 1:3 
  src_mac 02:00:00:00:00:01/24
  eth_type ipv4
  ip_proto udp
  src_ip 10.0.0.0/8
  dst_port 5-9
  not_in_hw
	action order 1: skbedit  priority 1:2 mark 5/0x7 pipe
	 index 1 ref 1 bind 1

filter parent 1: protocol all pref 49150 basic chain 0 
filter parent 1: protocol all pref 49150 basic chain 0 handle 0x1 flowid 1:3 
  cmp(u8 at 9 layer 1 eq 17)
  AND (
    u32(00000005/0000000f at 0)
    OR meta(vlan gt 3)
  ) 
	action order 1: gact action drop
	 random type none pass val 0
	 index 2 ref 1 bind 1

filter parent 1: protocol all pref 49151 fw chain 0 
filter parent 1: protocol all pref 49151 fw chain 0 handle 0x5 classid 1:3 
filter parent 1: protocol all pref 49152 matchall chain 0 
filter parent 1: protocol all pref 49152 matchall chain 0 handle 0x1 flowid 1:1 
  not_in_hw
	action order 1: gact action pass
	 random type none pass val 0
	 index 1 ref 1 bind 1

";

#[test]
fn one_of_each_kind() {
    let setup = setup(ONE_OF_EACH);
    assert_eq!(text(&setup, "dev e0"), ONE_OF_EACH_SHOWN);
    // `tc filter show` leaves out the fields that its command line names, because they are the same
    // in each line of the output.
    let lines = "filter protocol all matchall chain 0 \n\
        filter protocol all matchall chain 0 handle 0x1 flowid 1:1 \n  not_in_hw\n\
        \taction order 1: gact action pass\n\t random type none pass val 0\n\
        \t index 1 ref 1 bind 1\n\n";
    assert_eq!(text(&setup, "dev e0 parent 1: pref 49152"), lines);
    assert_eq!(text(&setup, "dev e0 protocol ipv6"), "");
    assert_eq!(text(&setup, "dev e0 root"), "");
}

#[test]
fn as_json() {
    let setup = setup(ONE_OF_EACH);
    let json = Style { json: true, stats: true, ..Style::default() };
    let lines = concat!(
        r#"[{"parent":"1:","protocol":"ip","kind":"u32","chain":0},{"parent":"1:","#,
        r#""protocol":"ip","kind":"u32","chain":0,"options":{"fh":"800:","ht_divisor":1}},"#,
        r#"{"parent":"1:","protocol":"ip","kind":"u32","chain":0,"#,
        r#""options":{"fh":"800::800","order":2048,"key_ht":"800","bkt":"0","flowid":"1:1","#,
        r#""not_in_hw":true,"match":{"value":"35","mask":"ffff","offmask":"","off":20}}},"#,
        r#"{"parent":"1:","protocol":"ip","kind":"u32","chain":0,"#,
        r#""options":{"fh":"800::801","order":2049,"key_ht":"800","bkt":"0","flowid":"1:2","#,
        r#""not_in_hw":true,"match":{"value":"a000000","mask":"ff000000","offmask":"","#,
        r#""off":12},"match":{"value":"100000","mask":"ff0000","offmask":"","off":0},"#,
        r#""actions":[{"order":1,"kind":"police","index":1,"#,
        r#""control_action":{"type":"drop"},"overhead":0,"ref":1,"bind":1,"#,
        r#""stats":{"bytes":0,"packets":0,"drops":0,"overlimits":0,"requeues":0,"#,
        r#""backlog":0,"qlen":0}}]}}]"#,
        "\n"
    );
    assert_eq!(shown(&setup, "dev e0 pref 1", json), lines);
    let json = Style { json: true, ..Style::default() };
    let lines = concat!(
        r#"[{"parent":"1:","protocol":"ip","kind":"flower","chain":0},{"parent":"1:","#,
        r#""protocol":"ip","kind":"flower","chain":0,"options":{"handle":1,"classid":"1:3","#,
        r#""keys":{"src_mac":"02:00:00:00:00:01/24","eth_type":"ipv4","ip_proto":"udp","#,
        r#""src_ip":"10.0.0.0/8","dst_port":{"start":5,"end":9}},"not_in_hw":true,"#,
        r#""actions":[{"order":1,"kind":"skbedit","priority":"1:2","mark":5,"mask":"7","#,
        r#""control_action":{"type":"pipe"},"index":1,"ref":1,"bind":1}]}}]"#,
        "\n"
    );
    assert_eq!(shown(&setup, "dev e0 pref 49149", json), lines);
    // Where iproute2 prints invalid JSON, our output is valid JSON.
    let all: serde_json::Value = serde_json::from_str(&shown(&setup, "", json)).expect("JSON");
    assert_eq!(all.as_array().map(Vec::len), Some(16));
    assert_eq!(all[7]["options"]["keys"], serde_json::json!(["src"]));
    assert_eq!(all[13]["options"]["handle"], "0x5");
}

/// A line can create a hash table of the filter kind `u32`, link it from another table, and choose
/// the handle of a node in a table. A table in use cannot be deleted.
#[test]
fn hash_tables() {
    let mut setup = setup(&[
        "parent 1: prio 1 handle 1: u32 divisor 256",
        "parent 1: prio 1 u32 ht 1:5: match ip src 10.0.0.5 flowid 1:1",
        "parent 1: prio 1 u32 ht 1: sample u32 0x7 0xff match ip src 10.0.0.7 flowid 1:2",
        "parent 1: prio 1 u32 match ip dst 10.1.0.0/24 link 1: hashkey mask 0xff at 12 \
         offset at 0 mask 0x0f00 shift 6 plus 0 eat",
        "parent 1: prio 1 handle ::5 u32 match u32 1 1 flowid 1:1",
        "parent 1: prio 1 u32 divisor 4",
        "parent 1: prio 2 u32 match u32 2 2 action ok",
    ]);
    let lines = "\
filter protocol all u32 
filter protocol all u32 fh 801: ht divisor 4 
filter protocol all u32 fh 1: ht divisor 256 
filter protocol all u32 fh 1:5:800 order 2048 key ht 1 bkt 5 *flowid 1:1 not_in_hw 
  match 0a000005/ffffffff at 12
filter protocol all u32 fh 1:7:800 order 2048 key ht 1 bkt 7 *flowid 1:2 not_in_hw 
  match 0a000007/ffffffff at 12
filter protocol all u32 fh 800: ht divisor 1 
filter protocol all u32 fh 800::5 order 5 key ht 800 bkt 0 *flowid 1:1 not_in_hw 
  match 00000001/00000001 at 0
filter protocol all u32 fh 800::800 order 2048 key ht 800 bkt 0 link 1: not_in_hw 
  match 0a010000/ffffff00 at 16
    offset 0f00>>6 at 0  eat 
    hash mask 000000ff at 12 
";
    assert_eq!(text(&setup, "dev e0 parent 1: chain 0 prio 1"), lines);
    for (line, code, text) in [
        ("add dev e0 parent 1: prio 1 handle 1: u32 divisor 8", 2, "Error: Filter already exists."),
        (
            "add dev e0 parent 1: prio 1 handle 9:4:9 u32 match u32 1 1",
            2,
            "Error: cls_u32: Handle specified hash table address mismatch.",
        ),
        (
            "add dev e0 parent 1: prio 1 u32 ht 9: match u32 1 1",
            2,
            "Error: cls_u32: Specified hash table not found.",
        ),
        (
            "add dev e0 parent 1: prio 1 u32 match u32 0 0 link 9:",
            2,
            "Error: cls_u32: Link hash table not found.",
        ),
        ("add dev e0 parent 1: prio 1 u32 divisor 3", 1, ""),
        ("add dev e0 parent 1: u32 flowid 1:1", 2, "Error: cls_u32: Selector not specified."),
        (
            "del dev e0 parent 1: prio 1 handle 1: u32",
            2,
            "Error: cls_u32: Can not delete in-use filter.",
        ),
        (
            "del dev e0 parent 1: prio 1 handle 800: u32",
            2,
            "Error: cls_u32: Not allowed to delete root node.",
        ),
        ("del dev e0 parent 1: prio 1 handle 801: u32", 0, ""),
        ("del dev e0 parent 1: prio 1 handle 1:5:800 u32", 0, ""),
        (
            "del dev e0 parent 1: prio 1 handle 1:5:800 u32",
            2,
            "Error: Specified filter handle not found.",
        ),
    ] {
        assert_eq!(answer(&mut setup, line), (code, text.to_owned()), "{line}");
    }
    assert!(text(&setup, "pref 2").contains("fh 802::800 order 2048 key ht 802 bkt 0 terminal"));
    assert!(!text(&setup, "").contains("fh 1:5:800"));
}

/// Lines that are refused when they add or change a filter: each entry has the message of the
/// client or of the kernel. Afterwards, nothing has changed.
#[test]
fn refusals() {
    let mut setup = setup(&[
        "parent 1: prio 7 handle 1 matchall classid 1:1",
        "parent 1: prio 8 handle 5 basic classid 1:1",
        "parent 1: prio 9 protocol ip flower ip_proto udp classid 1:1",
    ]);
    let before = text(&setup, "");
    let mismatch = "Error: Specified filter kind does not match existing one.";
    let protocol = "Error: Protocol mismatch for filter with specified priority.";
    let exists = "RTNETLINK answers: File exists";
    let invalid = "RTNETLINK answers: Invalid argument";
    let create = "Error: Need both RTM_NEWTFILTER and NLM_F_CREATE to create a new filter.";
    let nothing = "Error: Filter kind and protocol must be specified.";
    let no_qdisc = "Error: Parent Qdisc doesn't exists.";
    for (line, code, text) in [
        ("add dev e0 parent 1:", 2, nothing),
        ("add dev e0 parent 1: rsvp", 2, "Error: TC classifier not found."),
        ("add dev e0 parent 1: rsvp session", 1, ""),
        ("add dev e0 parent 1: prio x matchall", 255, ""),
        ("add dev e0 parent 1: prio 1 pref 2 matchall", 255, ""),
        ("add dev e0 parent 1: protocol x matchall", 255, ""),
        ("add dev e0 parent 1: matchall classid", 255, ""),
        ("add dev e0 parent 1: matchall classid x", 1, ""),
        ("add dev e0 parent 1: matchall foo", 1, ""),
        ("add dev e0 parent 1: matchall action foo", 255, ""),
        ("add dev e0 parent 1: matchall action police rate x burst 10k", 255, ""),
        ("add dev e0 parent 1: matchall action skbedit foo", 1, ""),
        ("add dev e0 parent 1: matchall", 2, invalid),
        ("add dev e0 parent 1: flow map key src", 2, invalid),
        ("add dev e0 parent 1: fw classid 1:1", 2, invalid),
        ("add dev e0 parent 2: matchall classid 1:1", 2, no_qdisc),
        ("add dev e0 root matchall classid 1:1", 2, no_qdisc),
        ("add dev e0 ingress matchall classid 1:1", 2, no_qdisc),
        ("add dev e0 parent 1:1 matchall classid 1:1", 2, invalid),
        ("add dev e0 parent 1:9 basic classid 1:1", 2, "Error: Specified class doesn't exist."),
        (
            "add dev e0 parent 1: chain 268435456 basic classid 1:1",
            2,
            "Error: Specified chain index exceeds upper limit.",
        ),
        (
            "add dev e0 parent 1: prio 7 handle 1 matchall classid 1:1",
            2,
            "Error: Filter already exists.",
        ),
        ("add dev e0 parent 1: prio 7 matchall classid 1:1", 2, exists),
        ("replace dev e0 parent 1: prio 7 matchall classid 1:2", 2, exists),
        ("add dev e0 parent 1: prio 7 basic classid 1:1", 2, mismatch),
        ("add dev e0 parent 1: prio 7 protocol ip matchall classid 1:1", 2, protocol),
        ("add dev e0 parent 1: prio 9 protocol ip flower ip_proto udp classid 1:2", 2, exists),
        ("change dev e0 parent 1: prio 8 handle 9 basic classid 1:2", 2, create),
        ("change dev e0 parent 1: prio 12 handle 1 basic classid 1:3", 2, nothing),
        (
            "change dev e0 parent 1: handle 1 basic classid 1:3",
            2,
            "Error: Invalid filter command with priority of zero.",
        ),
    ] {
        assert_eq!(answer(&mut setup, line), (code, text.to_owned()), "{line}");
    }
    assert_eq!(text(&setup, ""), before);
}

/// An `ingress` has one list of filters, which `tc` names by the word `ingress` or by a parent such
/// as `ffff:`. Listings use the name that the last line that added a filter used.
#[test]
fn an_ingress_is_called_what_was_typed() {
    let mut setup = setup(&[]);
    setup.apply("qdisc add dev e0 ingress").expect("none is there");
    let add = |setup: &mut Setup, place: &str, pref: u32| {
        let line = format!("filter add dev e0 {place} prio {pref} protocol ip matchall action ok");
        setup.apply(&line).expect("a correct line");
    };
    let first = |setup: &Setup, place: &str| {
        let lines = text(setup, place);
        lines.lines().next().unwrap_or_default().to_owned()
    };
    let tail = "protocol ip pref 1 matchall chain 0 ";
    add(&mut setup, "parent ffff:", 1);
    assert_eq!(first(&setup, "dev e0 parent ffff:"), format!("filter {tail}"));
    assert_eq!(first(&setup, "dev e0 ingress"), format!("filter parent ffff: {tail}"));
    assert!(setup.lines().last().is_some_and(|line| line.contains(" parent ffff: ")));
    let json = shown(&setup, "dev e0 ingress", Style { json: true, ..Style::default() });
    assert!(json.contains(r#"{"parent":"ffff:","protocol":"ip""#), "{json}");
    for (place, name) in [("parent ffff:", "parent ffff: "), ("ingress", "ingress ")] {
        let mut out = Out::new(Style::default());
        let line = format!("dev e0 {place} prio 1 protocol ip handle 1 matchall");
        setup.get_filter(&line, &mut out).expect("it is there");
        let got = out.finish();
        assert!(got.starts_with(&format!("filter {name}protocol ip")), "{got}");
    }
    add(&mut setup, "ingress", 2);
    assert_eq!(first(&setup, "dev e0 parent ffff:"), format!("filter ingress {tail}"));
    assert_eq!(first(&setup, "dev e0 ingress"), format!("filter {tail}"));
    add(&mut setup, "parent ffff:5", 3);
    setup.apply("filter del dev e0 ingress prio 3").expect("it is there");
    assert_eq!(first(&setup, "dev e0 ingress"), format!("filter parent ffff:5 {tail}"));
}

/// Like Linux, our parser accepts the words of a match (such as `cmp`) in any order, and a match
/// that is only a number.
#[test]
fn any_order_and_numbers_alone() {
    let setup = setup(&[
        "parent 1: prio 1 basic match 'cmp(u8 at 0 layer link mask 0xff gt 10 trans)' classid 1:1",
        "parent 1: prio 1 basic match 'cmp(u8 at 0 gt 10 mask 0xff layer tcp)' classid 1:1",
        "parent 1: prio 1 basic match 'nbyte(ab layer tcp at 3)' classid 1:1",
        "parent 1: prio 2 bpf da bytecode '1,6 0 0 0'",
        "parent 1: prio 3 matchall action police index 9",
        "parent 1: prio 4 matchall action gact index 55",
        "parent 1: prio 5 protocol ip flower ip_proto sctp tcp_flags 0x2 classid 1:1",
    ]);
    let all = text(&setup, "");
    for line in [
        "handle 0x1 direct-action not_in_hw bytecode '1,6 0 0 0'",
        "police 0x9 rate 0bit burst 0b mtu 4096Mb action reclassify overhead 0b",
        "index 55 ref 1 bind 1",
    ] {
        assert!(all.contains(line), "{line}: {all}");
    }
    assert!(!all.contains("tcp_flags"), "{all}");
}

/// Each entry has a line that is refused because of one word of a filter or an action, the exit
/// status of `tc`, and the kernel's message. Some of these words are valid in Linux, but stand for
/// parts that this project does not have.
#[test]
fn refusals_of_words() {
    let mut setup = setup(&["parent 1: prio 9 protocol ip flower ip_proto udp classid 1:1"]);
    let before = text(&setup, "");
    let invalid = "RTNETLINK answers: Invalid argument";
    let absent = "Error: Failed to load TC action module.";
    let not_here = "RTNETLINK answers: Operation not supported";
    let no_entry = "RTNETLINK answers: No such file or directory";
    for (line, code, text) in [
        ("add dev e0 parent 1: matchall action mirred egress redirect dev lo", 2, absent),
        ("add dev e0 parent 1: matchall action ok action vlan pop", 2, absent),
        ("add dev e0 parent 1: matchall action trap", 2, not_here),
        ("add dev e0 parent 1: matchall action gact trap", 2, not_here),
        ("add dev e0 parent 1: matchall action police rate 1mbit burst 9k avrate 1mbit", 1, ""),
        (
            "add dev e0 parent 1: matchall action ok cookie 0123456789abcdef0123456789abcdef0",
            255,
            "",
        ),
        ("add dev e0 parent 1: bpf bytecode '1,255 0 0 0' classid 1:1", 2, invalid),
        ("add dev e0 parent 1: bpf bytecode '2,6 0 0 0'", 1, ""),
        ("add dev e0 parent 1: bpf bytecode '1,6 0 0 0,6 0 0 0'", 1, ""),
        ("add dev e0 parent 1: bpf bytecode ''", 1, ""),
        ("add dev e0 parent 1: basic match 'cmp(u8 at 0)' classid 1:1", 1, ""),
        ("add dev e0 parent 1: basic match 'cmp(u8 gt 10)' classid 1:1", 1, ""),
        ("add dev e0 parent 1: basic match 'cmp(at 0 u8 gt 10)' classid 1:1", 1, ""),
        ("add dev e0 parent 1: basic match 'canid(sff 1)' classid 1:1", 2, no_entry),
        ("add dev e0 parent 1: basic match 'meta(random gt 5)' classid 1:1", 2, not_here),
        ("add dev e0 parent 1: protocol ip flower ip_proto tcp dst_port 0x50", 1, ""),
        ("add dev e0 parent 1: protocol ip flower ip_proto tcp dst_port 80-0x90", 1, ""),
        ("add dev e0 parent 1: protocol ip flower ip_proto icmp type 8/0xf", 1, ""),
        (
            "replace dev e0 parent 1: prio 9 protocol ip handle 1 flower ip_proto udp dst_port 8",
            2,
            invalid,
        ),
    ] {
        assert_eq!(answer(&mut setup, line), (code, text.to_owned()), "{line}");
    }
    assert_eq!(text(&setup, ""), before);
}

#[test]
fn changes_in_place() {
    let mut setup = setup(&[
        "parent 1: prio 1 handle 5 basic match 'cmp(u8 at 1 eq 2)' classid 1:1 action ok",
        "parent 1: prio 2 u32 match u32 1 1 flowid 1:1 action ok",
        "parent 1: prio 3 handle 1 flow map key src baseclass 1:2 action ok",
    ]);
    for line in [
        // A `replace` of a `basic` filter replaces everything about the filter.
        "replace dev e0 parent 1: prio 1 handle 5 basic classid 1:2",
        // A `change` of a `u32` filter keeps the filter's condition (`match`), but changes its
        // action.
        "change dev e0 parent 1: prio 2 handle 800::800 u32 match u32 2 2 action drop",
        // A `replace` of a `flow` filter with the same handle keeps the filter's `map` and
        // `baseclass`, which the line does not name, but not its action.
        "replace dev e0 parent 1: prio 3 handle 1 flow divisor 5",
    ] {
        assert_eq!(answer(&mut setup, line), (0, String::new()), "{line}");
    }
    assert!(text(&setup, "pref 1").ends_with("chain 0 handle 0x5 flowid 1:2 \n"));
    let u32 = "bkt 0 terminal flowid not_in_hw \n  match 00000001/00000001 at 0\n\
        \taction order 1: gact action drop\n";
    assert!(text(&setup, "pref 2").contains(u32));
    assert!(text(&setup, "pref 3").ends_with("map keys src divisor 5 baseclass 1:2 \n"));
}

#[test]
fn one_is_got_and_some_are_deleted() {
    let mut setup = setup(&[
        "parent 1: prio 1 protocol ip basic classid 1:1",
        "parent 1: prio 1 protocol ip basic classid 1:2",
        "parent 1: prio 1 protocol ip handle 7 basic classid 1:3",
        "parent 1: chain 3 protocol ip basic classid 1:3",
        "parent 1: chain 2 prio 5 protocol ip basic classid 1:3",
    ]);
    // Among filters of one preference, the filter added last is listed first. Chains are listed in
    // the order in which they were created.
    let names = |setup: &Setup| -> Vec<String> {
        let all = text(setup, "");
        let lines = all.lines().filter(|line| line.contains("handle"));
        lines.filter_map(|line| line.split(" chain ").nth(1)).map(str::to_owned).collect()
    };
    let all = [
        "0 handle 0x7 flowid 1:3 ",
        "0 handle 0x2 flowid 1:2 ",
        "0 handle 0x1 flowid 1:1 ",
        "3 handle 0x1 flowid 1:3 ",
        "2 handle 0x1 flowid 1:3 ",
    ];
    assert_eq!(names(&setup), all);
    let get = |line: &str| {
        let mut out = Out::new(Style::default());
        setup.get_filter(line, &mut out).map(|()| out.finish())
    };
    let got = get("dev e0 parent 1: prio 1 protocol ip handle 7 basic").expect("there");
    assert_eq!(got, "filter parent 1: protocol ip pref 1 basic chain 0 handle 0x7 flowid 1:3 \n");
    assert_eq!(said(get("dev e0 parent 1: prio 1 handle 7 basic")).0, 255);
    assert_eq!(said(get("dev e0 prio 1 protocol ip handle 7 basic")).0, 255);
    let no_handle = "Error: Specified filter handle not found.";
    let no_pref = "Error: Filter with specified priority/protocol not found.";
    let no_chain = "Error: Cannot find specified filter chain.";
    let flush = "Error: Cannot flush filters with protocol, handle or kind set.";
    let get = said(get("dev e0 parent 1: prio 1 protocol ip handle 8 basic"));
    assert_eq!(get, (2, no_handle.into()));
    for (line, code, text) in [
        ("del dev e0 parent 1: prio 1 handle 7", 255, ""),
        ("del dev e0 parent 1: prio 1 handle 8 basic", 2, no_handle),
        ("del dev e0 parent 1: prio 2", 2, no_pref),
        ("del dev e0 parent 1: chain 9 prio 2", 2, no_chain),
        ("del dev e0 parent 1: protocol ip", 2, flush),
        ("del dev e0 parent 1: basic", 2, flush),
        ("del dev e0 root", 2, "Error: Parent Qdisc doesn't exists."),
        ("del dev e0 parent 1: prio 1 handle 2 basic", 0, ""),
        ("del dev e0 parent 1: chain 3", 0, ""),
        ("del dev e0 parent 1: chain 3", 0, ""),
    ] {
        assert_eq!(answer(&mut setup, line), (code, text.to_owned()), "{line}");
    }
    assert_eq!(names(&setup), [all[0], all[2], all[4]]);
    // A new filter gets the number of a filter that was deleted.
    let add = "add dev e0 parent 1: prio 1 protocol ip basic classid 1:2";
    assert_eq!(answer(&mut setup, add), (0, String::new()));
    assert_eq!(names(&setup), [all[1], all[0], all[2], all[4]]);
    assert_eq!(answer(&mut setup, "del dev e0 parent 1: prio 1 protocol ip basic").0, 0);
    assert_eq!(answer(&mut setup, "del dev e0 parent 1: prio 1"), (2, no_chain.into()));
}

/// A listing of a running tree shows the counters of its filters.
#[test]
fn what_passed_is_counted() {
    let lines = setup(&[
        "parent 1: prio 1 matchall classid 1:1 action police mtu 500 conform-exceed drop/pipe \
         action skbedit priority 1:2",
    ]);
    let now = Instant(1_000_000_000);
    let mut tree = Tree::of(&lines, 1514, 0).expect("a root");
    for len in [100, 600, 200] {
        let _ = tree.enqueue(now, Packet::new(len));
    }
    let Dequeue::Ready(_) = tree.dequeue(now) else { panic!("two are held") };
    let filters = tree.filters(now, Handle::new(1, 0));
    let mut out = Out::new(Style { stats: true, ..Style::default() });
    show_filters(filters.iter(), Handle::new(1, 0), &Query::default(), &mut out);
    let out = out.finish();
    for part in [
        "not_in_hw (rule hit 3)\n",
        "action drop/pipe overhead 0b \n\tref 1 bind 1 \n\tAction statistics:\n\
         \tSent 900 bytes 3 pkt (dropped 1, overlimits 1 requeues 0) \n",
        "\tSent 300 bytes 2 pkt (dropped 0, overlimits 0 requeues 0) \n\
         \tbacklog 0b 0p requeues 0\n",
    ] {
        assert!(out.contains(part), "{part} in {out}");
    }
    // A tree that was only described, but does not run, shows zero for each counter.
    let stats = Style { stats: true, ..Style::default() };
    assert!(shown(&lines, "", stats).contains("(rule hit 0)"));
}

/// Adding, changing or deleting one of many filters takes no longer than one of few filters.
#[test]
fn many_filters_are_added_in_time() {
    const COUNT: u32 = 4_000;
    let mut setup = setup(&[]);
    for mark in 1..=COUNT {
        let line = format!("filter add dev e0 parent 1: prio 1 handle {mark} fw classid 1:1");
        setup.apply(&line).expect("room");
    }
    for pref in 1..=COUNT {
        let line = format!("filter add dev e0 parent 1: handle {pref} basic classid 1:1");
        setup.apply(&line).expect("room");
    }
    for pref in 49153 - COUNT..=49152 {
        setup.apply(&format!("filter del dev e0 parent 1: pref {pref}")).expect("there");
    }
    assert_eq!(u32::try_from(text(&setup, "").lines().count()), Ok(COUNT + 1));
}
