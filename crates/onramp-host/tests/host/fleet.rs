//! Rates that follow shares of a fleet's limits.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use onramp_core::{Handle, Rate};
use onramp_host::{Host, Part};

use crate::{all, out, refused};

const CLASS: Handle = Handle::new(1, 0x10);

fn host() -> Host {
    let mut host = Host::new();
    host.set_in_fleet(true);
    all(&mut host, &["ip link add d0 type dummy", "ip link set d0 up"]);
    host
}

fn mbit(mbit: u64) -> Rate {
    Rate::bits_per_second(mbit * 1_000_000)
}

fn names(host: &Host) -> Vec<(String, u32)> {
    host.shares().into_iter().map(|share| (share.limit, share.weight)).collect()
}

#[test]
fn a_class_follows_its_share() {
    let mut host = host();
    all(
        &mut host,
        &[
            "tc qdisc add dev d0 root handle 1: htb default 10",
            "tc class add dev d0 parent 1: classid 1:10 htb rate fleet a:3 ceil fleet a burst 9kb",
            "tc class add dev d0 parent 1: classid 1:20 htb rate 5mbit ceil fleet b",
        ],
    );
    assert!(
        out(&mut host, "tc class show dev d0").contains("htb 1:10 root prio 0 rate 8bit ceil 8bit")
    );
    assert_eq!(names(&host), [("a".to_owned(), 3), ("b".to_owned(), 1)]);
    host.set_share("d0", CLASS, "a", mbit(7), None).expect("a rate");
    let listed = out(&mut host, "tc class show dev d0");
    assert!(listed.contains("htb 1:10 root prio 0 rate 7Mbit ceil 7Mbit burst 9Kb"), "{listed}");
    // Another option changes, and the rate stays what it is.
    host.set_share("d0", Handle::new(1, 0x20), "b", mbit(6), None).expect("a rate");
    let listed = out(&mut host, "tc class show dev d0");
    assert!(listed.contains("htb 1:20 root prio 0 rate 5Mbit ceil 6Mbit"), "{listed}");
    // A share of a limit that nobody follows changes nothing.
    host.set_share("d0", CLASS, "c", mbit(9), None).expect("nothing to do");
    host.set_share("d9", CLASS, "a", mbit(9), None).expect("nothing to do");
    assert_eq!(out(&mut host, "tc class show dev d0"), listed);
}

#[test]
fn a_number_or_a_deletion_ends_it() {
    let mut host = host();
    let add = "tc qdisc add dev d0 root handle 1: tbf rate fleet a burst 20kb latency 50ms";
    all(&mut host, &[add]);
    host.set_share("d0", Handle::new(1, 0), "a", mbit(8), None).expect("a rate");
    let listed = out(&mut host, "tc qdisc show dev d0");
    assert!(
        listed.starts_with("qdisc tbf 1: root refcnt 2 rate 8Mbit burst 20Kb lat 50ms"),
        "{listed}"
    );
    all(&mut host, &["tc qdisc change dev d0 root handle 1: tbf rate 4mbit burst 20kb limit 99kb"]);
    assert_eq!(names(&host), []);
    host.set_share("d0", Handle::new(1, 0), "a", mbit(8), None).expect("nothing to do");
    assert!(out(&mut host, "tc qdisc show dev d0").contains("rate 4Mbit"));
    all(&mut host, &["tc qdisc del dev d0 root", add]);
    assert_eq!(names(&host), [("a".to_owned(), 1)]);
    all(&mut host, &["tc qdisc del dev d0 root"]);
    assert_eq!(names(&host), []);
}

