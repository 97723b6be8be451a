//! A bridge of two packet sockets between two hosts, each in a network namespace of its own.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::gettid;
use onramp_core::{Clock, Device};
use onramp_dev::{MonotonicClock, PacketOptions, PacketReceiver, PacketSocket, Receive};
use onramp_queue::PacketList;

use super::{OPTIONS, open};
use crate::namespace::in_namespace;
use crate::tap::{echo, heap, ip, start, wait};

type Job = Box<dyn FnOnce() + Send>;

/// A thread in a network namespace of its own, which carries out jobs.
struct Host {
    jobs: Sender<Job>,
}

impl Host {
    /// Makes a host with the address on its interface `eth`, which is joined with `port` of the
    /// calling thread's namespace.
    fn new(port: &str, address: &'static str) -> Self {
        let (jobs, take) = mpsc::channel::<Job>();
        let (tell, told) = mpsc::channel();
        start(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("root in its namespace may");
            tell.send(gettid()).expect("it is awaited");
            take.into_iter().for_each(|job| job());
        });
        let id = told.recv().expect("the host begins");
        ip(&format!("link add {port} type veth peer name eth netns {id}"));
        ip(&format!("link set {port} up"));
        let host = Self { jobs };
        host.run(move || {
            ip("link set lo up");
            ip(&format!("addr add {address} dev eth"));
            ip("link set eth up");
        });
        host
    }

    /// Runs a job, and waits for its end.
    fn run(&self, job: impl FnOnce() + Send + 'static) {
        let (tell, told) = mpsc::channel();
        let job: Job = Box::new(move || {
            job();
            tell.send(()).expect("it is awaited");
        });
        self.jobs.send(job).expect("no job has panicked");
        told.recv().expect("the job does not panic");
    }
}

/// One direction of the bridge.
struct Way {
    from: PacketReceiver,
    to: PacketSocket,
    ready: PacketList,
    /// The longest frame.
    longest: usize,
}

impl Way {
    fn run(&mut self) -> bool {
        let mut list = PacketList::new();
        let count = self.from.receive(16, &mut heap, &mut list).expect("the interface is up");
        for packet in list {
            self.longest = self.longest.max(packet.payload().len());
            self.ready.push_back(packet);
        }
        let mut done = PacketList::new();
        self.to.transmit(&mut self.ready, &mut done, MonotonicClock.now());
        assert!(done.metas().all(|meta| meta.drop_reason.is_none()));
        count == 16 || !self.ready.is_empty()
    }
}

/// TCP crosses the bridge in both directions, and its bytes are right.
#[test]
fn tcp_crosses_with_and_without_offload() {
    const NAME: &str = "packet::bridge::tcp_crosses_with_and_without_offload";
    let quiet =
        ["all", "default"].map(|of| format!("sysctl -qw net.ipv6.conf.{of}.disable_ipv6=1"));
    in_namespace(NAME, &quiet.each_ref().map(String::as_str), || {
        let client = Host::new("v1", "192.0.2.1/24");
        let server = Host::new("w1", "192.0.2.2/24");
        server.run(|| {
            let listener = TcpListener::bind("192.0.2.2:7").expect("an address of eth");
            start(move || {
                for stream in listener.incoming() {
                    let mut stream = stream.expect("a client");
                    start(move || {
                        let mut copy = stream.try_clone().expect("another descriptor");
                        drop(std::io::copy(&mut stream, &mut copy));
                    });
                }
            });
        });
        let plain = PacketOptions { offload: false, ..OPTIONS };
        let direct = PacketOptions { bypass: true, ..OPTIONS };
        for (near, far) in [(OPTIONS, OPTIONS), (plain, plain), (OPTIONS, plain), (direct, direct)]
        {
            let ((to_near, from_near), (to_far, from_far)) = (open("v1", near), open("w1", far));
            let way = |from, to| Way { from, to, ready: PacketList::new(), longest: 0 };
            let mut ways = [way(from_near, to_far), way(from_far, to_near)];
            let end = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !end.load(Ordering::Relaxed) {
                        let more = ways.iter_mut().fold(false, |more, way| way.run() | more);
                        let ms = if more { 0 } else { 50 };
                        wait(&[&ways[0].from, &ways[1].from], ms);
                    }
                });
                let ended =
                    thread::scope(|scope| scope.spawn(|| client.run(|| echo(3_000_000))).join());
                end.store(true, Ordering::Relaxed);
                ended.expect("the client");
            });
            let [there, back] = &ways;
            let (near_whole, far_whole) = (there.longest > 5_000, back.longest > 5_000);
            assert_eq!((near_whole, far_whole), (near.offload, far.offload));
            let segmented = there.to.stats().segmented.get() > 0;
            assert_eq!(segmented, near.offload && !far.offload);
            for way in ways {
                assert_eq!(way.from.discarded(), 0);
            }
        }
    });
}
