//! Hosts with a real engine that fails, operators, roles and TLS.
//!
//! These tests take real time. That the sum of all rates is at most the limit is checked each time
//! that a host's share changes; that hosts recover is waited for as long as it takes.

mod common;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use onramp_core::Clock as _;
use onramp_fleet::{Definition, DefinitionError, KEEP, Refusal, Traffic};
use onramp_redis::{
    BootClock, Engine, EngineError, HOST_RULES, Limit, Member, OPERATOR_RULES, Share, drive,
};
use redis::{Client, Connection};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use common::{PATIENCE, Server, eventually};

const RATE: u64 = 25_000_000;
const FLOOR: u64 = 100_000;

fn limit(rate: u64, hosts: u32, parent: Option<&str>) -> Definition {
    let floor = if hosts > 0 { FLOOR } else { 0 };
    let parent = parent.map(str::to_owned);
    Definition { rate, weight: 1, guaranteed: 0, hosts, floor, burst: None, parent }
}

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("threads")
}

fn connection(server: &Server) -> Connection {
    let client = Client::open(server.url()).expect("a URL");
    client.get_connection().expect("it listens")
}

/// Returns the engine of an operator, who waits for answers for as long as it takes.
fn operator(server: &Server) -> Engine {
    Engine::new(&server.url(), None).expect("a URL").with_patience(PATIENCE)
}

/// Hosts that have joined limits.
struct Fleet {
    runtime: Runtime,
    shares: Arc<Mutex<Shares>>,
    traffic: Vec<watch::Sender<Traffic>>,
}

#[derive(Default)]
struct Shares {
    all: Vec<Share>,
    /// The sum must not exceed this rate.
    most: u64,
    /// The largest sum that did.
    excess: Option<u64>,
}

impl Shares {
    fn sum(&self) -> u64 {
        let now = BootClock.now();
        self.all.iter().map(|share| share.rate_at(now)).sum()
    }

    fn check(&mut self) {
        let sum = self.sum();
        if sum > self.most {
            self.excess = self.excess.max(Some(sum));
        }
    }
}

impl Fleet {
    fn new() -> Self {
        let shares = Arc::new(Mutex::new(Shares { most: RATE, ..Shares::default() }));
        Self { runtime: runtime(), shares, traffic: Vec::new() }
    }

    /// Adds a host that wants the whole limit.
    fn join(&mut self, url: &str, limit: &str) {
        self.join_through(Engine::new(url, None).expect("a URL"), limit);
    }

    fn join_through(&mut self, engine: Engine, limit: &str) {
        let at = self.traffic.len();
        let member =
            Member { limit: limit.to_owned(), host: format!("host-{at}"), weight: 1, floor: 0 };
        let (sender, traffic) = watch::channel(Traffic { used: 0, demand: RATE });
        self.traffic.push(sender);
        self.shares.lock().expect("no panic").all.push(Share::default());
        let shares = Arc::clone(&self.shares);
        let set = move |share: &Share| {
            let mut shares = shares.lock().expect("no panic");
            shares.all[at] = share.clone();
            shares.check();
        };
        self.runtime.spawn(async move { drive(engine, member, traffic, set).await });
    }

    fn wants(&self, host: usize, demand: u64) {
        self.traffic[host].send_modify(|traffic| traffic.demand = demand);
    }

    fn operator<T>(&self, asked: impl Future<Output = T>) -> T {
        self.runtime.block_on(asked)
    }

    fn sum(&self) -> u64 {
        self.shares.lock().expect("no panic").sum()
    }

    fn share(&self, host: usize) -> Share {
        self.shares.lock().expect("no panic").all[host].clone()
    }

    fn set_most(&self, most: u64) {
        self.shares.lock().expect("no panic").most = most;
    }

    fn wait(&self, what: &str, mut is: impl FnMut(&Self) -> bool) {
        let mut looks = 0;
        eventually(what, || {
            self.assert_safe();
            looks += 1;
            if looks % 1_000 == 0 {
                eprintln!("{what}: {:?}", self.shares.lock().expect("no panic").all);
            }
            is(self)
        });
    }

    fn assert_safe(&self) {
        assert_eq!(self.shares.lock().expect("no panic").excess, None);
    }

