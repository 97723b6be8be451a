//! The limits and hosts of a fleet at `/api/v1/fleet` and on the web page, with a real engine.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use onramp_core::{Handle, Rate};
use onramp_fleet::{Definition, Traffic};
use onramp_redis::{Engine, Member, drive};
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::alive::Alive;
use super::chromium::Browser;
use super::made_up::MadeUp;
use super::serve::{Server, get, json};
use super::tool::{Running, have, until};

/// A name that a host which breaks the rules may write into a ledger.
const MARKUP: &str = "<img src=x onerror=\"document.title='ours'\">&amp;";

/// A redis-server at a Unix socket in a folder of its own, with a limit, and hosts that report.
struct Fleet {
    engine: Engine,
    redis: Option<Running>,
    /// Dropped to end the hosts.
    _hosts: Vec<watch::Sender<Traffic>>,
    _runtime: Runtime,
    _folder: TempDir,
}

fn start_engine(folder: &Path) -> Running {
    let socket = folder.join("engine");
    let redis = Command::new("redis-server")
        .args(["--port", "0", "--save", "", "--unixsocket"])
        .arg(&socket)
        .current_dir(folder)
        .stdout(Stdio::null())
        .spawn();
    let redis = Running(redis.expect("it is there"));
    // The file of the socket is there a moment before the engine listens.
    until("the engine listens", || UnixStream::connect(&socket).ok());
    redis
}

