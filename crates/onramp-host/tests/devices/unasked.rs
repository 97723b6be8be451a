//! Filters for packets that come in, at devices at which nothing comes in: adding one prints a
//! warning.

use super::*;

#[test]
fn a_filter_where_nothing_comes_in_is_kept_with_a_warning() {
    let mut host = host(&[
        "ip link add d0 type dummy",
        "ip link add u0 type udp local 127.0.0.1",
        "tc qdisc add dev d0 clsact",
        "tc qdisc add dev u0 ingress",
    ]);
    for (place, why) in [
        ("d0 ingress", "a dummy only counts"),
        ("d0 parent ffff:fff2", "a dummy only counts"),
        ("u0 ingress", "a udp device without listen only sends"),
    ] {
        let line = format!("tc filter add dev {place} protocol ip matchall action drop");
        let Reply { code, out, err } = exec(&mut host, &line);
        assert_eq!((code, out.as_str()), (0, ""), "{line}");
        let device = &place[..2];
        let said = format!("no packet meets it: nothing comes in at {device}, because {why}");
        assert!(err.starts_with("Warning: ") && err.contains(&said), "{err}");
    }
    assert!(out(&mut host, "tc filter show dev d0 ingress").contains("matchall"));
    assert_eq!(out(&mut host, "tc filter del dev d0 ingress"), "");
}

#[test]
fn a_filter_that_is_asked_needs_no_warning() {
    let mut host = host(&[
        "ip link add d0 type dummy",
        "ip link add v0 type veth peer name v1",
        "ip link add l0 type loopback",
        "tc qdisc add dev d0 root handle 1: prio",
    ]);
    for device in ["d0", "v0", "v1", "l0"] {
        out(&mut host, &format!("tc qdisc add dev {device} clsact"));
    }
    for place in ["d0 parent 1:", "d0 egress", "v0 ingress", "v1 ingress", "l0 ingress"] {
        let line = format!("tc filter add dev {place} protocol ip matchall classid 1:1");
        assert_eq!(exec(&mut host, &line), Reply::default(), "{line}");
    }
}
