//! The commands that a host carries out, in order, to reach the state that a text describes;
//! compared word by word.

use super::*;

/// Configures the host and returns the commands that it carried out.
fn steps(host: &mut Host, text: &str) -> Vec<String> {
    host.configure(text, Path::new("/")).expect("it can be done")
}

#[test]
fn devices_are_made_and_set_in_one_step_each() {
    let mut host = Host::new();
    let text = "ip link add d0 up mtu 1400 numtxqueues 2 type dummy\n\
                ip link add v0 txqueuelen 7 type veth peer name v1 numtxqueues 3\n";
    let took = steps(&mut host, text);
    assert_eq!(
        took,
        [
            "ip link add dev d0 numtxqueues 2 type dummy",
            "ip link add dev v0 numtxqueues 1 type veth peer name v1 numtxqueues 3",
            "ip link set dev d0 mtu 1400 up",
            "ip link set dev v0 txqueuelen 7",
        ]
    );
    assert_eq!(steps(&mut host, text), [""; 0], "it is as it should be");
    // If only properties differ that can change after creation, one command changes them all on a
    // device.
    let text = "ip link add d0 mtu 1300 txqueuelen 9 numtxqueues 2 type dummy\n\
                ip link add v0 txqueuelen 7 type veth peer name v1 numtxqueues 3 up\n";
    assert_eq!(
        steps(&mut host, text),
        ["ip link set dev d0 mtu 1300 txqueuelen 9 down", "ip link set dev v1 up"]
    );
    let shown = out(&mut host, "ip link show d0");
    assert!(shown.contains(" mtu 1300 ") && shown.contains(" qlen 9\n"), "{shown}");
    assert!(!shown.contains("UP"), "{shown}");
    // A device with another value of a property that cannot change is made anew. Deleting one end
    // of a pair deletes the other end, too.
    let text = "ip link add d0 mtu 1300 txqueuelen 9 numtxqueues 3 type dummy\n";
    let took = steps(&mut host, text);
    assert_eq!(
        took.iter().filter(|step| step.starts_with("ip link del dev ")).count(),
        2,
        "{took:?}"
    );
    assert!(took.ends_with(&[
        "ip link add dev d0 numtxqueues 3 type dummy".to_owned(),
        "ip link set dev d0 mtu 1300 txqueuelen 9".to_owned(),
    ]));
    let names: Vec<_> = host.devices().into_iter().map(|device| device.name).collect();
    assert_eq!(names, ["d0"]);
}

/// A device is set up only when it has its qdiscs: a packet that came earlier would pass without
/// them.
#[test]
fn a_device_goes_up_with_its_qdiscs() {
    let mut host = Host::new();
    let tree = "tc qdisc add dev d0 root handle 1: tbf rate 1mbit burst 5k latency 50ms\n";
    let took = steps(&mut host, &format!("ip link add d0 mtu 1400 up type dummy\n{tree}"));
    let [add, set, grow, up] = &*took else { panic!("{took:?}") };
    assert_eq!(add, "ip link add dev d0 numtxqueues 1 type dummy");
    assert_eq!(set, "ip link set dev d0 mtu 1400");
    assert!(grow.contains("tc qdisc ") && grow.contains("tbf rate 1mbit"), "{grow}");
    assert_eq!(up, "ip link set dev d0 up");
    assert!(out(&mut host, "tc qdisc show dev d0").starts_with("qdisc tbf 1: root "));
    let filters = "tc qdisc add dev d0 clsact\n\
                   tc filter add dev d0 egress protocol all matchall action drop\n";
    let took = steps(&mut Host::new(), &format!("ip link add d0 up type dummy\n{filters}"));
    assert_eq!(took.last().map(String::as_str), Some("ip link set dev d0 up"), "{took:?}");
}

#[test]
fn a_tree_is_changed_where_it_can_be_and_replaced_where_not() {
    let mut host = Host::new();
    let mut follow = |tree: &str| {
        let text = format!("ip link add d0 up type dummy\n{tree}");
        let took = steps(&mut host, &text);
        (took, out(&mut host, "tc qdisc show dev d0"))
    };
    let (took, shown) = follow("");
    assert_eq!(took, ["ip link add dev d0 numtxqueues 1 type dummy", "ip link set dev d0 up"]);
    assert_eq!(shown, "qdisc noqueue 0: root refcnt 2 \n");
    let prio = "tc qdisc add dev d0 root handle 1: prio\n";
    let (took, shown) =
        follow(&format!("{prio}tc qdisc add dev d0 parent 1:1 handle 11: pfifo limit 5\n"));
    assert_eq!(
        took,
        [
            "+ tc qdisc add dev d0 root handle 1: prio",
            "+ tc qdisc add dev d0 parent 1:1 handle 11: pfifo limit 5"
        ]
    );
    assert!(shown.ends_with("qdisc pfifo 11: parent 1:1 limit 5p\n"), "{shown}");
    // The new tree differs from the old one only in parameters, so the tree is changed in place.
    let (took, shown) =
        follow(&format!("{prio}tc qdisc add dev d0 parent 1:1 handle 11: pfifo limit 6\n"));
    assert_eq!(took, ["tc qdisc change dev d0 parent 1:1 handle 11: pfifo limit 6"]);
    assert!(shown.ends_with("qdisc pfifo 11: parent 1:1 limit 6p\n"), "{shown}");
    // The new tree differs in more than parameters, so the tree is replaced. The steps leave out
    // the lines that both trees have.
    let (took, shown) =
        follow(&format!("{prio}tc qdisc add dev d0 parent 1:2 handle 12: bfifo limit 7000\n"));
    assert_eq!(
        took,
        [
            "- tc qdisc add dev d0 parent 1:1 handle 11: pfifo limit 6",
            "+ tc qdisc add dev d0 parent 1:2 handle 12: bfifo limit 7000b"
        ]
    );
    assert!(shown.ends_with("qdisc bfifo 12: parent 1:2 limit 7000b\n"), "{shown}");
    let (took, shown) = follow("");
    assert_eq!(
        took,
        [
            "- tc qdisc add dev d0 root handle 1: prio",
            "- tc qdisc add dev d0 parent 1:2 handle 12: bfifo limit 7000b"
        ]
    );
    assert_eq!(shown, "qdisc noqueue 0: root refcnt 2 \n");
}

/// A device that was ever up has a default qdisc, even if a later text makes the same device
/// without a tree. As in Linux, only a device that was never up has `noop`.
#[test]
fn a_tree_that_goes_leaves_what_the_device_has_by_itself() {
    let mut host = Host::new();
    let up = "ip link add d0 up txqueuelen 30 numtxqueues 2 type dummy\n\
              tc qdisc add dev d0 root handle 1: prio\n";
    steps(&mut host, up);
    let took = steps(&mut host, "ip link add d0 txqueuelen 30 numtxqueues 2 type dummy\n");
    assert_eq!(took, ["ip link set dev d0 down", "- tc qdisc add dev d0 root handle 1: prio"]);
    assert_eq!(out(&mut host, "tc qdisc show dev d0"), "qdisc noqueue 0: root refcnt 2 \n");
    assert!(out(&mut host, "ip link show d0").contains(" qdisc noqueue state DOWN "));
}