    /// Waits until the hosts share the limit, except what is set aside for absent hosts.
    fn wait_full(&self) {
        let begin = BootClock.now();
        self.wait("the hosts share the limit", |fleet| fleet.sum() >= RATE * 95 / 100);
        eprintln!("the limit after {} ms", BootClock.now().since(begin) / 1_000_000);
    }

    /// Waits until each host sends at its guaranteed rate only.
    fn wait_floors(&self) {
        let floors = FLOOR * self.traffic.len() as u64;
        self.wait("the hosts send at their guaranteed rates", |fleet| fleet.sum() == floors);
    }
}

/// Five hosts in a limit.
fn five(server: &Server, url: &str) -> Fleet {
    let mut fleet = Fleet::new();
    let engine = operator(server);
    let tenant = limit(RATE, 8, None);
    fleet.operator(async { engine.set("tenant", &tenant).await }).expect("a sound limit");
    for _ in 0..5 {
        fleet.join(url, "tenant");
    }
    fleet.wait_full();
    fleet
}

#[test]
fn a_killed_engine_that_begins_again_with_nothing() {
    let Some(mut server) = Server::start(&[]) else { return };
    let fleet = five(&server, &server.url());
    server.kill();
    server.again();
    fleet.wait_full();
    server.kill();
    fleet.wait_floors();
    server.again();
    fleet.wait_full();
}

/// A program that has known a limit knows it for its later hosts, too, without the engine and with
/// an engine that has lost it.
#[test]
fn a_host_that_joins_what_the_engine_has_lost() {
    let Some(mut server) = Server::start(&[]) else { return };
    let mut fleet = Fleet::new();
    let engine = Engine::new(&server.url(), None).expect("a URL");
    let (operator, tenant) = (operator(&server), limit(RATE, 8, None));
    fleet.operator(async { operator.set("tenant", &tenant).await }).expect("a sound limit");
    fleet.join_through(engine.clone(), "tenant");
    fleet.wait_full();
    server.kill();
    fleet.wait_floors();
    fleet.join_through(engine.clone(), "tenant");
    fleet.wait_floors();
    server.again();
    fleet.wait_full();
    fleet.join_through(engine, "tenant");
    fleet.wait("the new host has a share", |fleet| fleet.share(2).rate > FLOOR);
    fleet.wait_full();
}

#[test]
fn a_killed_engine_that_begins_again_with_what_it_wrote_to_a_file() {
    let Some(mut server) = Server::start(&["--appendonly", "yes"]) else { return };
    let fleet = five(&server, &server.url());
    for _ in 0..3 {
        server.kill();
        server.again();
        // A share is wanted by another host while the ledger is young.
        fleet.wants(0, 0);
        thread::sleep(Duration::from_millis(300));
        fleet.wants(0, RATE);
        fleet.wait_full();
    }
}

#[test]
fn a_stopped_engine_that_goes_on() {
    let Some(server) = Server::start(&[]) else { return };
    let fleet = five(&server, &server.url());
    server.pause(true);
    fleet.wait_floors();
    thread::sleep(Duration::from_secs(2));
    fleet.assert_safe();
    server.pause(false);
    fleet.wait_full();
    // A stop that is shorter than the leases.
    server.pause(true);
    thread::sleep(Duration::from_millis(400));
    server.pause(false);
    fleet.wait_full();
}

/// The engine's clock is set forward and back by an hour, and then goes right.
#[test]
fn an_engine_whose_clock_is_wrong() {
    let Some(server) = Server::start_with_clock() else { return };
    let fleet = five(&server, &server.url());
    let mut watch = connection(&server);
    let mut time = || {
        let (seconds, _): (i64, i64) = redis::cmd("TIME").query(&mut watch).expect("it answers");
        seconds
    };
    let mut was = 0;
    for ahead in [3_600, -3_600, 600, 0] {
        // The bound allows one jump in the time of a lease.
        thread::sleep(KEEP);
        let before = time();
        server.set_ahead(ahead);
        let jump = ahead - was;
        assert!((jump..jump + 60).contains(&(time() - before)), "it is the engine's clock");
        was = ahead;
        // A share changes hands under the wrong clock.
        fleet.wants(0, 0);
        fleet.wait("host 0 has little", |fleet| fleet.share(0).rate < RATE / 20);
        fleet.wants(0, RATE);
        fleet.wait("host 0 has its share", |fleet| fleet.share(0).rate > RATE / 6);
        fleet.wait_full();
    }
}

