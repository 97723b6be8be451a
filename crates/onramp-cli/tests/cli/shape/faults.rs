//! Interfaces that change, rights that are missing, and commands that are killed.

use std::fs;

use super::{assert_ok, in_network};

/// The command tells that an interface goes down, comes up, or gets another MTU; it does not start
/// with one that is down.
#[test]
fn changes_of_an_interface_are_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = "\
shape
ip link set eth1 mtu 1400
until grep -q 'the MTU of eth1 is 1400 now, and was 1500' told; do sleep 0.1; done
ip link set eth1 mtu 1500
until grep -q 'the MTU of eth1 is 1500 again' told; do sleep 0.1; done
ip link set eth1 down
until grep -q 'eth1 is down: ' told; do sleep 0.1; done
ip link set eth1 up
until grep -q 'eth1 is up again' told; do sleep 0.1; done
client ping -c1 -W9 192.0.2.2 || client ping -c3 -W5 192.0.2.2
ip link set eth1 down
ip link set eth1 name other
until grep -q 'there is no interface eth1 any more' told; do sleep 0.1; done
finish
ip link set other name eth1
\"$ONRAMP\" shape eth0 eth1 2> refused && exit 6
cat refused >&2
";
    let Some(output) = in_network(folder.path(), 1_500, script) else { return };
    assert_ok(folder.path(), &output);
    let told = crate::stderr(&output);
    assert!(told.contains("eth1 is down: set it up with `ip link set eth1 up`"), "{told}");
}

/// A pipe for the JSON may never have a reader: a second signal ends the command.
#[test]
fn a_pipe_without_a_reader_does_not_hold_the_command() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = "\
mkfifo fifo
\"$ONRAMP\" shape eth0 eth1 --json fifo 2> told &
shaper=$!
until grep -q 'onramp: shaping' told; do sleep 0.02; done
kill $shaper
until grep -q 'egress: ' told; do sleep 0.02; done
while kill $shaper 2> /dev/null; do sleep 0.1; done
code=0
wait $shaper || code=$?
test $code = 143
";
    let Some(output) = in_network(folder.path(), 1_500, script) else { return };
    assert_ok(folder.path(), &output);
}

/// A terminal has a line with the rate of each direction, which is written anew each second.
#[test]
fn a_terminal_has_a_live_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = "\
script -qefc \"timeout --foreground -s TERM 6 $ONRAMP shape eth0 eth1\" typed > /dev/null &
shaper=$!
until grep -q 'onramp: shaping' typed; do
    kill -0 $shaper || exit 9
    sleep 0.02
done
client ping -q -i0.05 -c60 192.0.2.2
wait $shaper || true
grep -aqE 'egress [0-9.]+ [kM]bit/s, [1-9][0-9]* pps, 0 drops' typed
";
    let Some(output) = in_network(folder.path(), 1_500, script) else { return };
    assert_ok(folder.path(), &output);
}

/// AF_XDP ends with the command, also if it is killed. Where too little memory may be locked,
/// packet sockets take its place.
#[test]
fn af_xdp_ends_with_the_command_and_has_a_substitute() {
    let folder = tempfile::tempdir().expect("a folder");
    let poor = "\
#!/bin/sh
exec prlimit --memlock=1048576 setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock \
    \"$REAL\" \"$@\"
";
    fs::write(folder.path().join("poor"), poor).expect("a file");
    let script = "\
for n in 1 2 3; do
    shape --device xdp
    grep 'packet socket takes' told && exit 6
    ip -d link show eth0 | grep -q prog/xdp
    kill -9 $shaper
    wait $shaper || true
    for name in eth0 eth1; do
        while ip -d link show $name | grep prog/xdp; do sleep 0.02; done
        until ip -d link show $name | grep -q 'promiscuity 0'; do sleep 0.02; done
    done
done
chmod +x poor
export REAL=$ONRAMP
ONRAMP=$PWD/poor
shape --device xdp
ip -d link show eth0 | grep prog/xdp && exit 7
client ping -c2 -i0.2 -W5 192.0.2.2
finish
cat told >&2
";
    let Some(output) = in_network(folder.path(), 1_500, script) else { return };
    assert_ok(folder.path(), &output);
    let told = crate::stderr(&output);
    assert_eq!(told.matches("ulimit -l").count(), 2, "{told}");
    assert_eq!(told.matches("a packet socket takes its place").count(), 2, "{told}");
}
