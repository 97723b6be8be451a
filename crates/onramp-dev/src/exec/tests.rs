use std::io::{Write as _, stderr};
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

use super::*;

/// A folder that is removed at the end.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("onramp-exec-{name}-{}", std::process::id()));
        fs::create_dir(&path).expect("a new folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).expect("the folder is there");
    }
}

#[test]
fn an_order_arrives_as_it_was_given() {
    let folder = Folder::new("order");
    let order = Order {
        lines: vec!["qdisc add dev wire root handle 1: tbf rate 1mbit".to_owned(), String::new()],
        seed: u64::MAX,
        drain: Duration::from_millis(1_500),
    };
    order.write(&folder.0).expect("room");
    assert_eq!(Order::read(&folder.0).expect("it is there"), order);
    let path = folder.0.join(ORDER);
    let text = fs::read_to_string(&path).expect("it is there");
    fs::write(&path, text.replacen("onramp-exec-", "onramp-exec-9", 1)).expect("room");
    let error = Order::read(&folder.0).expect_err("of another version");
    assert!(error.to_string().contains("one version"), "{error}");
}

#[test]
fn counts_are_read_as_they_were_counted() {
    let folder = Folder::new("tally");
    let first = Tally::create(&folder.0).expect("room");
    let second = Tally::create(&folder.0).expect("room");
    let local = "127.0.0.1:7".parse().ok();
    let remote = "[2001:db8::9]:65535".parse().ok();
    let flow = first.flow(local, remote);
    let other = first.flow(remote, None);
    first.add(flow, Count::Datagrams, 5);
    first.add(other, Count::Datagrams, 1);
    first.add(flow, Count::Made, 2);
    first.add(flow, Count::Sent, 3);
    first.add(flow, Count::SentBytes, 300);
    first.add(flow, Count::Marked, 2);
    first.dropped(flow, DropReason::Overlimit);
    first.dropped(other, DropReason::Cancelled);
    first.around();
    assert_eq!(first.held(), 3);
    second.add(second.flow(None, None), Count::Datagrams, 1);
    let all = Process::read_all(&folder.0).expect("they are there");
    assert_eq!(all.len(), 2);
    let read = &all[0];
    assert_eq!((read.pid, read.around, read.flows.len()), (std::process::id(), 1, 2));
    let comm = fs::read_to_string("/proc/self/comm").expect("Linux");
    assert_eq!(read.name, comm.trim_end());
    let counts = Counts {
        datagrams: 5,
        made: 2,
        sent: 3,
        sent_bytes: 300,
        marked: 2,
        drops: vec![(DropReason::Overlimit, 1)],
    };
    assert_eq!(counts.held(), 3);
    assert_eq!(read.flows[0], Flow { local, remote, counts: counts.clone() });
    assert_eq!((read.flows[1].local, read.flows[1].remote), (remote, None));
    assert_eq!((read.counts.datagrams, read.counts.dropped()), (6, 2));
    let mut sum = Counts::default();
    sum.add(&counts);
    sum.add(&read.counts);
    let drops = [(DropReason::Overlimit, 2), (DropReason::Cancelled, 1)];
    assert_eq!((sum.datagrams, sum.sent, sum.marked, &*sum.drops), (11, 6, 4, &drops[..]));
    assert_eq!(all[1].counts.datagrams, 1);
}

/// Counts a datagram of each of `count` new flows.
fn count_flows(tally: &Tally, count: usize) {
    for port in 1..=count {
        let port = u16::try_from(port).expect("a port");
        let flow = tally.flow(None, Some(SocketAddr::from(([127, 0, 0, 1], port))));
        tally.add(flow, Count::Datagrams, 1);
    }
}

/// Asserts that the first `apart` of all flows are counted apart, with a datagram each, and the
/// others together.
fn assert_apart(read: &Process, apart: usize, all: usize) {
    let (rest, flows) = read.flows.split_last().expect("there are flows");
    let ports: Vec<_> = flows.iter().filter_map(|flow| flow.remote).map(|to| to.port()).collect();
    assert!(ports.iter().copied().map(usize::from).eq(1..=apart), "{ports:?}");
    assert!(flows.iter().all(|flow| flow.counts.datagrams == 1));
    assert_eq!((rest.local, rest.remote), (None, None));
    assert_eq!(rest.counts.datagrams, (all - apart) as u64);
    assert_eq!(read.counts.datagrams, all as u64);
}