#[test]
fn what_is_saved_has_the_names_and_a_configuration_keeps_the_shares() {
    let mut host = host();
    let text = "ip link add dev d1 type dummy\n\
                tc qdisc add dev d1 root handle 1: htb\n\
                tc class add dev d1 parent 1: classid 1:10 htb rate fleet a ceil fleet a:2\n";
    host.configure(text, Path::new("/")).expect("it can be made");
    host.set_share("d1", CLASS, "a", mbit(7), None).expect("a rate");
    let saved = host.save(Some("d1")).expect("it can be saved").join("\n");
    // One limit has one weight in a line.
    assert!(saved.contains("htb rate fleet a:2 ceil fleet a:2"), "{saved}");
    assert_eq!(host.configure(text, Path::new("/")), Ok(vec![]), "nothing has changed");
    assert!(out(&mut host, "tc class show dev d1").contains("rate 7Mbit"));
    let other = text.replace("rate fleet a ", "rate 5mbit ");
    let steps = host.configure(&other, Path::new("/")).expect("it can be made");
    assert_eq!(steps.len(), 1, "{steps:?}");
    assert!(out(&mut host, "tc class show dev d1").contains("rate 5Mbit ceil 7Mbit"));
}

/// A limit's burst stands in place of a class's own until the limit has none any more, or until a
/// command gives the class another one.
#[test]
fn a_burst_is_set_and_set_back() {
    let mut host = host();
    all(
        &mut host,
        &[
            "tc qdisc add dev d0 root handle 1: htb default 10",
            "tc class add dev d0 parent 1: classid 1:10 htb rate fleet a burst 9kb",
            "tc class add dev d0 parent 1: classid 1:20 htb rate 5mbit burst 9kb ceil fleet a",
        ],
    );
    let other = Handle::new(1, 0x20);
    let listed = |host: &mut Host, class: &str| {
        let all = out(host, "tc class show dev d0");
        let line = all.lines().find(|line| line.contains(class)).expect("it is there");
        line.split_once("burst ").expect("an htb").1.trim_end().to_owned()
    };
    assert!(host.shares().iter().all(|share| share.has_burst && share.burst.is_none()));
    for place in [CLASS, other] {
        host.set_share("d0", place, "a", mbit(8), Some(20_000)).expect("a burst");
    }
    assert_eq!(listed(&mut host, "1:10"), "20000b cburst 20000b");
    // What the class sends at its `ceil` is limited, and so are both rates together.
    assert_eq!(listed(&mut host, "1:20"), "9Kb cburst 20000b");
    assert!(host.shares().iter().all(|share| share.burst == Some(20_000)));
    // An htb sends packets of any length with any burst.
    host.set_share("d0", CLASS, "a", mbit(8), Some(1_000)).expect("a burst");
    assert_eq!(listed(&mut host, "1:10"), "1000b cburst 1000b");
    // What is saved are the class's own options.
    let saved = host.save(None).expect("it can be saved").join("\n");
    assert!(saved.contains("classid 1:10 htb rate fleet a burst 9kb\n"), "{saved}");
    assert!(saved.contains("classid 1:20 htb rate 5mbit ceil fleet a burst 9kb\n"), "{saved}");
    // A configuration that says the same changes nothing.
    assert_eq!(host.configure(&saved, Path::new("/")), Ok(vec![]));
    assert_eq!(listed(&mut host, "1:10"), "1000b cburst 1000b");
    host.set_share("d0", CLASS, "a", mbit(8), None).expect("its own");
    assert_eq!(listed(&mut host, "1:10"), "9Kb cburst 1600b");
    // A command gives the class a burst of its own, and the next share sets the limit's again.
    all(&mut host, &["tc class change dev d0 parent 1: classid 1:20 htb rate 5mbit ceil fleet a"]);
    let is_set = |share: &onramp_host::Share| share.burst.is_some();
    assert!(!host.shares().iter().any(is_set), "both have to be set");
    host.set_share("d0", other, "a", mbit(8), Some(3_000)).expect("a burst");
    assert_eq!(listed(&mut host, "1:20"), "1600b cburst 3000b");
    host.set_share("d0", other, "a", mbit(8), None).expect("its own");
    assert_eq!(listed(&mut host, "1:20"), "1600b cburst 1600b");
}

