//! The daemon as its own process: its signals, its messages to a service manager, and its default
//! socket path. The process is this test program, started with the name of one of its tests.

use std::fmt::{Debug, Write as _};
use std::fs;
use std::io::Lines;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use onramp_daemon::client::Client;
use onramp_daemon::{default_path, find_path, serve};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};

use super::*;

/// Environment variable that tells this test program, when a test starts it as a second process,
/// what to do there (its role): "paths" prints socket paths; otherwise the process is a daemon, and
/// the value may be the path of its configuration, or "web" for a daemon that serves the web page.
const ROLE: &str = "ONRAMP_TEST_ROLE";
/// Environment variable with the most files that the second process may open; without it, the
/// process may raise its limit.
const FILES: &str = "ONRAMP_TEST_FILES";

/// Writes the daemon's log messages to standard error, one per line.
struct Log;

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            write!(self.0, "{value:?}").expect("a string takes all");
        }
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        // An error means that nobody reads standard error any more, so it is ignored.
        let _ = writeln!(std::io::stderr(), "{} {}", event.metadata().level(), message.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The code that the second process runs, not a test of its own: the tests of this file start this
/// test program again and let it run only this function. Unless the environment variable in `ROLE`
/// is set, the function does nothing.
#[test]
fn the_process() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    if role == "paths" {
        let paths = format!("[{}] [{}]\n", find_path().display(), default_path().display());
        std::io::stdout().write_all(paths.as_bytes()).expect("somebody reads");
        return;
    }
    tracing::subscriber::set_global_default(Log).expect("it is the first");
    let metrics = (role == "web").then(|| ([127, 0, 0, 1], 0).into());
    let config = Some(PathBuf::from(role)).filter(|path| path.is_absolute());
    serve::run(Options { config, metrics, ..Options::default() }).expect("it begins");
}

