//! The events that a host reports to listeners, with lines as `ip` and `tc monitor` show them.

use std::sync::mpsc::{Receiver, channel};

use onramp_host::{Event, What};

use super::*;

/// Makes a host. Returns the host, and a channel on which its events arrive from now on.
fn heard(mut host: Host) -> (Host, Receiver<Event>) {
    let (tell, told) = channel();
    host.listen(move |event| tell.send(event.clone()).is_ok());
    (host, told)
}

/// Carries out a command, and returns the events that it caused.
fn told(host: &mut Host, events: &Receiver<Event>, line: &str) -> Vec<(What, String, String)> {
    assert_eq!(exec(host, line).code, 0, "{line}");
    events.try_iter().map(|event| (event.what, event.device, event.line)).collect()
}

/// A command, and the events that it causes.
type Step<'a> = (&'a str, &'a [(What, &'a str)]);

fn follow(host: &mut Host, events: &Receiver<Event>, device: &str, steps: &[Step<'_>]) {
    for (line, want) in steps {
        let want: Vec<_> = want
            .iter()
            .map(|(what, line)| (*what, device.to_owned(), (*line).to_owned()))
            .collect();
        assert_eq!(told(host, events, line), want, "{line}");
    }
}

#[test]
fn what_ip_does_is_told_as_ip_shows_it() {
    use What::{Added, Changed, Deleted, Down, Up};
    let (mut host, events) = heard(Host::new());
    let rest = "mode DEFAULT group default qlen";
    let new = format!("1: d0: <BROADCAST,NOARP> mtu 1500 qdisc noop state DOWN {rest} 1000");
    let up = "1: d0: <BROADCAST,NOARP,UP,LOWER_UP> mtu 1500 qdisc noqueue state UNKNOWN";
    let (up, short) = (format!("{up} {rest} 1000"), format!("{up} {rest} 5"));
    let down = format!("1: d0: <BROADCAST,NOARP> mtu 1500 qdisc noqueue state DOWN {rest} 5");
    follow(
        &mut host,
        &events,
        "d0",
        &[
            ("ip link add d0 type dummy", &[(Added, &new)]),
            ("ip link show", &[]),
            ("ip link set d0 up", &[(Up, &up)]),
            ("ip link set d0 up", &[(Changed, &up)]),
            ("ip link set d0 qlen 5", &[(Changed, &short)]),
            ("ip link set d0 down", &[(Down, &down)]),
            ("ip link set d0 down", &[(Changed, &down)]),
        ],
    );
    let renamed = down.replace("d0", "e0");
    follow(
        &mut host,
        &events,
        "e0",
        &[
            ("ip link set d0 name e0", &[(Changed, &renamed)]),
            ("ip link del e0", &[(Deleted, &renamed)]),
        ],
    );
    // Of a pair, the second end is added first and deleted last.
    let pair = told(&mut host, &events, "ip link add v0 type veth peer name v1");
    let whats: Vec<_> = pair.iter().map(|(what, name, _)| (*what, name.as_str())).collect();
    assert_eq!(whats, [(Added, "v1"), (Added, "v0")]);
    assert!(pair[1].2.starts_with("3: v0@v1: <BROADCAST,MULTICAST,M-DOWN> "), "{pair:?}");
    let gone = told(&mut host, &events, "ip link del v0");
    let whats: Vec<_> = gone.iter().map(|(what, name, _)| (*what, name.as_str())).collect();
    assert_eq!(whats, [(Deleted, "v0"), (Deleted, "v1")]);
}

#[test]
fn what_tc_does_is_told_as_tc_shows_it() {
    use What::{Added, Changed, Deleted};
    let (mut host, events) = heard(host(&["ip link add d0 type dummy"]));
    let htb = "qdisc htb 1: dev d0 root refcnt 2 r2q 10 default 0x1 direct_packets_stat 0 \
               direct_qlen 1000";
    let class = |id: &str, rate: &str| {
        format!(
            "class htb {id} dev d0 root prio 0 rate {rate} ceil {rate} burst 1600b cburst 1600b"
        )
    };
    follow(
        &mut host,
        &events,
        "d0",
        &[
            ("tc qdisc add dev d0 root handle 1: htb default 1", &[(Added, htb)]),
            ("tc qdisc show dev d0", &[]),
            (
                "tc class add dev d0 parent 1: classid 1:1 htb rate 1mbit",
                &[(Added, &class("1:1", "1Mbit"))],
            ),
            (
                "tc class add dev d0 parent 1: classid 1:2 htb rate 1mbit",
                &[(Added, &class("1:2", "1Mbit"))],
            ),
            (
                "tc class change dev d0 parent 1: classid 1:1 htb rate 2mbit",
                &[(Changed, &class("1:1", "2Mbit"))],
            ),
            (
                "tc class replace dev d0 parent 1: classid 1:1 htb rate 4mbit",
                &[(Changed, &class("1:1", "4Mbit"))],
            ),
            (
                "tc qdisc add dev d0 parent 1:1 handle 11: pfifo limit 5",
                &[(Added, "qdisc pfifo 11: dev d0 parent 1:1 limit 5p")],
            ),
            (
                "tc qdisc change dev d0 parent 1:1 pfifo limit 6",
                &[(Changed, "qdisc pfifo 11: dev d0 parent 1:1 limit 6p")],
            ),
            (
                "tc qdisc replace dev d0 parent 1:1 handle 12: bfifo limit 7000",
                &[
                    (Deleted, "qdisc pfifo 11: dev d0 parent 1:1"),
                    (Added, "qdisc bfifo 12: dev d0 parent 1:1 limit 7000b"),
                ],
            ),
        ],
    );
    assert_ne!(exec(&mut host, "tc qdisc add dev d0 root nonsense").code, 0);
    assert_eq!(events.try_iter().count(), 0, "nothing has happened");
}

#[test]
fn filters_and_what_goes_are_told_as_they_were_typed() {
    use What::{Added, Changed, Deleted};
    let (mut host, events) = heard(host(&[
        "ip link add d0 type dummy",
        "tc qdisc add dev d0 root handle 1: htb default 1",
        "tc class add dev d0 parent 1: classid 1:1 htb rate 1mbit",
        "tc class add dev d0 parent 1: classid 1:2 htb rate 1mbit",
        "tc qdisc add dev d0 parent 1:1 handle 12: bfifo limit 7000",
    ]));
    let filter = "filter dev d0 parent 1: pref 1 protocol ip handle 1 fw classid";
    follow(
        &mut host,
        &events,
        "d0",
        &[
            (
                "tc filter add dev d0 parent 1: pref 1 protocol ip handle 1 fw classid 1:1",
                &[(Added, &format!("{filter} 1:1"))],
            ),
            (
                "tc filter change dev d0 parent 1: pref 1 protocol ip handle 1 fw classid 1:2",
                &[(Changed, &format!("{filter} 1:2"))],
            ),
            (
                "tc filter replace dev d0 parent 1: pref 1 protocol ip handle 1 fw classid 1:1",
                &[(Changed, &format!("{filter} 1:1"))],
            ),
            (
                "tc filter del dev d0 parent 1: pref 1",
                &[(Deleted, "filter dev d0 parent 1: pref 1")],
            ),
            ("tc class del dev d0 classid 1:2", &[(Deleted, "class htb 1:2 dev d0")]),
            ("tc qdisc del dev d0 parent 1:1", &[(Deleted, "qdisc bfifo 12: dev d0 parent 1:1")]),
            ("tc qdisc add dev d0 ingress", &[(Added, "qdisc dev d0 ingress")]),
            ("tc qdisc del dev d0 ingress", &[(Deleted, "qdisc dev d0 ingress")]),
            ("tc qdisc del dev d0 root", &[(Deleted, "qdisc htb 1: dev d0 root")]),
        ],
    );
}

/// A listener that has returned false is not called again; other listeners are.
#[test]
fn a_listener_that_goes_is_not_told() {
    let (mut host, events) = heard(Host::new());
    let (tell, few) = channel();
    host.listen(move |event| {
        tell.send(event.device.clone()).expect("it is there");
        event.device != "d1"
    });
    for name in ["d0", "d1", "d2"] {
        assert_eq!(exec(&mut host, &format!("ip link add {name} type dummy")).code, 0);
    }
    assert_eq!(few.try_iter().collect::<Vec<_>>(), ["d0", "d1"]);
    let all: Vec<_> = events.try_iter().map(|event| event.device).collect();
    assert_eq!(all, ["d0", "d1", "d2"]);
}

/// A listener gets only the events that happen after its registration.
#[test]
fn a_listener_hears_nothing_of_the_past() {
    let (mut host, events) = heard(host(&[
        "ip link add d0 type dummy",
        "tc qdisc add dev d0 root handle 1: prio",
        "ip link set d0 up",
    ]));
    let line = "tc qdisc change dev d0 root prio bands 3";
    let whats: Vec<_> = told(&mut host, &events, line).into_iter().map(|(what, ..)| what).collect();
    assert_eq!(whats, [What::Changed]);
}