/// A host says that it wants as much as a number can say. It gets its fair share, and the others
/// keep theirs.
#[test]
fn a_host_that_lies_about_its_demand() {
    let Some(server) = Server::start(&[]) else { return };
    let fleet = five(&server, &server.url());
    // Three more hosts may come; what is set aside for them is nobody's.
    let fair = (RATE - 3 * FLOOR) / 5;
    let engine = operator(&server);
    for lie in [1 << 50, u64::MAX] {
        fleet.wants(0, 0);
        fleet.wait("the others have what host 0 had", |fleet| {
            (1..5).all(|host| fleet.share(host).rate_at(BootClock.now()) > fair * 6 / 5)
        });
        fleet.wants(0, lie);
        fleet.wait("the ledger has the lie", |fleet| {
            let members = fleet.operator(async {
                let all = engine.limits().await?;
                engine.members(&all, "tenant").await
            });
            members.expect("it answers")[0].claim.demand() >= lie.min(1 << 53)
        });
        let fair = fair * 96 / 100..=fair * 104 / 100;
        let mut looks = 0;
        fleet.wait("all have fair shares, look by look", |fleet| {
            let is_fair =
                (0..5).all(|host| fair.contains(&fleet.share(host).rate_at(BootClock.now())));
            looks = if is_fair { looks + 1 } else { 0 };
            looks == 50
        });
    }
}

#[test]
fn a_network_that_carries_nothing_for_a_second() {
    let Some(server) = Server::start(&[]) else { return };
    let network = runtime();
    let (open, is_open) = watch::channel(true);
    let port = network.block_on(relay(server.folder.path(), is_open));
    // Two hosts keep their connection.
    let mut fleet = five(&server, &format!("redis://127.0.0.1:{port}"));
    fleet.join(&server.url(), "tenant");
    fleet.join(&server.url(), "tenant");
    open.send_replace(false);
    fleet.wait("hosts without the engine send at their guaranteed rates", |fleet| {
        (0..5).all(|host| fleet.share(host).rate_at(BootClock.now()) == FLOOR)
    });
    fleet.wait("the others have the rest", |fleet| fleet.sum() >= RATE * 9 / 10);
    open.send_replace(true);
    fleet.wait("all hosts have a share again", |fleet| {
        (0..7).all(|host| fleet.share(host).rate_at(BootClock.now()) > RATE / 8)
    });
    fleet.wait_full();
}

/// Carries connections to the server's socket while `is_open`. Returns the port.
async fn relay(folder: &Path, is_open: watch::Receiver<bool>) -> u16 {
    relay_late(folder, is_open, Duration::ZERO).await
}

/// The same, but what the engine says needs this time to come.
async fn relay_late(folder: &Path, is_open: watch::Receiver<bool>, late: Duration) -> u16 {
    let socket = folder.join("socket");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = UnixStream::connect(&socket).await else { continue };
            let ((from_client, to_client), (from_server, to_server)) =
                (client.into_split(), server.into_split());
            tokio::spawn(carry(from_client, to_server, is_open.clone(), Duration::ZERO));
            tokio::spawn(carry(from_server, to_client, is_open.clone(), late));
        }
    });
    port
}

async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut is_open: watch::Receiver<bool>,
    late: Duration,
) {
    let mut room = [0; 16_384];
    while let Ok(len @ 1..) = from.read(&mut room).await {
        if is_open.wait_for(|is_open| *is_open).await.is_err() {
            return;
        }
        tokio::time::sleep(late).await;
        if to.write_all(&room[..len]).await.is_err() {
            return;
        }
    }
}

/// Returns a network between hosts and a server, on which an answer comes `late`, and its port.
fn far_away(server: &Server, late: Duration) -> (Runtime, watch::Sender<bool>, u16) {
    let (network, (open, is_open)) = (runtime(), watch::channel(true));
    let port = network.block_on(relay_late(server.folder.path(), is_open, late));
    (network, open, port)
}

