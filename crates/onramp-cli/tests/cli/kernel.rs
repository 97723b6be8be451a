//! Tests of `onramp lab kernel`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use serde_json::Value;

use super::{assert_documented_keys, assert_fails, onramp, read_json, run, skip_kernel, stderr};

fn rows<'a>(document: &'a Value, path: &'a str) -> impl Iterator<Item = &'a Value> {
    let rows = document["rows"].as_array().expect("rows");
    rows.iter().filter(move |row| row["path"] == path)
}

/// `onramp lab kernel` measures the paths of the kernel and of Onramp, and its JSON has the
/// documented keys. If the kernel's path cannot be measured on this machine, `onramp lab kernel`
/// warns and measures only Onramp's path.
#[test]
fn both_paths_are_measured_and_documented() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("out.json");
    // `tc` accepts the qdisc `pfifo limit 0x1p3`, but Onramp does not.
    let qdiscs = "pfifo,pfifo limit 0x1p3,pfifo";
    let line = format!("lab kernel --seconds 0.3 --rounds 2 --cpus 1 --qdiscs '{qdiscs}'");
    let output = run(&format!("{line} --json {}", file.display()));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let document = read_json(&file);
    let heading = "onramp.lab.kernel";
    assert_eq!((&document["schema"], &document["version"]), (&heading.into(), &1.into()));
    assert_eq!(assert_documented_keys(&format!("## `{heading}`, version 1"), &document), 12);
    for row in document["rows"].as_array().expect("rows") {
        assert_eq!(assert_documented_keys(&format!("### Each row of `{heading}`"), row), 20);
        assert!(row["packets"].as_u64() > Some(0), "{row}");
    }
    let ours: Vec<_> = rows(&document, "onramp").map(|row| &row["qdisc"]).collect();
    assert_eq!(ours, ["none", "pfifo"]);
    let table = String::from_utf8(output.stdout.clone()).expect("a table is UTF-8");
    assert!(table.contains("onramp lacks pfifo limit 0x1p3: "), "{table}");
    if let Some(why) = document["why_no_device"].as_str() {
        assert!(stderr(&output).contains("warning: only Onramp's side"), "{}", stderr(&output));
        assert_eq!(rows(&document, "kernel").count(), 0);
        // The machine cannot measure the transmit path of its kernel, and `why` says why. In CI,
        // the reason must not be that a program is missing (`why` then tells the user to install it
        // with `apt-get`), because CI has all the programs. The reason may be that the machine's
        // kernel lacks something, such as network namespaces.
        assert!(std::env::var_os("CI").is_none() || !why.contains("apt-get"), "{why}");
        return skip_kernel(&format!("the kernel's side of the comparison: {why}"));
    }
    assert!(stderr(&output).is_empty(), "{}", stderr(&output));
    let theirs: Vec<_> = rows(&document, "kernel").map(|row| &row["qdisc"]).collect();
    assert_eq!(theirs, ["noqueue", "pfifo", "pfifo limit 0x1p3"]);
    let ratio = &document["ratios_to_kernel"][0];
    assert_eq!(assert_documented_keys("### Each of `ratios_to_kernel`", ratio), 6);
    assert!(ratio["packets_per_second"].as_f64() > Some(0.0), "{ratio}");
}

/// `onramp lab kernel` reports if a program that it needs does not work, and if there are fewer
/// processors than the user asks for.
#[test]
fn what_is_in_the_way_is_told() {
    let line = ["lab", "kernel", "--seconds", "0.02", "--rounds", "1", "--cpus", "1"];
    let folder = tempfile::tempdir().expect("a folder");
    let ip = folder.path().join("ip");
    fs::write(&ip, "#!/bin/sh\necho broken >&2\nexit 1\n").expect("it is new");
    fs::set_permissions(&ip, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let mut with_broken_ip: Command = onramp(line);
    let output = with_broken_ip.env("PATH", folder.path()).output().expect("the program runs");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let told = stderr(&output);
    assert!(told.contains("only Onramp's side is measured: "), "{told}");
    assert!(told.contains(": broken") || told.contains("unshare -Urn"), "{told}");
    let table = String::from_utf8(output.stdout).expect("a table is UTF-8");
    assert!(table.contains("onramp  pfifo "), "{table}");
    assert!(!table.contains("kernel  "), "{table}");

    let output = run("lab kernel --seconds 0.02 --rounds 1 --cpus 1,1024");
    assert_fails(&output, 2, &["--cpus 1024: ", "this process may use", "at most"]);
    let output = run("lab kernel --seconds 60 --cpus 1 --qdiscs nosuch");
    assert_fails(&output, 2, &["--qdiscs nosuch: neither", "expected a qdisc kind: pfifo, bfifo"]);
    assert_fails(&run("lab kernel --seconds 60 --qdiscs pfifo,"), 2, &["--qdiscs"]);
}
