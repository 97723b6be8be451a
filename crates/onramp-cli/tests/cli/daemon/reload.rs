//! Tests of the daemon's configuration file, and of SIGHUP, which makes the daemon read the file
//! again.

use std::fs;

use super::*;

/// Starts a daemon with the configuration `lines`, and waits for the log line that says that it is
/// ready. Waiting for the socket file would not be enough, because the file exists before the
/// daemon has executed the configuration.
fn configured(lines: &str) -> Daemon {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("config"), lines).expect("a file");
    let daemon = Daemon::within(folder, |command| {
        command.args(["--config", "config"]);
    });
    daemon.logged(&["listening at"]);
    daemon
}

fn reload(daemon: &Daemon, lines: &str) {
    fs::write(daemon.folder.path().join("config"), lines).expect("a file");
    daemon.signal(Signal::HUP);
}

#[test]
fn a_configuration_is_followed_and_what_changes_is_logged() {
    let base = "# devices\nip link add d0 up type dummy\n\
                tc qdisc add dev d0 root handle 1: pfifo limit 7\n";
    let daemon = configured(base);
    assert!(daemon.out("tc qdisc show dev d0").contains("qdisc pfifo 1: root"));
    reload(&daemon, &base.replace("limit 7", "limit 9"));
    daemon.logged(&["SIGHUP", "config"]);
    daemon.logged(&["limit 9"]);
    assert!(daemon.out("tc qdisc show dev d0").contains("limit 9p"));
    // If the daemon reads an unchanged configuration again, it changes nothing.
    reload(&daemon, &base.replace("limit 7", "limit 9"));
    daemon.logged(&["SIGHUP", "nothing has changed"]);
}

#[test]
fn a_configuration_that_is_wrong_changes_nothing() {
    let base = "ip link add d0 up type dummy\n";
    let daemon = configured(base);
    let before = (daemon.out("ip -d link"), daemon.out("tc qdisc show"));
    let wrong = format!("{base}ip link add d1 type dummy\ntc qdisc add dev d1 root nonsense\n");
    reload(&daemon, &wrong);
    let words = ["SIGHUP", "the devices stay as they were", "config:3: ", "unknown: ", "nonsense"];
    daemon.logged(&words);
    assert_eq!((daemon.out("ip -d link"), daemon.out("tc qdisc show")), before);
    // After a wrong configuration the daemon keeps running, and it accepts the next correct one.
    reload(&daemon, "ip link add d0 up type dummy\nip link add d1 type dummy\n");
    daemon.logged(&["SIGHUP", "d1"]);
    assert!(daemon.out("ip -br link show d1").starts_with("d1 "));
}

#[test]
fn a_daemon_does_not_begin_with_what_is_wrong() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("config");
    fs::write(&file, "ip link add d0 type dummy\nip link add d0 type dummy\n").expect("a file");
    let mut command = onramp(["daemon", "--config"]);
    command.arg(&file).arg("--socket").arg(folder.path().join("s"));
    let output = command.output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("config:2: "), "{}", text(&output.stderr));
}

#[test]
fn a_pipe_in_the_place_of_the_file_stops_nothing() {
    let daemon = configured("ip link add d0 type dummy\n");
    let file = daemon.folder.path().join("config");
    fs::remove_file(&file).expect("it is there");
    let made = Command::new("mkfifo").arg(&file).status();
    assert!(made.is_ok_and(|status| status.success()));
    daemon.signal(Signal::HUP);
    daemon.logged(&["the devices stay as they were", "not a regular file"]);
    assert!(daemon.out("ip -br link show d0").starts_with("d0 "));
}

/// What `save` prints is a configuration that makes the same devices in another daemon.
#[test]
fn a_saved_configuration_makes_the_same_devices() {
    let daemon = Daemon::start();
    for line in [
        "ip link add d0 up type dummy",
        "ip link add d1 type dummy",
        "tc qdisc add dev d0 root handle 1: htb default 10",
        "tc class add dev d0 parent 1: classid 1:10 htb rate 1mbit",
        "tc filter add dev d0 parent 1: protocol ip prio 1 handle 5 fw classid 1:10",
    ] {
        assert_eq!(daemon.out(line), "", "{line}");
    }
    let saved = daemon.out("save");
    let other = configured(&saved);
    for line in [
        "tc -j qdisc show",
        "tc -j class show dev d0",
        "tc -j filter show dev d0 parent 1:",
        "save",
        "save dev d0",
    ] {
        assert_eq!(other.out(line), daemon.out(line), "{line}");
    }
    assert!(!daemon.out("save dev d0").contains("d1"));
    let none = daemon.run("save dev none");
    assert_said(&none, 1, "onramp: Cannot find device \"none\"\n");
    assert_eq!(daemon.run("save none").status.code(), Some(2));
}

/// A reader that has closed the pipe needs no more of the configuration; a full disk is an error.
#[test]
fn a_configuration_that_cannot_be_written_is_told_unless_its_reader_has_gone() {
    let daemon = Daemon::start();
    assert_eq!(daemon.out("ip link add d0 type dummy"), "");
    let save = |to: Stdio| {
        let mut command = onramp(["save"]);
        command.env("ONRAMP_SOCKET", daemon.path()).stdin(Stdio::null()).stdout(to);
        command.stderr(Stdio::piped()).output().expect("it runs")
    };
    let (reader, closed) = std::io::pipe().expect("a pipe");
    drop(reader);
    assert_said(&save(closed.into()), 0, "");
    let full = fs::File::options().write(true).open("/dev/full").expect("Linux has it");
    let why = "onramp: cannot write to standard output: No space left on device (os error 28)\n";
    assert_said(&save(full.into()), 1, why);
}

/// A relay whose port the kernel chose keeps its socket, and with it its clients.
#[test]
fn a_relay_stays_where_its_clients_find_it() {
    let lines =
        "ip link add u0 up type udp local 127.0.0.1 remote 127.0.0.1:9 listen 127.0.0.1:0\n";
    let daemon = configured(lines);
    let before = daemon.out("ip -d link show u0");
    assert!(before.contains("listen 127.0.0.1:") && !before.contains("listen 127.0.0.1:0 "));
    reload(&daemon, lines);
    daemon.logged(&["SIGHUP", "nothing has changed"]);
    assert_eq!(daemon.out("ip -d link show u0"), before);
    reload(&daemon, &format!("{lines}ip link add d0 type dummy\n"));
    daemon.logged(&["SIGHUP: ip link add dev d0 "]);
    assert_eq!(daemon.out("ip -d link show u0"), before);
}
