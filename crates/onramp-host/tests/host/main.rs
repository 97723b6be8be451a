//! What a host answers to commands of `tc` and `ip`: texts, exit codes, events. iproute2 6.1 was
//! asked the same; where Onramp says more, its own sentence stands here.

mod configure;
mod ip;
mod tc;

use std::path::Path;

use onramp_host::{Host, Reply};

/// Does what a line says.
fn exec(host: &mut Host, line: &str) -> Reply {
    let words: Vec<&str> = line.split_whitespace().collect();
    host.exec(&words, Path::new("/"))
}

/// Does what the lines say, which is in order.
fn all(host: &mut Host, lines: &[&str]) {
    for line in lines {
        let reply = exec(host, line);
        assert_eq!((reply.code, &*reply.err), (0, ""), "{line}");
    }
}

/// What a line prints that is in order.
fn out(host: &mut Host, line: &str) -> String {
    let reply = exec(host, line);
    assert_eq!((reply.code, &*reply.err), (0, ""), "{line}");
    reply.out
}

/// What a line says that cannot be done: exit code and text.
fn refused(host: &mut Host, line: &str) -> (u8, String) {
    let reply = exec(host, line);
    assert_eq!(reply.out, "", "{line}");
    (reply.code, reply.err)
}