/// A `tbf` drops packets that are longer than its burst, so its burst is never shorter than the
/// device's longest packet; a `cake` has no burst.
#[test]
fn a_burst_is_never_shorter_than_what_would_be_dropped() {
    let mut host = host();
    let root = Handle::new(1, 0);
    let add = "tc qdisc add dev d0 root handle 1: tbf rate fleet a burst 9kb limit 90kb";
    all(&mut host, &[add]);
    let set = |host: &mut Host, burst| {
        host.set_share("d0", root, "a", mbit(8), burst).expect("a burst");
        let setup = host.link("d0").expect("it is there").setup();
        setup.burst_options(root, &["rate"])[0].given.clone()
    };
    assert_eq!(set(&mut host, Some(100)), "1514b");
    all(&mut host, &["ip link set d0 mtu 9000"]);
    assert_eq!(host.shares()[0].burst, None, "it has to be set again");
    assert_eq!(set(&mut host, Some(100)), "9014b");
    assert_eq!(set(&mut host, Some(70_000)), "70000b");
    assert_eq!(set(&mut host, None), "9kb");
    let cake = "tc qdisc add dev d0 root handle 1: cake bandwidth fleet a";
    all(&mut host, &["tc qdisc del dev d0 root", cake]);
    assert!(!host.shares()[0].has_burst);
    host.set_share("d0", root, "a", mbit(8), Some(5_000)).expect("nothing to do for the burst");
    assert_eq!(host.shares()[0].burst, Some(5_000));
    assert!(out(&mut host, "tc qdisc show dev d0").contains("bandwidth 8Mbit"));
}

#[test]
fn what_cannot_be_is_refused() {
    let mut host = host();
    for (words, why) in [
        ("rate fleet", "a limit's name is missing"),
        ("rate fleet a:0", "the weight is no number from 1 to"),
        ("rate fleet a:x", "the weight is no number from 1 to"),
        ("rate fleet :3", "1 to 64 letters"),
        ("rate fleet a/b", "1 to 64 letters"),
        ("rate fleet a:1 peakrate fleet a:2", "two weights"),
        ("rate fleet a burst 9kb limit 9kb peakrate 1mbit mtu 1600", "keeps its rate"),
    ] {
        let (code, text) = refused(&mut host, &format!("tc qdisc add dev d0 root tbf {words}"));
        assert_eq!(code, 255);
        assert!(text.contains(why), "{text}");
    }
    // Only a rate can follow a share.
    for line in ["pfifo limit fleet a", "netem rate fleet a", "fq limit 5 quantum fleet a"] {
        let (code, text) = refused(&mut host, &format!("tc qdisc add dev d0 root {line}"));
        assert_eq!(code, 255, "{text}");
        assert!(text.contains("fleet a`: a limit can only stand in place of"), "{text}");
    }
    // What would send more than its share is refused, too.
    let (_, text) = refused(&mut host, "tc qdisc add dev d0 root fq maxrate fleet a");
    assert!(text.contains("the rate of each flow"), "{text}");
    all(&mut host, &["tc qdisc add dev d0 root handle 1: htb"]);
    let class = "tc class add dev d0 parent 1: classid 1:10 htb rate fleet a ceil 30mbit";
    let (_, text) = refused(&mut host, class);
    assert!(text.contains("borrow up to its `ceil`"), "{text}");
    let class = "tc class add dev d0 parent 1: classid 1:10 htb rate fleet a ceil fleet b";
    let (_, text) = refused(&mut host, class);
    assert!(text.contains("follows one limit"), "{text}");
    assert!(host.shares().is_empty());
    // So is a later command that would let a follower send more.
    all(&mut host, &["tc qdisc replace dev d0 root handle 2: cake bandwidth fleet a"]);
    let cake = "tc qdisc change dev d0 root handle 2: cake autorate-ingress";
    let twice = "tc qdisc replace dev d0 root cake bandwidth fleet a bandwidth 1gbit";
    let (_, text) = refused(&mut host, twice);
    assert!(text.contains("bandwidth fleet a`: a limit can only stand"), "{text}");
    for line in [cake, "tc qdisc replace dev d0 root cake bandwidth fleet a autorate-ingress"] {
        let (_, text) = refused(&mut host, line);
        assert!(text.contains("`autorate-ingress` finds a rate of its own"), "{text}");
    }
    all(&mut host, &["tc qdisc del dev d0 root"]);
    host.set_in_fleet(false);
    let (_, text) =
        refused(&mut host, "tc qdisc add dev d0 root tbf rate fleet a burst 9kb limit 9kb");
    assert!(text.contains("this host belongs to no fleet"), "{text}");
}

