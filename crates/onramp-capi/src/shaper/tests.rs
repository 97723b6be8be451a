use super::*;
use crate::abi::{ONRAMP_DROP_FILTER, ONRAMP_DROP_OVERLIMIT, ONRAMP_DROP_PURGED};

const EMPTY: Pkt = Pkt {
    cookie: 0,
    flow: 0,
    txtime_ns: 0,
    pacing_rate: 0,
    enqueued_ns: 0,
    head: ptr::null(),
    len: 0,
    priority: 0,
    mark: 0,
    gso_size: 0,
    head_len: 0,
    layer: 0,
    ecn: 0,
    drop_reason: 0,
    made: 0,
    reserved: 0,
};

fn shaper(lines: &str) -> Shaper {
    Shaper::new(lines, 0, 1).expect("a tree")
}

fn enqueue(shaper: &mut Shaper, now: u64, pkts: &[Pkt]) -> Result<usize> {
    shaper.enqueue(now, pkts, |_| &[])
}

fn dequeue(shaper: &mut Shaper, now: u64) -> (Vec<Pkt>, u64) {
    let mut out = Vec::new();
    let next = shaper.dequeue(now, 100, |pkt| out.push(pkt)).expect("the time goes on");
    (out, next)
}

fn drops(shaper: &mut Shaper) -> Vec<(u64, u8)> {
    let mut out = Vec::new();
    shaper.drops(usize::MAX, |pkt| out.push((pkt.cookie, pkt.drop_reason)));
    out
}

fn packets(count: u64) -> Vec<Pkt> {
    (0..count).map(|cookie| Pkt { cookie, len: 1_000, ..EMPTY }).collect()
}

#[test]
fn packets_leave_with_what_they_brought() {
    let mut tree = shaper("qdisc add root pfifo");
    let pkt = Pkt {
        cookie: 1,
        flow: 2,
        txtime_ns: 3,
        pacing_rate: 4,
        len: 5,
        priority: 6,
        mark: 7,
        gso_size: 8,
        ecn: 2,
        layer: ONRAMP_LAYER_IP,
        drop_reason: 9,
        made: 1,
        ..EMPTY
    };
    assert_eq!(enqueue(&mut tree, 70, &[pkt]).expect("it is right"), 0);
    let (out, next) = dequeue(&mut tree, 71);
    let right = Pkt { enqueued_ns: 70, drop_reason: 0, made: 0, ..pkt };
    assert_eq!(format!("{out:?}"), format!("{:?}", [right]));
    assert_eq!((next, tree.backlog()), (u64::MAX, (0, 0)));
}

#[test]
fn packets_are_used_again_and_netems_duplicates_are_told_apart() {
    let mut tree = shaper("qdisc add root netem duplicate 100%");
    enqueue(&mut tree, 0, &packets(3)).expect("they are right");
    let (out, _) = dequeue(&mut tree, 0);
    let mut made: Vec<_> = out.iter().map(|pkt| (pkt.cookie, pkt.made)).collect();
    made.sort_unstable();
    assert_eq!(made, [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]);
    assert_eq!(tree.free.len(), 3, "duplicates are not kept");
    let mut tree = shaper("qdisc add root pfifo limit 5");
    for now in 0..10 {
        assert_eq!(enqueue(&mut tree, now, &packets(7)).expect("they are right"), 2);
        assert_eq!(dequeue(&mut tree, now).0.len(), 5);
        assert_eq!(drops(&mut tree), [(5, ONRAMP_DROP_OVERLIMIT), (6, ONRAMP_DROP_OVERLIMIT)]);
        assert_eq!(tree.free.len(), 7, "the same packets again");
    }
}

#[test]
fn drops_are_kept_until_they_are_taken() {
    let mut tree = shaper("qdisc add root pfifo limit 1");
    enqueue(&mut tree, 0, &packets(4)).expect("they are right");
    let mut first = Vec::new();
    assert_eq!(tree.drops(2, |pkt| first.push(pkt.cookie)), 2);
    tree.reset(0).expect("the time goes on");
    assert_eq!(first, [1, 2]);
    assert_eq!(drops(&mut tree), [(3, ONRAMP_DROP_OVERLIMIT), (0, ONRAMP_DROP_PURGED)]);
}

#[test]
fn a_wrong_packet_keeps_all_out() {
    let mut tree = shaper("qdisc add root pfifo");
    let head = [0_u8; 4];
    let given = Pkt { head: head.as_ptr().cast(), head_len: 4, ..EMPTY };
    for (wrong, text) in [
        (Pkt { ecn: 4, ..EMPTY }, "packet 2: ecn is 4; expected 0 to 3"),
        (Pkt { reserved: 1, ..EMPTY }, "packet 2: reserved is 1; expected 0"),
        (Pkt { layer: 3, ..EMPTY }, "packet 2: layer is 3; expected one of ONRAMP_LAYER_NONE"),
        (Pkt { head_len: 1, layer: 1, ..EMPTY }, "packet 2: head is NULL; expected the headers"),
        (given, "packet 2: layer is ONRAMP_LAYER_NONE; expected that of the headers"),
    ] {
        let error = enqueue(&mut tree, 0, &[EMPTY, EMPTY, wrong]).expect_err(text);
        assert!(error.text.starts_with(text), "{}", error.text);
        assert_eq!((error.errno, tree.backlog()), (libc::EINVAL, (0, 0)));
    }
}