/// A host follows a change of its limit, which is the third below another, although each answer of
/// the engine takes 0.3 s: the host does not ask for each limit above.
#[test]
fn a_change_is_followed_from_far_away() {
    let Some(server) = Server::start(&[]) else { return };
    let (_network, _open, port) = far_away(&server, Duration::from_millis(300));
    let (mut fleet, engine) = (Fleet::new(), operator(&server));
    for (name, definition) in [
        ("company", limit(RATE, 0, None)),
        ("region", limit(RATE, 0, Some("company"))),
        ("tenant", limit(RATE, 8, Some("region"))),
    ] {
        fleet.operator(engine.set(name, &definition)).expect("a sound limit");
    }
    fleet.join(&format!("redis://127.0.0.1:{port}"), "tenant");
    fleet.wait("a share", |fleet| fleet.share(0).rate > RATE / 2);
    let half = limit(RATE / 2, 8, Some("region"));
    fleet.operator(engine.set("tenant", &half)).expect("a sound limit");
    fleet.wait("the new limit", |fleet| (RATE / 3..=RATE / 2).contains(&fleet.share(0).rate));
}

/// To connect, with a password, takes longer than a host waits for a message: the attempt goes on
/// meanwhile.
#[test]
fn a_connection_from_far_away() {
    let Some(server) = Server::start(&[]) else { return };
    let (_network, _open, port) = far_away(&server, Duration::from_millis(620));
    let mut fleet = Fleet::new();
    let tenant = limit(RATE, 8, None);
    fleet.operator(operator(&server).set("tenant", &tenant)).expect("a sound limit");
    let mut password = redis::cmd("CONFIG");
    password.arg("SET").arg("requirepass").arg("secret");
    password.exec(&mut connection(&server)).expect("it answers");
    fleet.join(&format!("redis://:secret@127.0.0.1:{port}"), "tenant");
    fleet.wait("a share", |fleet| fleet.share(0).rate_at(BootClock.now()) > RATE / 2);
}

#[test]
fn hosts_follow_operators() {
    let Some(server) = Server::start(&[]) else { return };
    let mut fleet = five(&server, &server.url());
    let engine = operator(&server);
    let set = |fleet: &Fleet, name: &str, definition: Definition| {
        fleet.operator(engine.set(name, &definition))
    };
    // The limit is lowered; hosts follow, and from then on the sum is at most the new limit.
    fleet.set_most(u64::MAX);
    set(&fleet, "tenant", limit(RATE / 2, 8, None)).expect("a sound limit");
    fleet.wait("the new limit", |fleet| fleet.sum() <= RATE / 2);
    fleet.wait("the new limit", |fleet| fleet.sum() > RATE * 48 / 100);
    // The limit becomes a part of another one, with another part beside it.
    set(&fleet, "company", limit(RATE, 0, None)).expect("a sound limit");
    set(&fleet, "tenant", limit(RATE, 8, Some("company"))).expect("a sound limit");
    set(&fleet, "other", limit(RATE, 8, Some("company"))).expect("a sound limit");
    fleet.wait_full();
    fleet.set_most(RATE);
    fleet.join(&server.url(), "other");
    fleet.join(&server.url(), "other");
    fleet.wait("both parts have a share", |fleet| {
        fleet.sum() >= RATE * 95 / 100
            && (0..7).all(|host| fleet.share(host).rate_at(BootClock.now()) > RATE / 20)
    });
    // A part is deleted: its hosts stop, and the other part gets everything.
    fleet.operator(engine.delete("other")).expect("it has no parts");
    fleet.wait("the hosts stop", |fleet| {
        (5..7).all(|host| fleet.share(host).limit == Limit::Gone && fleet.share(host).rate == 0)
    });
    fleet.wait_full();
    // The engine forgets, and the deleted limit comes back.
    let mut admin = connection(&server);
    redis::cmd("FLUSHALL").exec(&mut admin).expect("it answers");
    redis::cmd("SCRIPT").arg("FLUSH").exec(&mut admin).expect("it answers");
    fleet.wait_full();
    set(&fleet, "company", limit(RATE, 0, None)).expect("a sound limit");
    set(&fleet, "tenant", limit(RATE, 8, Some("company"))).expect("a sound limit");
    set(&fleet, "other", limit(RATE, 8, Some("company"))).expect("a sound limit");
    fleet.wait("both parts have a share", |fleet| {
        (0..7).all(|host| fleet.share(host).rate_at(BootClock.now()) > RATE / 20)
    });
}

