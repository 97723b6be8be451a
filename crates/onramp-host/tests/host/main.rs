//! What a host answers to commands of `tc` and `ip`: texts, exit statuses and events. The expected
//! answers are those of iproute2 6.1, with Onramp's own sentence where Onramp explains more.

mod configure;
mod fleet;
mod ip;
mod own;
mod save;
mod tc;

use std::path::Path;

use onramp_host::{Host, Reply};

/// Carries out a command on the host.
fn exec(host: &mut Host, line: &str) -> Reply {
    let words: Vec<&str> = line.split_whitespace().collect();
    host.exec(&words, Path::new("/"))
}

/// Carries out commands that must succeed.
fn all(host: &mut Host, lines: &[&str]) {
    for line in lines {
        let reply = exec(host, line);
        assert_eq!((reply.code, &*reply.err), (0, ""), "{line}");
    }
}

/// Carries out a command that must succeed, and returns its output.
fn out(host: &mut Host, line: &str) -> String {
    let reply = exec(host, line);
    assert_eq!((reply.code, &*reply.err), (0, ""), "{line}");
    reply.out
}

/// Carries out a command that must fail, and returns its exit status and error text.
fn refused(host: &mut Host, line: &str) -> (u8, String) {
    let reply = exec(host, line);
    assert_eq!(reply.out, "", "{line}");
    (reply.code, reply.err)
}