#[test]
fn flows_without_a_place_are_counted_together() {
    let folder = Folder::new("flows");
    let tally = Tally::create(&folder.0).expect("room");
    count_flows(&tally, FLOWS_MAX + 5);
    let read = Process::read_all(&folder.0).expect("it is there").remove(0);
    assert_apart(&read, FLOWS_MAX, FLOWS_MAX + 5);
}

/// Returns the length of the only file in the folder, and the room that it takes, in bytes.
fn room(folder: &Folder) -> (u64, u64) {
    let file = fs::read_dir(&folder.0).expect("a folder").next().expect("a file").expect("a file");
    let about = file.metadata().expect("it is there");
    (about.len(), about.blocks() * 512)
}

/// A tally of few flows takes a page or two, of at most 64 KiB. One of all flows has the room for
/// them: a write into the memory of a file without room would end the process.
#[test]
fn a_tally_takes_room_for_its_flows() {
    let folder = Folder::new("room");
    let tally = Tally::create(&folder.0).expect("there is room");
    count_flows(&tally, 3);
    let (len, few) = room(&folder);
    assert_eq!(len, (WORDS * 8) as u64);
    assert!((1..=1 << 17).contains(&few), "{few} bytes");
    count_flows(&tally, FLOWS_MAX - 3);
    assert!(room(&folder).1 >= len, "{} bytes", room(&folder).1);
}

/// The test runs itself again with a file system of its own that has 16 pages of memory. There, a
/// write into the memory of a file without room would end the test by SIGBUS.
#[test]
fn a_full_file_system_ends_no_process() {
    const NAME: &str = "exec::tests::a_full_file_system_ends_no_process";
    const INSIDE: &str = "ONRAMP_TEST_FULL";
    let skip = |why: &str| {
        assert!(std::env::var_os("CI").is_none(), "CI has all that tests need: {why}");
        writeln!(stderr(), "SKIP: {NAME}: {why}").expect("it is open");
    };
    if std::env::var_os(INSIDE).is_none() {
        let flags = ["-m", "-rm"].into_iter().find(|flags| {
            let tried = Command::new("unshare").args([flags, "true"]).output();
            tried.is_ok_and(|output| output.status.success())
        });
        let Some(flags) = flags else {
            return skip("`unshare -m` needs root, `unshare -rm` user namespaces");
        };
        let this = std::env::current_exe().expect("a running test has a file");
        let mut again = Command::new("unshare");
        again.arg(flags).arg(this).args(["--exact", NAME, "--nocapture"]).env(INSIDE, "1");
        let status = again.status().expect("it ran a moment ago");
        assert!(status.success(), "{status}");
        return;
    }
    let folder = Folder::new("full");
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "nr_blocks=16", "tmpfs"]).arg(&folder.0);
    if !mount.status().is_ok_and(|status| status.success()) {
        return skip("there can be no tmpfs");
    }
    let tally = Tally::create(&folder.0).expect("there is room");
    count_flows(&tally, FLOWS_MAX);
    tally.around();
    let read = Process::read_all(&folder.0).expect("it is there").remove(0);
    // 8 parts of 512 bytes are a page of 4 KiB; pages may be larger.
    let apart = read.flows.len() - 1;
    assert!((16 * 8 - FIRST..FLOWS_MAX).contains(&apart), "{apart} flows");
    assert_apart(&read, apart, FLOWS_MAX);
    assert_eq!(read.around, 1);
    let error = Tally::create(&folder.0).expect_err("it is full");
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert_eq!(Process::read_all(&folder.0).expect("they are there").len(), 1);
    // The tally stays in memory until the end.
    let unmounted = Command::new("umount").arg("--lazy").arg(&folder.0).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
}

#[test]
fn a_tally_that_is_being_made_is_no_tally_yet() {
    let folder = Folder::new("early");
    fs::write(folder.0.join("tally-1-0"), []).expect("room");
    let zeros = File::create(folder.0.join("tally-2-0")).expect("room");
    zeros.set_len((WORDS * 8) as u64).expect("a file");
    assert_eq!(Process::read_all(&folder.0).expect("files"), []);
}