impl Fleet {
    /// Starts a fleet of two hosts that want 300 and 600 kB/s of 1 MB/s. Returns `None`, and says
    /// why, if this machine has no engine.
    fn start() -> Option<Self> {
        if !have("redis-server", "redis-server") {
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let redis = Some(start_engine(folder.path()));
        let url = format!("unix://{}", folder.path().join("engine").display());
        let engine = Engine::new(&url, None).expect("a URL");
        let runtime = Runtime::new().expect("a runtime");
        let (rate, hosts, burst) = (1_000_000, 4, Some(9_000));
        let limit =
            Definition { rate, weight: 1, guaranteed: 0, hosts, floor: 1_000, burst, parent: None };
        let operator = engine.with_patience(Duration::from_secs(60));
        runtime.block_on(operator.set("tenant", &limit)).expect("a sound limit");
        let join = |(host, demand): (&str, u64)| {
            let member = Member {
                limit: "tenant".to_owned(),
                host: host.to_owned(),
                weight: 1,
                floor: 1_000,
            };
            let traffic = Traffic { used: demand / 2, demand };
            let (told, seen) = watch::channel(traffic);
            runtime.spawn(drive(engine.clone(), member, seen, |_| {}));
            told
        };
        let hosts = [("media-1/d0/1:", 300_000), (MARKUP, 600_000)].map(join).into();
        Some(Self { engine, redis, _hosts: hosts, _runtime: runtime, _folder: folder })
    }
}

/// Waits until both hosts have their shares, and returns the limit.
fn settled(server: &Server) -> Value {
    until("both hosts hold their shares", || {
        let table = json(server, "/api/v1/fleet");
        let limit = &table["limits"][0];
        let held = limit["share_bytes_per_second"].as_u64()?;
        (limit["members_count"] == 2 && held > 900_000).then(|| limit.clone())
    })
}

#[test]
fn a_daemon_without_a_fleet_shows_none() {
    let server = Server::start(MadeUp::default(), false);
    let (status, _, body) = get(&server, "/api/v1/fleet");
    assert_eq!(status, 404);
    assert!(body.contains("belongs to no fleet"), "{body}");
    assert!(!get(&server, "/").2.contains("id=\"fleet\""));
}

#[test]
fn the_table_has_limits_and_hosts() {
    let Some(mut fleet) = Fleet::start() else { return };
    let server = Server::in_fleet(&fleet.engine);
    assert_eq!(get(&server, "/api/v1/fleet?limit=a").0, 400);
    let limit = settled(&server);
    assert_eq!((&limit["name"], &limit["parent"]), (&"tenant".into(), &Value::Null));
    assert_eq!((&limit["bytes_per_second"], &limit["hosts_max"]), (&1_000_000.into(), &4.into()));
    assert_eq!((&limit["burst_bytes"], &limit["members_omitted"]), (&9_000.into(), &0.into()));
    // The host that wants most comes first. Demands are rounded up to six binary digits.
    let members = limit["members"].as_array().expect("a list");
    let figure = |at: usize, key: &str| members[at][key].as_u64().expect("a number");
    assert_eq!(
        (&members[0]["name"], &members[1]["name"]),
        (&MARKUP.into(), &"media-1/d0/1:".into())
    );
    for (at, wants) in [(0, 600_000), (1, 300_000)] {
        assert!((wants..wants + wants / 32).contains(&figure(at, "demand_bytes_per_second")));
        assert_eq!(figure(at, "used_bytes_per_second"), wants / 2);
        assert!(figure(at, "share_bytes_per_second") >= wants);
        let age = members[at]["report_age_seconds"].as_f64().expect("a number");
        assert!((0.0..10.0).contains(&age), "{age}");
    }
    assert_eq!(limit["used_bytes_per_second"], 450_000);
    let document = json(&server, "/api/v1/fleet");
    let documentation = include_str!("../../../../docs/json.md");
    let section = documentation.split("## `onramp.fleet-table`, version 1").nth(1);
    let section = section.and_then(|rest| rest.split("\n## ").next()).expect("it is documented");
    for keys in [&document, &document["limits"][0], &document["limits"][0]["members"][0]] {
        for key in keys.as_object().expect("an object").keys() {
            assert!(section.contains(&format!("`{key}`")), "docs/json.md does not tell of {key}");
        }
    }
    // When the engine has gone, the last table stays, with its age and the reason.
    assert_eq!(document["error"], Value::Null);
    fleet.redis = None;
    let dead = until("an error", || {
        let table = json(&server, "/api/v1/fleet");
        (!table["error"].is_null()).then_some(table)
    });
    let why = dead["error"].as_str().expect("text");
    assert!(why.contains("the engine does not answer"), "{why}");
    assert_eq!(dead["limits"][0]["members_count"], 2);
    let age = |table: &Value| table["age_seconds"].as_f64().expect("it was read once");
    until("the table to grow old", || {
        (age(&json(&server, "/api/v1/fleet")) > age(&document)).then_some(())
    });
}

/// An engine that has never answered: there is nothing to show but the reason.
#[test]
fn an_engine_that_was_never_there() {
    let engine = Engine::new("unix:///nosuch/engine", None).expect("a URL");
    let server = Server::in_fleet(&engine);
    let table = json(&server, "/api/v1/fleet");
    assert!(table["error"].as_str().is_some_and(|why| why.contains("does not answer")), "{table}");
    assert_eq!((&table["age_seconds"], &table["limits"]), (&Value::Null, &Value::Array(vec![])));
}

#[test]
fn the_page_has_a_table_and_names_are_text() {
    if !have("chromium", "chromium") {
        return;
    }
    let Some(mut fleet) = Fleet::start() else { return };
    let server = Server::in_fleet(&fleet.engine);
    settled(&server);
    let mut browser = Browser::start();
    browser.open(&format!("http://{}/", server.address));
    until("the rows", || {
        let names = browser.texts("#limits tbody td:first-child");
        (names == ["tenant", MARKUP, "media-1/d0/1:"]).then_some(())
    });
    let row = browser.texts("#limits .limit td");
    assert_eq!(row[..3], ["tenant", "8.00 Mbit", "2 of 4"], "{row:?}");
    assert_eq!(browser.text("#limits .host td:nth-child(6)"), "2.40 Mbit");
    assert_eq!(browser.evaluate("document.querySelectorAll('#limits img').length"), 0);
    assert_ne!(browser.evaluate("document.title"), "ours");
    assert_eq!(browser.evaluate("document.getElementById('fleet-gone').hidden"), true);
    for width in [390, 1280] {
        browser.look("light", width, 900);
        let over = browser.evaluate("document.documentElement.scrollWidth - innerWidth");
        assert_eq!(over, 0, "{width}: it sticks out to the right");
        browser.evaluate("document.getElementById('fleet').scrollIntoView()");
        browser.picture(&format!("fleet-{width}"));
    }
    fleet.redis = None;
    until("the news", || {
        let told = browser.text("#fleet-gone");
        (told.contains("does not answer") && told.contains(" old.")).then_some(())
    });
    assert_eq!(browser.texts("#limits tbody tr").len(), 3, "the last table stays");
    assert_eq!(browser.complaints(), [] as [String; 0]);
}

/// A share that ends while a command uses the host ends all the same: the ledger gives it to other
/// hosts then.
#[test]
fn a_lease_ends_while_a_command_uses_the_host() {
    let Some(mut fleet) = Fleet::start() else { return };
    let floor = 1_000;
    let (engine, name) = (fleet.engine.apart(), "media-2".to_owned());
    let daemon = Alive::in_fleet(onramp_daemon::fleet::Options { engine, name, floor });
    daemon.exec("ip link add d0 up type dummy");
    daemon.exec("tc qdisc add dev d0 root handle 1: tbf rate fleet tenant burst 9kb limit 90kb");
    let link = daemon.hub.host().lock().expect("no panic").link("d0").expect("it was added");
    let rate = || {
        let line = link.setup().line("add", Handle::new(1, 0), &[]).expect("a root");
        let mut words = line.split(' ').skip_while(|word| *word != "rate");
        words
            .nth(1)
            .and_then(|rate| rate.parse::<Rate>().ok())
            .expect("a rate")
            .as_bytes_per_second()
    };
    until("a share of more than the floor", || (rate() > floor).then_some(()));
    // This stands for a batch of commands about devices that hang.
    let host = daemon.hub.host().lock().expect("no panic");
    fleet.redis = None;
    until("the floor", || (rate() == floor).then_some(()));
    drop(host);
}
