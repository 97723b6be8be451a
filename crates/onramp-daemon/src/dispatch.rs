//! What a request does to a host.

use onramp::Host;
use onramp::host::Reply;
use tracing::debug;

use crate::wire::{self, Asked, Command, Request};

/// Does what a line asks for, all at once, and gives the reply. The daemon does the same in turns.
#[must_use]
pub fn answer(host: &mut Host, line: &[u8]) -> Vec<u8> {
    match wire::parse(line) {
        Err(wrong) => wire::refusal(wrong.id, &wrong.why),
        Ok(Asked { id, request: Request::Exec(command) }) => wire::reply(id, &exec(host, &command)),
        Ok(Asked { id, request: Request::Batch { commands, force } }) => {
            let replies = exec_some(host, &commands, force);
            let tried = replies.len();
            wire::batch_reply(id, tried, &said(0, replies))
        }
        Ok(Asked { id, request: Request::Watch(what, _) }) => {
            wire::refusal(id, &format!("{what:?} is watched at the daemon's socket alone"))
        }
    }
}

pub(crate) fn exec(host: &mut Host, Command { argv, folder }: &Command) -> Reply {
    let words: Vec<&str> = argv.iter().map(String::as_str).collect();
    let reply = host.exec(&words, folder);
    debug!("{} -> {}", argv.join(" "), reply.code);
    reply
}

/// Does commands up to the first that fails, or all.
pub(crate) fn exec_some(host: &mut Host, commands: &[Command], force: bool) -> Vec<Reply> {
    let mut replies = Vec::new();
    for command in commands {
        let reply = exec(host, command);
        let failed = reply.code != 0;
        replies.push(reply);
        if failed && !force {
            break;
        }
    }
    replies
}

/// Of commands from the one numbered `first` on, those that said something or failed.
pub(crate) fn said(first: usize, replies: Vec<Reply>) -> Vec<(usize, Reply)> {
    let numbered = replies.into_iter().enumerate().map(|(place, reply)| (first + place, reply));
    numbered.filter(|(_, reply)| *reply != Reply::default()).collect()
}