/// Prepares the start of this program as another process with a low limit of open files. Removes
/// the environment variables that change what a daemon does, and then sets the given `variables`.
fn process(role: &str, variables: &[(&str, &str)]) -> Command {
    let own = std::env::current_exe().expect("it runs");
    // If the tests run in the background of a shell, they ignore SIGINT; the daemon must not.
    let mut command = Command::new("/usr/bin/env");
    let limited =
        format!("ulimit -Sn 200; test -z \"${FILES}\" || ulimit -n ${FILES}; exec \"$0\" \"$@\"");
    command.args(["--default-signal=HUP,INT,TERM", "sh", "-c", &limited]).arg(own);
    command.args(["--exact", "process::the_process", "--nocapture"]);
    for name in ["ONRAMP_SOCKET", "XDG_RUNTIME_DIR", "NOTIFY_SOCKET"] {
        command.env_remove(name);
    }
    command.env(ROLE, role).envs(variables.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A daemon in another process, with its socket in a directory, with its log, and with the socket
/// on which the test receives the daemon's messages to the service manager.
struct Managed {
    child: Child,
    log: Lines<BufReader<ChildStderr>>,
    manager: UnixDatagram,
    socket: PathBuf,
}

impl Managed {
    fn start(folder: &Path, role: &str, manager: UnixDatagram, notify: &str) -> Self {
        Self::limited(folder, role, manager, notify, "")
    }

    /// Starts a daemon that may open at most `files` files.
    fn limited(
        folder: &Path,
        role: &str,
        manager: UnixDatagram,
        notify: &str,
        files: &str,
    ) -> Self {
        manager.set_read_timeout(Some(PATIENCE)).expect("a time");
        let runtime = folder.to_str().expect("a plain name");
        let variables = [("XDG_RUNTIME_DIR", runtime), ("NOTIFY_SOCKET", notify), (FILES, files)];
        let mut child = process(role, &variables).spawn().expect("a shell");
        let log = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        Self { child, log, manager, socket: folder.join("onramp.sock") }
    }

    fn heard(&self) -> String {
        let mut some = [0; 200];
        let count = self.manager.recv(&mut some).expect("it says something");
        String::from_utf8_lossy(&some[..count]).into_owned()
    }

    /// Returns the next line of the log that contains `what`.
    #[track_caller]
    fn logged(&mut self, what: &str) -> String {
        let mut lines = self.log.by_ref().map(|line| line.expect("text"));
        lines.find(|line| line.contains(what)).unwrap_or_else(|| panic!("it never says {what:?}"))
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a number");
        kill_process(pid, signal).expect("it lives");
    }

    fn devices(&self) -> String {
        let mut client = Client::connect(&self.socket).expect("it listens");
        client.exec(&["ip", "-br", "link"], "/").expect("it answers").out
    }

    /// Sends a signal to the daemon, and checks that the daemon shuts down cleanly.
    #[track_caller]
    fn ends(mut self, signal: Signal, name: &str) {
        self.signal(signal);
        assert_eq!(self.heard(), "STOPPING=1");
        self.logged(&format!("INFO {name}"));
        self.logged("INFO ended");
        assert!(self.child.wait().expect("it ends").success());
        assert!(!self.socket.exists());
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        // If the test has passed, the process has already ended, and killing it fails.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the monotonic time in microseconds; a service manager uses the same clock.
fn now_us() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
}

#[test]
fn a_service_manager_hears_what_it_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let (notify, config) = (folder.path().join("notify"), folder.path().join("config"));
    let write = |lines: &str| fs::write(&config, lines).expect("a file");
    write("ip link add d0 type dummy\n");
    let manager = UnixDatagram::bind(&notify).expect("it binds");
    let role = config.to_str().expect("a plain name").to_owned();
    let mut daemon =
        Managed::start(folder.path(), &role, manager, notify.to_str().expect("a plain name"));
    assert_eq!(daemon.heard(), "READY=1");
    daemon.logged(&format!("INFO {role}: carried out all of it, in 1 step"));
    daemon.logged(&format!("INFO listening at {}", daemon.socket.display()));
    assert!(daemon.devices().starts_with("d0 "));
    // The daemon was started with a low limit of open files, and has raised it to the maximum.
    let limits = format!("/proc/{}/limits", daemon.child.id());
    let limits = fs::read_to_string(limits).expect("it lives");
    let files = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
    let [soft, hard]: [&str; 2] =
        files.split_whitespace().skip(3).take(2).collect::<Vec<_>>().try_into().expect("two");
    assert_eq!(soft, hard);

    let reload = |daemon: &mut Managed, says: &str| {
        let before = now_us();
        daemon.signal(Signal::HUP);
        let heard = daemon.heard();
        let time = heard.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").expect("it reloads");
        let time: i64 = time.parse().expect("a number");
        assert!((before..=now_us()).contains(&time), "{before} {time}");
        assert_eq!(daemon.heard(), "READY=1");
        daemon.logged(says)
    };
    reload(&mut daemon, &format!("INFO SIGHUP: {role}: nothing has changed"));
    write("ip link add d0 type dummy\nip link add d1 type dummy\n");
    reload(&mut daemon, &format!("INFO SIGHUP: {role}: carried out all of it, in 1 step"));
    assert!(daemon.logged("INFO SIGHUP: ").contains("d1"));
    assert!(daemon.devices().contains("\nd1 "));
    write("ip link add d0 type dummy\nip link add d1 type unheard-of\n");
    let told = reload(&mut daemon, "ERROR SIGHUP: the devices stay as they were: ");
    assert!(told.contains(&format!("{role}:2: ")), "{told}");
    assert!(daemon.devices().contains("\nd1 "));
    // A capture cannot be made again in its file once a new device has needed the file.
    let capture = folder.path().join("c.pcapng").display().to_string();
    write(&format!("ip link add d0 type dummy\nip link add c0 type pcap file {capture}\n"));
    reload(&mut daemon, &format!("INFO SIGHUP: {role}: carried out all of it, in 2 steps"));
    write(&format!(
        "ip link add d0 type dummy\nip link add c0 type pcap replace {capture} read {capture}\n"
    ));
    let told = reload(&mut daemon, "ERROR SIGHUP: not all devices are as they were: ");
    let lost = told.contains("; c0 could not be restored: RTNETLINK answers: File exists: ");
    assert!(told.contains(&format!("{role}:2: ")) && lost, "{told}");
    let devices = daemon.devices();
    // An address may end with `c0`.
    assert!(devices.starts_with("d0 ") && !devices.contains("\nc0 "), "{devices}");
    daemon.ends(Signal::TERM, "SIGTERM");
}

/// The daemon has no configuration file, so at SIGHUP it only writes a log message. The address of
/// the service manager's socket is an abstract name here.
#[test]
fn without_a_configuration_there_is_nothing_to_reload() {
    let folder = tempfile::tempdir().expect("a folder");
    let name = format!("onramp-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("a name");
    let manager = UnixDatagram::bind_addr(&address).expect("it binds");
    let mut daemon = Managed::start(folder.path(), "daemon", manager, &format!("@{name}"));
    assert_eq!(daemon.heard(), "READY=1");
    daemon.signal(Signal::HUP);
    daemon.logged("INFO SIGHUP: nothing to read, because the daemon was started without --config");
    assert_eq!(daemon.devices(), "");
    // The reload caused no message to the service manager: the next message is the one that the
    // daemon is ending.
    daemon.ends(Signal::INT, "SIGINT");
}

/// Idle clients of the web page leave file descriptors for the control socket and the devices, and
/// the log says once that no descriptor is left for clients of the control socket, and once that
/// there is one again.
#[test]
fn idle_clients_leave_files_for_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let notify = folder.path().join("notify");
    let manager = UnixDatagram::bind(&notify).expect("it binds");
    let notify = notify.to_str().expect("a plain name");
    let mut daemon = Managed::limited(folder.path(), "web", manager, notify, "64");
    assert_eq!(daemon.heard(), "READY=1");
    let line = daemon.logged("INFO metrics at http://");
    let address = line.split(['/', ' ']).find(|word| word.starts_with("127.")).expect("an address");
    let connect = |_| std::net::TcpStream::connect(address).expect("it listens");
    let web: Vec<_> = (0..100).map(connect).collect();
    // The daemon accepts clients in turn, so when it has closed the last one for want of a place,
    // it has seen them all.
    web[99].set_read_timeout(Some(PATIENCE)).expect("a time");
    assert_eq!((&web[99]).read(&mut [0]).expect("it is closed"), 0);
    let mut client = Client::connect(&daemon.socket).expect("it listens");
    for number in 0..3 {
        let name = format!("u{number}");
        let add = format!("ip link add {name} type udp local 127.0.0.1:0 remote 127.0.0.1:9");
        let add: Vec<&str> = add.split(' ').collect();
        let reply = client.exec(&add, "/").expect("it answers");
        assert_eq!((reply.code, reply.err.as_str()), (0, ""), "{name}");
    }
    let connect = |_| UnixStream::connect(&daemon.socket).expect("it listens");
    let crowd: Vec<_> = (0..64).map(connect).collect();
    daemon.logged("WARN cannot accept clients of the control socket: Too many open files");
    drop((crowd, web));
    daemon.logged("INFO accepts clients of the control socket again");
    assert_eq!(client.exec(&["ip", "-br", "link", "show", "u2"], "/").expect("it answers").code, 0);
    drop(client);
    daemon.ends(Signal::TERM, "SIGTERM");
}

/// The path of the socket is `$ONRAMP_SOCKET`; if that is not set, the socket is in
/// `$XDG_RUNTIME_DIR`, or else at the system's default path.
#[test]
fn the_socket_is_where_the_environment_says() {
    let system = "/run/onramp/onramp.sock";
    for (variables, found, default) in [
        (&[("ONRAMP_SOCKET", "/a/b"), ("XDG_RUNTIME_DIR", "/x")][..], "/a/b", "/x/onramp.sock"),
        (&[("ONRAMP_SOCKET", ""), ("XDG_RUNTIME_DIR", "/x")], "/x/onramp.sock", "/x/onramp.sock"),
        (&[("XDG_RUNTIME_DIR", "x/y")], system, system),
        (&[("XDG_RUNTIME_DIR", "")], system, system),
        (&[("ONRAMP_SOCKET", "here")], "here", system),
    ] {
        let output = process("paths", variables).output().expect("a shell");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains(&format!("[{found}] [{default}]\n")), "{variables:?}: {said}");
    }
}
