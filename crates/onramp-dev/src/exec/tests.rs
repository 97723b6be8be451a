use std::os::unix::fs::MetadataExt as _;

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

#[test]
fn flows_without_a_place_are_counted_together() {
    let folder = Folder::new("flows");
    let tally = Tally::create(&folder.0).expect("room");
    for port in 1..=FLOWS_MAX + 5 {
        let port = u16::try_from(port).expect("a port");
        let flow = tally.flow(None, Some(SocketAddr::from(([127, 0, 0, 1], port))));
        tally.add(flow, Count::Datagrams, 1);
    }
    let read = Process::read_all(&folder.0).expect("it is there").remove(0);
    assert_eq!(read.flows.len(), FLOWS_MAX);
    let last = &read.flows[FLOWS_MAX - 1];
    assert_eq!((last.remote, last.counts.datagrams), (None, 6));
    assert_eq!(read.flows[FLOWS_MAX - 2].remote.map(|remote| remote.port()), Some(4_095));
    assert_eq!(read.counts.datagrams, FLOWS_MAX as u64 + 5);
}

/// A write into the memory of a file without room would end the process.
#[test]
fn a_tally_has_its_room() {
    let folder = Folder::new("room");
    Tally::create(&folder.0).expect("there is room");
    let file = fs::read_dir(&folder.0).expect("a folder").next().expect("a file").expect("a file");
    let about = file.metadata().expect("it is there");
    assert_eq!(about.len(), (WORDS * 8) as u64);
    assert!(about.blocks() * 512 >= about.len(), "{} blocks", about.blocks());
}

#[test]
fn a_tally_that_is_being_made_is_no_tally_yet() {
    let folder = Folder::new("early");
    fs::write(folder.0.join("tally-1-0"), []).expect("room");
    let zeros = File::create(folder.0.join("tally-2-0")).expect("room");
    zeros.set_len((WORDS * 8) as u64).expect("a file");
    assert_eq!(Process::read_all(&folder.0).expect("files"), []);
}