/// A packet that left at the rate of a share that nobody had set yet holds no later packet back.
#[test]
fn a_debt_is_in_bytes() {
    for kind in [
        "tbf rate fleet a burst 1500 limit 1mb",
        "htb default 10",
        // With its usual round-trip time, cake drops what a slow machine lets wait for 0.1 s.
        "cake bandwidth fleet a rtt 1000s",
    ] {
        let mut host = host();
        all(&mut host, &[&format!("tc qdisc add dev d0 root handle 1: {kind}")]);
        let mut place = Handle::new(1, 0);
        if kind.starts_with("htb") {
            let class = "rate fleet a burst 1500 ceil fleet a cburst 1500";
            all(&mut host, &[&format!("tc class add dev d0 parent 1: classid 1:10 htb {class}")]);
            place = CLASS;
        }
        let link = host.link("d0").expect("it was added");
        let mut sender = link.sender();
        let flow = sender.flow(None);
        for _ in 0..20 {
            sender.send(&flow, &[7; 1_400]).expect("the device is there");
        }
        // One byte per second: the first packet is the burst, and the rest would wait for hours.
        assert!(link.stats().sent <= 2, "{kind}");
        host.set_share("d0", place, "a", mbit(100), None).expect("a rate");
        assert!(link.flush(Duration::from_secs(60)), "{kind}");
        assert_eq!(link.stats().sent, 20, "{kind}");
    }
}

/// A device may have the name of an option.
#[test]
fn a_device_named_like_an_option_goes_on_following() {
    let mut host = host();
    all(
        &mut host,
        &[
            "ip link add bandwidth type dummy",
            "tc qdisc add dev bandwidth root handle 1: cake bandwidth fleet a",
            "tc qdisc change dev bandwidth root handle 1: cake diffserv4",
        ],
    );
    assert_eq!(names(&host), [("a".to_owned(), 1)]);
}

/// A share can be set while a command uses the host, since nothing but the device is needed for it.
#[test]
fn a_share_is_set_without_the_host() {
    let mut host = host();
    let (root, tbf) = (Handle::new(1, 0), "tbf rate fleet a burst 20kb latency 50ms");
    assert!(host.following().is_empty());
    all(&mut host, &[&format!("tc qdisc add dev d0 root handle 1: {tbf}")]);
    let [following] = &host.following()[..] else { panic!("one device has a rate") };
    following.set_share(root, "a", mbit(8), None).expect("a rate");
    assert!(out(&mut host, "tc qdisc show dev d0").contains("rate 8Mbit"));
    assert_eq!((following.shares(), host.shares()[0].share), (host.shares(), mbit(8)));
    // A command that gives a number ends it, here too.
    all(&mut host, &["tc qdisc change dev d0 root handle 1: tbf rate 4mbit burst 20kb limit 99kb"]);
    following.set_share(root, "a", mbit(8), None).expect("nothing to do");
    assert!(out(&mut host, "tc qdisc show dev d0").contains("rate 4Mbit"));
    assert!(following.shares().is_empty() && host.following().is_empty());
    all(&mut host, &[&format!("tc qdisc replace dev d0 root handle 1: {tbf}"), "ip link del d0"]);
    following.set_share(root, "a", mbit(8), None).expect("nothing to do");
}

