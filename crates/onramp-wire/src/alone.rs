//! Tests that need a network of their own, run by the usual test harness.

use std::any::type_name;
use std::env;
use std::process::{Command, exit};

use crate::space::{SpaceError, may_make_namespaces};

/// Environment variable with the name of the test that a process is to run.
const INSIDE: &str = "ONRAMP_WIRE_TEST";
/// Exit code of a process whose test has passed. 0 would also mean that there is no such test.
const PASSED: i32 = 77;

/// Runs the body of a `#[test]` in a process of its own, in which it is root of a user namespace
/// and can [lay wires](crate::Wire::lay), also if an ordinary user runs the tests. What the test
/// makes there, the kernel removes when the process ends, however it ends.
///
/// Give it a closure that is written in the test function itself: its type tells the test's name.
/// The harness is run again for this test alone, so that everything happens in an ordinary test; a
/// harness with threads cannot enter a user namespace itself.
///
/// ```no_run
/// use std::process::Command;
///
/// use onramp_wire::{Options, Wire, alone, series};
///
/// #[test]
/// fn the_client_survives_a_slow_link() {
///     alone(|| {
///         let slow = series(&["netem delay 200ms rate 100kbit"]).expect("a qdisc");
///         let options = Options { up: slow.clone(), down: slow, seed: 1, ..Options::default() };
///         let wire = Wire::lay(options).expect("a wire");
///         let mut ping = Command::new("ping");
///         ping.args(["-c1", "192.0.2.2"]);
///         assert!(wire.client().spawn(ping).expect("ping").wait().expect("it ends").success());
///     });
/// }
/// ```
///
/// # Panics
///
/// Panics if the body does, if the closure does not stand in a test function, and if the kernel
/// allows no namespaces: the text says how to allow them.
pub fn alone<F: FnOnce()>(body: F) {
    let name = test_name(type_name::<F>());
    if env::var(INSIDE).is_ok_and(|inside| inside == name) {
        body();
        exit(PASSED);
    }
    let this = env::current_exe().expect("a running test has a file");
    let mut command = Command::new(this);
    // Behind `--nocapture`, the harness of the other process hides nothing.
    command.args(["--exact", name, "--nocapture", "--include-ignored"]).env(INSIDE, name);
    if !may_make_namespaces() {
        onramp_dev::enter_child(&mut command);
    }
    onramp_dev::tie_child(&mut command);
    let ended = command.spawn().map_err(SpaceError::child).map(|mut child| child.wait());
    let status = ended.unwrap_or_else(|error| panic!("{error}")).expect("it is a child");
    match status.code() {
        Some(PASSED) => {}
        Some(0) => panic!("{name} is no test: call `alone` with a closure in the test itself"),
        _ => panic!("{name} failed in its process: {status}"),
    }
}

/// Returns the name of the test function in which a closure of this type stands, as the harness
/// knows it: without the crate.
fn test_name(closure: &str) -> &str {
    let function = closure.split("::{{closure}}").next().unwrap_or(closure);
    function.split_once("::").map_or(function, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_that_of_the_function() {
        for (closure, name) in [
            ("tests::a_test::{{closure}}", "a_test"),
            ("lib::part::tests::a_test::{{closure}}", "part::tests::a_test"),
            ("lib::a_test::{{closure}}::{{closure}}", "a_test"),
        ] {
            assert_eq!(test_name(closure), name, "{closure}");
        }
    }
}