#[test]
fn a_limit_has_no_more_hosts_than_it_may_have() {
    let Some(server) = Server::start(&[]) else { return };
    let mut fleet = five(&server, &server.url());
    for _ in 0..4 {
        fleet.join(&server.url(), "tenant");
    }
    fleet.wait("a host is refused", |fleet| {
        (5..9).any(|host| fleet.share(host).refused == Some(Refusal::Full))
    });
}

#[test]
fn limits_are_kept_and_checked() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let engine = operator(&server);
    runtime.block_on(async {
        engine.set("company", &limit(RATE, 0, None)).await.expect("sound");
        engine.set("a", &limit(RATE, 3, Some("company"))).await.expect("sound");
        let refused = engine.set("b", &limit(RATE, 3, Some("nobody"))).await;
        let why = DefinitionError::NoParent("nobody".into());
        assert_eq!(refused, Err(EngineError::Definition(why)));
        assert_eq!(
            engine.set("b", &limit(1 << 53, 3, None)).await,
            Err(EngineError::TooLarge(1 << 53))
        );
        let why = DefinitionError::HasParts("company".into());
        assert_eq!(engine.delete("company").await, Err(EngineError::Definition(why)));
        engine.delete("a").await.expect("it is there");
        let why = DefinitionError::Unknown("a".into());
        assert_eq!(engine.delete("a").await, Err(EngineError::Definition(why)));
        let limits = engine.limits().await.expect("it answers");
        assert_eq!(limits.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["company"]);
        // Operators at the same time: all changes count, and none breaks the tree.
        let all: Vec<_> = (0..8)
            .map(|at| {
                let engine = engine.clone();
                let part = limit(RATE, 40, Some("company"));
                tokio::spawn(async move { engine.set(&format!("part-{at}"), &part).await })
            })
            .collect();
        let mut set = 0;
        for one in all {
            match one.await.expect("no panic") {
                Ok(()) => set += 1,
                Err(EngineError::Definition(DefinitionError::Aside { .. })) => {}
                Err(error) => panic!("{error}"),
            }
        }
        // 40 hosts at 100,000 bytes/s set 4,000,000 of the 25,000,000 aside.
        assert_eq!(set, 6);
        assert_eq!(engine.limits().await.expect("it answers").iter().count(), 7);
    });
}

