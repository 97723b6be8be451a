//! Tests of the option `-batch`.

use std::fs;
use std::io::{Read, Write};

use super::*;

fn batch(daemon: &Daemon, line: &str, text: &str) -> Output {
    fs::write(daemon.folder.path().join("lines"), text).expect("a file");
    daemon.run(line)
}

#[test]
fn a_file_of_commands_is_done() {
    let daemon = Daemon::start();
    let text_ = "# devices\nlink add d0 type dummy\n\nlink add \\\n  d1 type dummy # the last\n";
    assert_said(&batch(&daemon, "ip -b lines", text_), 0, "");
    let shown = batch(&daemon, "ip -br -batch lines", "link show d1\nlink show d0\n");
    let names = |text: &str| text.lines().map(|line| line[..2].to_owned()).collect::<Vec<_>>();
    assert_eq!(names(&text(&shown.stdout)), ["d1", "d0"], "in order, with the options");
}

#[test]
fn the_first_error_ends_it_and_names_its_line() {
    let daemon = Daemon::start();
    let lines = "link add d0 type dummy\n\nlink del d7\nlink add d1 type dummy\n";
    let failed = "Cannot find device \"d7\"\nCommand failed lines:3\n";
    assert_said(&batch(&daemon, "ip -b lines", lines), 1, failed);
    assert_eq!(daemon.out("ip -br link").lines().count(), 1);
    let output = batch(&daemon, "ip -force -b lines", lines);
    let err = text(&output.stderr);
    assert!(err.contains("Command failed lines:1\n") && err.ends_with(failed), "{err}");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(daemon.out("ip -br link").lines().count(), 2, "-force goes on");
    let missing = "Cannot open file \"nothing\" for reading: No such file or directory\n";
    assert_said(&daemon.run("ip -b nothing"), 1, missing);
}

/// As with `tc`, a line that does not end is not executed, and ends the batch also with `-force`;
/// the commands before it are executed.
#[test]
fn a_line_that_does_not_end_is_refused() {
    let daemon = Daemon::start();
    for (number, (end, why)) in [
        ("link del 'd0\n", "Unterminated quoted string"),
        ("link del d0 \\\n", "Missing continuation line"),
    ]
    .into_iter()
    .enumerate()
    {
        let lines = format!("link add d{number} type dummy\n{end}");
        let output = batch(&daemon, "ip -force -b lines", &lines);
        let err = text(&output.stderr);
        let place = format!("onramp: cannot read lines:2: {why}: ");
        assert!(output.status.code() == Some(1) && err.starts_with(&place), "{err}");
        assert_eq!(daemon.out("ip -br link").lines().count(), number + 1);
    }
}

/// Commands that a user types into standard input line by line are executed one by one, as soon as
/// each line is complete.
#[test]
fn standard_input_is_not_waited_for() {
    let daemon = Daemon::start();
    let mut command = daemon.command("ip -br -b -");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    let (mut input, output) = (child.stdin.take().expect("in"), child.stdout.take().expect("out"));
    let mut output = BufReader::new(output);
    for number in 0..3 {
        let lines = format!("link add d{number} type dummy\nlink show d{number}\n");
        input.write_all(lines.as_bytes()).expect("it reads");
        let mut line = String::new();
        output.read_line(&mut line).expect("it writes");
        assert!(line.starts_with(&format!("d{number} ")), "{line}");
    }
    drop(input);
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("the end");
    assert_eq!((rest.as_str(), child.wait().expect("it ends").code()), ("", Some(0)));
}

/// A batch with more lines than fit into one request to the daemon is executed.
#[test]
fn ten_thousand_lines_are_done() {
    let daemon = Daemon::start();
    daemon.out("ip link add d0 type dummy");
    let lines: String = (0..10_000).map(|n| format!("link set d0 mtu {}\n", 1_000 + n)).collect();
    assert_said(&batch(&daemon, "ip -b lines", &lines), 0, "");
    assert!(daemon.out("ip link").contains(" mtu 10999 "));
    let mut wrong = lines.clone();
    wrong.push_str("link set d0 mtu 1\n");
    let output = batch(&daemon, "ip -b lines", &wrong.replace("mtu 1\n", "mtu -1\n"));
    let err = text(&output.stderr);
    assert!(err.ends_with("Command failed lines:10001\n"), "{err}");
}
