//! Filters that classify no packet: adding one prints a warning.

use super::*;

#[test]
fn a_filter_where_packets_come_in_is_kept_with_a_warning() {
    let mut host = host(&["ip link add d0 type dummy", "tc qdisc add dev d0 clsact"]);
    for place in ["ingress", "egress", "parent ffff:fff2"] {
        let line = format!("tc filter add dev d0 {place} protocol ip matchall action drop");
        let Reply { code, out, err } = exec(&mut host, &line);
        assert_eq!((code, out.as_str()), (0, ""), "{line}");
        assert!(err.starts_with("Warning: ") && err.contains("filters of ingress"), "{err}");
    }
    assert!(out(&mut host, "tc filter show dev d0 ingress").contains("matchall"));
    assert_eq!(out(&mut host, "tc filter del dev d0 ingress"), "");
}

#[test]
fn a_filter_at_the_root_is_asked_and_needs_no_warning() {
    let mut host = host(&["ip link add d0 type dummy", "tc qdisc add dev d0 root handle 1: prio"]);
    let line = "tc filter add dev d0 parent 1: protocol ip matchall classid 1:1";
    assert_eq!(exec(&mut host, line), Reply::default());
}