#[test]
fn a_host_cannot_change_limits() {
    let Some(server) = Server::start(&[]) else { return };
    let mut admin = connection(&server);
    for (name, rules) in [("host", HOST_RULES), ("operator", OPERATOR_RULES)] {
        let mut command = redis::cmd("ACL");
        command.arg("SETUSER").arg(name).arg("reset").arg(rules).arg("on").arg(">secret");
        command.exec(&mut admin).expect("sound rules");
    }
    let url = |user: &str, word: &str| format!("{}?user={user}&pass={word}", server.url());
    let engine =
        |user, word| Engine::new(&url(user, word), None).expect("a URL").with_patience(PATIENCE);
    let mut fleet = Fleet::new();
    let denied = |result| assert!(matches!(result, Err(EngineError::Denied(_))), "{result:?}");
    let tenant = limit(RATE, 8, None);
    fleet.operator(engine("operator", "secret").set("tenant", &tenant)).expect("it may");
    fleet.join(&url("host", "secret"), "tenant");
    fleet.join(&url("host", "secret"), "tenant");
    fleet.wait_full();
    let host = engine("host", "secret");
    denied(fleet.operator(host.set("tenant", &limit(2 * RATE, 8, None))));
    denied(fleet.operator(host.set("mine", &tenant)));
    denied(fleet.operator(host.delete("tenant")));
    denied(fleet.operator(engine("host", "wrong").delete("tenant")));
    denied(fleet.operator(engine("nobody", "secret").delete("tenant")));
    assert_eq!(fleet.operator(host.limits()).expect("it may").iter().count(), 1);

    // The same with commands of the host's own, and with scripts.
    let client = Client::open(url("host", "secret")).expect("a URL");
    let mut host = client.get_connection().expect("the password is right");
    let terms = "onramp:{tenant}:limit:tenant";
    let raise = "return redis.call('SET', KEYS[1], '9 0')";
    let load = redis::cmd("SCRIPT").arg("LOAD").arg(raise).query::<String>(&mut host);
    let script = load.expect("it may");
    for words in [
        &["SET", terms, "9 0"][..],
        &["DEL", terms],
        &["DEL", "onramp:limits"],
        &["HSET", "onramp:limits", "tenant", "9 0"],
        &["HDEL", "onramp:limits", "tenant"],
        &["PEXPIRE", terms, "1"],
        &["EVALSHA", &script, "1", terms],
        &["EVALSHA", &script, "1", "onramp:{tenant}:ledger:tenant"],
        &["HSET", "onramp:{a}:limit:x:ledger:b", "x", "y"][..],
        &["FLUSHALL"],
        &["CONFIG", "GET", "*"],
        &["ACL", "LIST"],
        &["SHUTDOWN"],
        &["REPLICAOF", "127.0.0.1", "1"],
    ] {
        let result = redis::cmd(words[0]).arg(&words[1..]).exec(&mut host);
        let message = result.expect_err(&words.join(" ")).to_string();
        let is_denied = ["permission", "can't run this command"].map(|word| message.contains(word));
        assert!(is_denied.contains(&true), "{words:?}: {message}");
    }
    let client = Client::open(url("operator", "secret")).expect("a URL");
    let mut operator = client.get_connection().expect("the password is right");
    for words in [&["FLUSHALL"][..], &["HSET", "onramp:{tenant}:ledger:tenant", "x", "y"]] {
        let result = redis::cmd(words[0]).arg(&words[1..]).exec(&mut operator);
        assert!(result.is_err(), "{words:?}");
    }
    fleet.wait_full();
}

/// With the users of the README and a file of all changes, a restart keeps the limits.
#[test]
fn limits_outlive_a_restart_with_roles() {
    let folder = tempfile::tempdir().expect("a folder");
    let users: String = include_str!("../README.md")
        .lines()
        .skip_while(|line| !line.starts_with("user host "))
        .take_while(|line| line.starts_with("user "))
        .map(|line| line.replace("PASSWORD", "secret") + "\n")
        .collect();
    assert_eq!(users.lines().count(), 3, "{users}");
    let file = folder.path().join("users.acl");
    std::fs::write(&file, users).expect("the folder is ours");
    let file = file.to_str().expect("text");
    let keeps = ["--appendonly", "yes", "--appendfsync", "always", "--aclfile", file];
    let Some(mut server) = Server::start(&keeps) else { return };
    let engine = |user: &str| {
        let url = format!("{}?user={user}&pass=secret", server.url());
        Engine::new(&url, None).expect("a URL").with_patience(PATIENCE)
    };
    let (operator, host) = (engine("operator"), engine("host"));
    let open = Engine::new(&server.url(), None).expect("a URL").with_patience(PATIENCE);
    let runtime = runtime();
    let (kept, gone) = (limit(RATE, 8, None), limit(2 * RATE, 8, None));
    runtime.block_on(async {
        operator.set("kept", &limit(3 * RATE, 8, None)).await.expect("it may");
        operator.set("kept", &kept).await.expect("it may");
        operator.set("gone", &gone).await.expect("it may");
        operator.delete("gone").await.expect("it may");
    });
    server.kill();
    server.again();
    runtime.block_on(async {
        let limits = host.limits().await.expect("it may");
        let limits: Vec<_> = limits.iter().collect();
        assert!(matches!(limits[..], [("kept", found)] if *found == kept), "{limits:?}");
        let refused = open.limits().await;
        let said = "the engine does not allow it: it asks for a user and a password";
        assert_eq!(refused.unwrap_err().to_string(), said);
    });
}

