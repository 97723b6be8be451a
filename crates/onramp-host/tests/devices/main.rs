//! Devices of a host: what `ip` shows of them, and which packets they carry.

mod carry;
mod configure;
mod detour;
mod ends;
mod events;
mod front;
mod ip;
mod kernel;
mod pcap;
mod reference;
mod relay;
mod roots;
mod steps;
mod tc;
mod unasked;
mod words;

use std::path::Path;

use onramp_host::Host;
use onramp_host::Reply;

/// Carries out a command on the host.
fn exec(host: &mut Host, line: &str) -> Reply {
    let words: Vec<&str> = line.split_whitespace().collect();
    host.exec(&words, Path::new("/"))
}

/// Makes a host, and carries out commands that must succeed.
fn host(lines: &[&str]) -> Host {
    let mut host = Host::new();
    for line in lines {
        assert_eq!(exec(&mut host, line), Reply::default(), "{line}");
    }
    host
}

/// Carries out a command that must succeed, and returns its output.
fn out(host: &mut Host, line: &str) -> String {
    let Reply { code, out, err } = exec(host, line);
    assert_eq!((code, err.as_str()), (0, ""), "{line}");
    out
}