/// A share can be lent for a time. What the device has afterwards, it takes by itself; until then,
/// the end can be moved to a later time. Each command about the qdisc ends that.
#[test]
fn a_share_is_lent_for_a_time() {
    let mut host = host();
    let (root, tbf) = (Handle::new(1, 0), "tbf rate fleet a burst 20kb latency 50ms");
    all(&mut host, &[&format!("tc qdisc add dev d0 root handle 1: {tbf}")]);
    let [following] = &host.following()[..] else { panic!("one device has a rate") };
    let part = |rate, burst| Part { rate: mbit(rate), burst };
    let (much, little) = (part(8, Some(9_000)), part(1, None));
    let (past, later) = (following.now(), following.now() + Duration::from_secs(3_600));
    let lend = |end| following.lend_share(root, "a", much, end, little).expect("a share");
    let renew = |part, after| following.renew_share(root, "a", part, later, after);
    assert!(!renew(much, little), "it has no share yet");
    lend(later);
    assert!(renew(much, little) && !renew(little, little) && !renew(much, much));
    lend(past);
    let listed = out(&mut host, "tc -s qdisc show dev d0");
    assert!(listed.contains("rate 8Mbit burst 9000b"), "{listed}");
    assert!(renew(much, little), "the end moves to no earlier time");
    following.set_share(root, "a", mbit(8), Some(9_000)).expect("a share");
    assert!(!renew(much, little), "it has the share for good");
    // The port finds the end when it makes the change.
    lend(past);
    out(&mut host, "tc -s qdisc show dev d0");
    assert!(!renew(much, little), "its time is over");
    lend(later);
    assert!(renew(much, little));
    all(
        &mut host,
        &["tc qdisc change dev d0 root handle 1: tbf rate fleet a burst 30kb limit 99kb"],
    );
    assert!(renew(much, little), "the command changes neither the share nor its end");
    let listed = out(&mut host, "tc qdisc show dev d0");
    assert!(listed.contains("rate 8Mbit burst 9000b"), "{listed}");
    // A part that no option takes changes nothing.
    let wrong = Part { rate: Rate::bytes_per_second(u64::MAX), burst: None };
    for (part, after) in [(wrong, little), (much, wrong)] {
        following.lend_share(root, "a", part, later, after).expect_err("out of range");
    }
    assert_eq!(out(&mut host, "tc qdisc show dev d0"), listed);
    all(&mut host, &["ip link del d0"]);
    lend(later);
}

/// Checks that `d0` lets no more than its burst of two packets pass at once.
fn assert_slow(host: &Host) {
    let link = host.link("d0").expect("it is there");
    let mut sender = link.sender();
    let flow = sender.flow(None);
    for _ in 0..50 {
        sender.try_send(&flow, &[0; 1_000]).expect("it has room");
    }
    assert!(!sender.flush(Duration::from_millis(50)), "at 800 bit/s, a packet takes 10 s");
    let stats = link.stats();
    assert!(stats.sent <= 2 && stats.held >= 48, "{stats:?}");
}

/// Packets that come after the end leave at the rate of what was to come then.
#[test]
fn a_share_that_was_lent_ends_in_the_device() {
    let mut host = host();
    let (root, tbf) = (Handle::new(1, 0), "tbf rate fleet a burst 2000 limit 9mb");
    all(&mut host, &[&format!("tc qdisc add dev d0 root handle 1: {tbf}")]);
    let [following] = &host.following()[..] else { panic!("one device has a rate") };
    let part = |bits| Part { rate: Rate::bits_per_second(bits), burst: None };
    let (much, little) = (part(8_000_000_000), part(800));
    following.lend_share(root, "a", much, following.now(), little).expect("a share");
    assert_slow(&host);
}

/// A command that repeats the name of the limit, to change something else, leaves the share as it
/// is. One that names another limit, or gives another weight, is a new member without a share.
#[test]
fn a_command_keeps_the_share() {
    let mut host = host();
    let rates = |host: &mut Host| {
        let listed = out(host, "tc class show dev d0");
        let words: Vec<&str> = listed.split_whitespace().collect();
        let after =
            |word| words.iter().position(|it| *it == word).map(|at| words[at + 1].to_owned());
        ["rate", "ceil", "prio"].map(|word| after(word).unwrap_or_default())
    };
    let class = |verb: &str, options: &str| {
        format!("tc class {verb} dev d0 parent 1: classid 1:10 htb {options}")
    };
    all(
        &mut host,
        &[
            "tc qdisc add dev d0 root handle 1: htb default 10",
            &class("add", "rate fleet a ceil fleet a"),
        ],
    );
    host.set_share("d0", CLASS, "a", mbit(8), None).expect("a rate");
    for verb in ["change", "replace"] {
        let prio = if verb == "change" { "3" } else { "5" };
        all(&mut host, &[&class(verb, &format!("rate fleet a ceil fleet a prio {prio}"))]);
        assert_eq!(rates(&mut host), ["8Mbit", "8Mbit", prio]);
    }
    all(&mut host, &[&class("change", "rate 4mbit ceil fleet a")]);
    assert_eq!(rates(&mut host)[..2], ["4Mbit", "8Mbit"]);
    all(&mut host, &[&class("change", "rate fleet a:2 ceil fleet a:2")]);
    assert_eq!(rates(&mut host)[..2], ["8bit", "8bit"], "another weight");
    host.set_share("d0", CLASS, "a", mbit(8), None).expect("a rate");
    all(&mut host, &[&class("change", "rate fleet b ceil fleet b")]);
    assert_eq!(rates(&mut host)[..2], ["8bit", "8bit"], "another limit");
}