/// A host's user may write anything into a ledger: operators' tools hear of it, and go on.
#[test]
fn what_a_hostile_host_writes_into_a_ledger() {
    let Some(server) = Server::start(&[]) else { return };
    let (runtime, mut writer) = (runtime(), connection(&server));
    let engine = operator(&server);
    runtime.block_on(engine.set("t", &limit(RATE, 8, None))).expect("a sound limit");
    let all = runtime.block_on(engine.limits()).expect("it answers");
    let mut write = |ledger: &str, field: &[u8], value: &[u8]| {
        let mut command = redis::cmd("HSET");
        command.arg(format!("onramp:{{t}}:ledger:{ledger}")).arg(field).arg(value);
        command.exec(&mut writer).expect("it may");
    };
    let damaged = |case: &str| {
        let read = async { tokio::time::timeout(PATIENCE, engine.members(&all, "t")).await };
        let read = runtime.block_on(read).expect("it ends");
        assert_eq!(read, Err(EngineError::Damaged("t".to_owned())), "{case}");
    };
    write("t", b"@", b"1 1 t 0 0 0 0 0 x");
    damaged("a circle of one");
    write("t", b"@", b"1 1 other 0 0 0 0 0 x");
    write("other", b"@", b"1 1 t 0 0 0 0 0 x");
    damaged("a circle of two");
    for step in 0..100_u32 {
        let head = format!("1 1 other-{step} 0 0 0 0 0 x");
        let name = step.checked_sub(1).map_or_else(|| "t".to_owned(), |at| format!("other-{at}"));
        write(&name, b"@", head.as_bytes());
    }
    damaged("a long way");
}

/// A failover by which a Redis becomes the replica of another one: hosts go to the other one.
#[test]
fn an_engine_that_is_read_only_from_now_on() {
    let Some(mut server) = Server::start(&[]) else { return };
    let fleet = five(&server, &server.url());
    let mut old = connection(&server);
    redis::cmd("REPLICAOF").arg("127.0.0.1").arg("1").exec(&mut old).expect("it may");
    fleet.wait_floors();
    let _old = server.replace();
    fleet.wait_full();
}

#[test]
#[cfg(feature = "tls")]
fn connections_by_tls() {
    use std::fs;
    use std::net::TcpListener;

    let folder = tempfile::tempdir().expect("a folder");
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]);
    let certified = certified.expect("a name");
    let pem = certified.cert.pem();
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::write(path("cert"), &pem).expect("the folder is ours");
    fs::write(path("key"), certified.signing_key.serialize_pem()).expect("the folder is ours");
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = free.local_addr().expect("an address").port().to_string();
    drop(free);
    let (cert, key) = (path("cert"), path("key"));
    let Some(_server) = Server::start(&[
        "--bind",
        "127.0.0.1",
        "--tls-port",
        &port,
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &cert,
        "--tls-auth-clients",
        "no",
    ]) else {
        return;
    };
    let url = format!("rediss://localhost:{port}");
    let runtime = runtime();
    let engine = |url: &str, authority: Option<&[u8]>| {
        Engine::new(url, authority).expect("sound").with_patience(PATIENCE)
    };
    let known = engine(&url, Some(pem.as_bytes()));
    let tenant = limit(RATE, 8, None);
    runtime.block_on(known.set("tenant", &tenant)).expect("the certificate is known");
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a name");
    for authority in [Some(other.cert.pem()), None] {
        let stranger = engine(&url, authority.as_ref().map(String::as_bytes));
        let result = runtime.block_on(stranger.limits());
        let Err(EngineError::Unreachable(why)) = result else { panic!("{result:?}") };
        assert!(why.contains("certificate"), "{why}");
    }
    let plain = engine(&format!("redis://localhost:{port}"), None);
    runtime.block_on(plain.limits()).expect_err("the port speaks TLS only");
}

#[test]
fn what_is_no_engine() {
    for url in ["", "host:1", "http://host", "redis://user:secret@host:x"] {
        let error = Engine::new(url, None).expect_err(url);
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    let engine = Engine::new("redis://user:secret@127.0.0.1:1", None).expect("a URL");
    assert!(!format!("{engine:?}").contains("secret"), "{engine:?}");
    let result = runtime().block_on(engine.limits());
    assert!(matches!(result, Err(EngineError::Unreachable(_))), "{result:?}");
}
