//! Executes a client's requests on a host.

use onramp_host::Host;
use onramp_host::Reply;
use tracing::debug;

use crate::wire::{self, Asked, Command, Request, Said};

/// Executes the request in `line` at once and returns the reply. The caller must own the host
/// alone; the daemon itself lets its clients use the host one after another, through its
/// [`Hub`](crate::Hub).
#[must_use]
pub fn answer(host: &mut Host, line: &[u8]) -> Vec<u8> {
    match wire::parse(line) {
        Err(wrong) => wire::refusal(wrong.id, &wrong.why),
        Ok(Asked { id, request: Request::Exec(command) }) => wire::reply(id, &exec(host, &command)),
        Ok(Asked { id, request: Request::Batch { commands, force } }) => {
            let mut said = Said::default();
            let _ = exec_some(host, &commands, force, &mut said);
            said.reply(id)
        }
        Ok(Asked { id, request: Request::Watch(what, _) }) => {
            wire::refusal(id, &format!("{what:?} can be watched only at the daemon's socket"))
        }
        Ok(Asked { id, request: Request::Traffic(_) }) => {
            wire::refusal(id, "traffic can be sent only at the daemon's socket")
        }
    }
}

pub(crate) fn exec(host: &mut Host, Command { argv, folder }: &Command) -> Reply {
    let words: Vec<&str> = argv.iter().map(String::as_str).collect();
    let reply = host.exec(&words, folder);
    debug!("{} -> {}", argv.join(" "), reply.code);
    reply
}

/// Executes commands until one fails or all are done. Returns false if the remaining commands of
/// the batch must not be tried, because one failed without `force`, or because `said` is full.
pub(crate) fn exec_some(
    host: &mut Host,
    commands: &[Command],
    force: bool,
    said: &mut Said,
) -> bool {
    for command in commands {
        if said.is_full() {
            said.refuse();
            return false;
        }
        let reply = exec(host, command);
        said.add(&reply);
        if reply.code != 0 && !force {
            return false;
        }
    }
    true
}
