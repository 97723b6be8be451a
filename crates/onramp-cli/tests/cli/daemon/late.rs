//! Tests of what the daemon says about threads that come too late to send.

use super::*;

/// With `--catch-up 0`, any lateness is lost, so the daemon soon warns, once for the device.
#[test]
fn lost_time_is_warned_of() {
    let daemon = Daemon::with(|command| {
        command.args(["--catch-up", "0"]);
    });
    daemon.out("ip link add d0 up type dummy");
    daemon.out("ip link add d1 up type dummy");
    daemon.out("tc qdisc add dev d0 root tbf rate 1mbit burst 2kb limit 10mb");
    daemon.out("traffic d0 --rate 2mbit --seconds 0.5 --json out.json");
    let told = daemon.logged(&["WARN", "shapers have lost"]);
    assert!(told.contains(" d0: ") && told.contains("(--catch-up)"), "{told}");
    let output = daemon.run("daemon --catch-up 1001");
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("a whole number, 0 to 1000, without"),
        "{}",
        text(&output.stderr)
    );
    let output = daemon.run("daemon --slack 1000001");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("a whole number, 0 to 1000000, without"), "{output:?}");
}
