//! Tests the output and the exit status of the program `onramp-differential`.

use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onramp-differential"));
    command.args(args).output().expect("it runs")
}

#[test]
fn without_the_kernel_it_says_so() {
    let output = run(&["--cases", "1", "--oracle", "/no/such/folder"]);
    assert_eq!(output.status.code(), Some(3));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        said,
        "differential: there is no program `run` that asks the kernel in /no/such/folder\n"
    );
}

#[test]
fn wrong_arguments_are_named() {
    let output = run(&["--kinds", "pfifo,fifo"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.starts_with("differential: unknown kind fifo; expected one of pfifo, bfifo"),
        "{said}"
    );
    assert_eq!(run(&["--cases", "many"]).status.code(), Some(2));
}

#[test]
fn cases_can_be_looked_at() {
    let output = run(&["--print", "--cases", "2", "--seed", "4", "--kinds", "tbf"]);
    assert!(output.status.success());
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("tc qdisc add dev dut0 root handle 1: tbf rate"), "{said}");
    assert_eq!(said.matches("# seed").count(), 2);
}