/// A command that changes or replaces what has a share for a time leaves it the share until the
/// same end.
#[test]
fn a_command_keeps_the_end() {
    let mut host = host();
    let root = Handle::new(1, 0);
    let tbf = |verb: &str, limit: &str| {
        format!("tc qdisc {verb} dev d0 root handle 1: tbf rate fleet a burst 2000 limit {limit}")
    };
    all(&mut host, &[&tbf("add", "9mb")]);
    let [following] = &host.following()[..] else { panic!("one device has a rate") };
    let part = |bits| Part { rate: Rate::bits_per_second(bits), burst: None };
    let (much, little) = (part(8_000_000_000), part(800));
    let lent = following.now() + Duration::from_secs(3_600);
    for verb in ["change", "replace"] {
        following.lend_share(root, "a", much, lent, little).expect("a share");
        all(&mut host, &[&tbf(verb, "8mb")]);
        assert!(following.renew_share(root, "a", much, lent, little), "{verb}");
        assert!(out(&mut host, "tc qdisc show dev d0").contains("rate 8Gbit"), "{verb}");
    }
    // The end comes while the command is carried out.
    following.set_share(root, "a", much.rate, None).expect("a share");
    following.lend_share(root, "a", much, following.now(), little).expect("a share");
    all(&mut host, &[&tbf("change", "9mb")]);
    assert_slow(&host);
}

/// So does a rate that follows the limit only since the command, beside one that has followed it
/// before.
#[test]
fn a_second_rate_gets_the_end_of_the_first() {
    let mut host = host();
    let class = |verb: &str, rate: &str| {
        format!("tc class {verb} dev d0 parent 1: classid 1:10 htb rate {rate} ceil fleet a")
    };
    all(&mut host, &["tc qdisc add dev d0 root handle 1: htb default 10", &class("add", "5mbit")]);
    let [following] = &host.following()[..] else { panic!("one device has a rate") };
    let part = |rate| Part { rate: mbit(rate), burst: None };
    let later = following.now() + Duration::from_secs(3_600);
    following.lend_share(CLASS, "a", part(8), later, part(5)).expect("a share");
    all(&mut host, &[&class("change", "fleet a")]);
    assert!(following.renew_share(CLASS, "a", part(8), later, part(5)));
    let listed = out(&mut host, "tc class show dev d0");
    assert!(listed.contains("rate 8Mbit ceil 8Mbit"), "{listed}");
}

/// However often shares change while a host is saved, the lines have the names of limits.
#[test]
fn what_is_saved_has_the_names_while_shares_change() {
    let mut host = host();
    all(
        &mut host,
        &["tc qdisc add dev d0 root handle 1: tbf rate fleet a burst 20kb latency 50ms"],
    );
    let following = host.following().remove(0);
    let done = AtomicBool::new(false);
    let saved: Vec<_> = thread::scope(|scope| {
        scope.spawn(|| {
            for round in (1..).take_while(|_| !done.load(Ordering::Relaxed)) {
                let share = mbit(1 + round % 100);
                following.set_share(Handle::new(1, 0), "a", share, None).expect("a rate");
            }
        });
        let saved = (0..300).map(|_| host.save(None)).collect();
        done.store(true, Ordering::Relaxed);
        saved
    });
    for saved in saved {
        let saved = saved.expect("it can be saved").join("\n");
        assert!(saved.contains(" rate fleet a "), "{saved}");
    }
}