#[test]
fn filters_see_the_headers() {
    let mut tree = shaper(
        "qdisc add root handle 1: prio # a comment\n\n# another\n\
         filter add parent 1: protocol ip u32 match ip dport 53 0xffff action drop",
    );
    let mut ip = [0_u8; 200];
    (ip[0], ip[3], ip[9], ip[23]) = (0x45, 200, 17, 53);
    let pkt = Pkt { len: 200, layer: ONRAMP_LAYER_IP, ..EMPTY };
    assert_eq!(tree.enqueue(0, &[pkt, pkt], |_| &ip).expect("they are right"), 2);
    assert_eq!(drops(&mut tree), [(0, ONRAMP_DROP_FILTER); 2]);
    ip[23] = 54;
    assert_eq!(tree.enqueue(0, &[pkt, pkt], |_| &ip).expect("they are right"), 0);
    assert_eq!(dequeue(&mut tree, 0).0.len(), 2);
}

#[test]
fn errors_name_the_line_and_the_word() {
    let error = |lines| Shaper::new(lines, 0, 0).expect_err(lines).text;
    let text = error("qdisc add root handle 1: htb\nclass add parent 1: classid 1:1 htb rat 1mbit");
    assert!(text.starts_with("line 2: ") && text.contains("rat"), "{text}");
    assert!(error("").contains("root"), "{}", error(""));
    let mut tree = shaper("qdisc add root fq");
    let text = tree.tc(0, "qdisc change root fq limt 5").expect_err("a wrong word").text;
    assert!(text.contains("limt"), "{text}");
    let shown = tree.tc(0, "qdisc show # all").expect("a listing");
    assert!(shown.starts_with("qdisc fq 8001: root"), "{shown}");
}

#[test]
fn time_never_goes_back() {
    let mut tree = shaper("qdisc add root pfifo");
    enqueue(&mut tree, 9, &[EMPTY]).expect("it is right");
    for error in [
        enqueue(&mut tree, 8, &[]).map(|_| ()),
        tree.dequeue(8, 1, |_| ()).map(|_| ()),
        tree.tc(8, "qdisc show").map(|_| ()),
        tree.reset(8),
    ] {
        let error = error.expect_err("the time goes back");
        assert!(error.text.contains("the time 8 is before 9"), "{}", error.text);
    }
    assert_eq!(dequeue(&mut tree, 9).0.len(), 1);
}

#[test]
fn a_replay_says_when_each_packet_leaves() {
    const MS: u64 = 1_000_000;
    let mut tree = shaper("qdisc add root tbf rate 8mbit burst 1000 limit 2000");
    let all = Arrivals { in_ns: &[0, 0, 0, 0, 9 * MS], len: &[1_000; 5], flow: &[] };
    let (mut out_ns, mut why) = ([7; 5], [7; 5]);
    let mut fates = Fates { out_ns: &mut out_ns, why: &mut why };
    tree.replay(&all, &mut fates).expect("the tree is empty");
    assert_eq!(out_ns, [0, MS, 2 * MS, u64::MAX, 9 * MS]);
    assert_eq!(why, [0, 0, 0, ONRAMP_DROP_OVERLIMIT, 0]);
    // Without room for reasons and with flows; the packets that never leave are dropped.
    let mut tree = shaper("qdisc add root plug");
    let all = Arrivals { in_ns: &[5, 6], len: &[1_000; 2], flow: &[1, 2] };
    let (mut out_ns, mut why) = ([0; 2], [0; 2]);
    let mut fates = Fates { out_ns: &mut out_ns, why: &mut why };
    tree.replay(&all, &mut fates).expect("the tree is empty");
    assert_eq!((out_ns, why), ([u64::MAX; 2], [ONRAMP_DROP_PURGED; 2]));
    assert_eq!(tree.free.len(), 2);
    // Of each packet and its duplicate, one leaves and one finds no room.
    let mut tree =
        shaper("qdisc add root handle 1: netem duplicate 100%\nqdisc add parent 1: pfifo limit 1");
    let all = Arrivals { in_ns: &[0, 10, 20], len: &[1_000; 3], flow: &[] };
    let (mut out_ns, mut why) = ([0; 3], [7; 3]);
    let mut fates = Fates { out_ns: &mut out_ns, why: &mut why };
    tree.replay(&all, &mut fates).expect("the tree is empty");
    assert_eq!((out_ns, why), ([0, 10, 20], [0; 3]));
}

#[test]
fn a_replay_refuses_what_it_cannot_tell_apart() {
    let mut tree = shaper("qdisc add root pfifo limit 1");
    enqueue(&mut tree, 0, &packets(2)).expect("they are right");
    let all = Arrivals { in_ns: &[5, 4], len: &[1; 2], flow: &[] };
    let (mut out_ns, mut why) = ([0; 2], [0; 2]);
    let mut fates = Fates { out_ns: &mut out_ns, why: &mut why };
    let errno = |tree: &mut Shaper, fates: &mut Fates<'_>| {
        tree.replay(&all, fates).expect_err("it cannot be").errno
    };
    assert_eq!(errno(&mut tree, &mut fates), libc::EBUSY, "a packet is held");
    dequeue(&mut tree, 0);
    assert_eq!(errno(&mut tree, &mut fates), libc::EBUSY, "a dropped packet waits");
    drops(&mut tree);
    assert_eq!(errno(&mut tree, &mut fates), libc::EINVAL, "the time goes back");
}

#[test]
fn reasons_and_layers_have_their_numbers() {
    for reason in DropReason::ALL {
        assert_eq!(super::reason(reason_number(Some(*reason))), Some(*reason));
    }
    assert_eq!((reason_number(None), reason(0), reason(23), reason(255)), (0, None, None, None));
    assert!([0, 1, 2].iter().all(|layer| super::layer(*layer).map(number) == Some(*layer)));
}
