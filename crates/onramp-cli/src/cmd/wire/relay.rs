//! `onramp wire --relay`: a wire without any namespace.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::net::UnixStream;
use std::process::ExitStatus;
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};
use onramp_core::Setup;
use onramp_wire::{Change, Options, Relay};

use super::control::{self, Socket};
use super::{Args, Ending, programs};
use crate::error::{tell, usage};
use crate::limits;
use crate::output::Output;
use crate::report::wire as report;
use crate::signals::{Signals, code};

/// How often a command without a client looks whether the relay still works.
const LOOK: Duration = Duration::from_secs(1);

/// Runs the relay until the client ends or, without a client, until a signal comes.
pub(super) fn run(
    args: &Args,
    client: &[OsString],
    options: Options,
    [up, down]: [Vec<Change>; 2],
    output: Option<&Output>,
) -> Result<()> {
    limits::open_many_files();
    let signals = Signals::listen()?;
    if !args.quiet {
        for filter in blind(&[&options.up, &options.down]) {
            tell(&format!(
                "note: packets in a relay have no headers, which this filter matches: {filter}"
            ));
        }
    }
    let started = Relay::start(&args.relay, options);
    let relay = started.map_err(|error| anyhow!("--relay: {error}"))?;
    relay.change(up, down).map_err(|error| usage(format!("--set: {error}")))?;
    let addresses: Vec<_> = relay.addresses().iter().map(ToString::to_string).collect();
    if client.is_empty() || !args.quiet {
        for (address, entry) in addresses.iter().zip(&args.relay) {
            tell(&format!("{address} leads to {}", entry.target));
        }
    }
    let status = carry(&relay, client, &addresses.join(","), &signals);
    let broken = relay.error();
    let (carried, counts) = relay.stop();
    if output.is_some_and(Output::may_stall) {
        signals.end();
    }
    let code = status?.map(code);
    let text = || report::relay_text(&carried, &counts);
    let json = || report::relay_json(&carried, &addresses, &counts, code);
    let done = Vec::new();
    Ending { quiet: args.quiet, output, broken, done, code }.tell(text, json)
}

/// Kinds of filters, and of terms of the filter `basic`, that match the headers of packets.
const OF_HEADERS: [&str; 6] = ["u32", "flower", "flow", "bpf", "cmp", "nbyte"];

/// Returns the lines of the filters that match headers, each once: two directions may have the same
/// tree.
fn blind(trees: &[&Setup]) -> BTreeSet<String> {
    let lines = trees.iter().flat_map(|tree| tree.lines());
    let is_blind = |line: &String| {
        // A line that ends with the kind makes a table, and matches nothing yet.
        line.starts_with("filter ")
            && !line.ends_with(" u32")
            && line.split(' ').any(|word| OF_HEADERS.contains(&word))
    };
    lines.filter(is_blind).collect()
}

/// Lets the relay carry, and other commands change it. Returns how the client ended, if there is
/// one.
fn carry(
    relay: &Relay,
    client: &[OsString],
    addresses: &str,
    signals: &Signals,
) -> Result<Option<ExitStatus>> {
    let socket = Socket::open_or_tell(&control::folders());
    let path = socket.as_ref().map(Socket::path);
    let about = match client {
        [] => format!("the relay at {addresses}"),
        words => words.join(OsStr::new(" ")).to_string_lossy().into_owned(),
    };
    let (stop, stopped) = UnixStream::pair()?;
    thread::scope(|scope| {
        let stopped = &stopped;
        if let Some(socket) = &socket {
            let serve = || socket.serve(relay, &about, stopped);
            thread::Builder::new().name("control".to_owned()).spawn_scoped(scope, serve)?;
        }
        relay.begin();
        let ended = if client.is_empty() {
            while relay.error().is_none() && !signals.within(LOOK)? {}
            None
        } else {
            let mut client = programs::start_here(client, addresses, path)?;
            Some(signals.wait(&mut client.child)?)
        };
        drop(stop);
        Ok(ended)
    })
}
