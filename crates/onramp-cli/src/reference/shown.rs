//! Finds out how `tc` lists a qdisc that was added without options.

use std::path::Path;

use onramp_host::Host;
use serde_json::Value;

/// How `tc qdisc show` shows a qdisc.
pub(super) struct Shown {
    /// The options as `tc` prints them.
    pub(super) text: String,
    /// The keys in the object `options` of the JSON output.
    pub(super) keys: Vec<String>,
}

/// Adds a qdisc of the kind `id` to a device and returns how `tc` lists it; `None` if such a qdisc
/// cannot be added without options.
pub(super) fn look(id: &str) -> Option<Shown> {
    let mut host = Host::new();
    let mut exec = |line: &str| {
        let reply = host.exec(&line.split(' ').collect::<Vec<_>>(), Path::new("/"));
        (reply.code == 0).then_some(reply.out)
    };
    exec("ip link add d0 type dummy")?;
    exec(&format!("tc qdisc add dev d0 root handle 1: {id}"))?;
    let text = exec("tc -d qdisc show dev d0 root")?;
    let (_, text) = text.lines().next()?.split_once("refcnt ")?;
    let text = text.split_once(' ').map_or("", |(_, options)| options.trim());
    let json: Value = serde_json::from_str(&exec("tc -d -j qdisc show dev d0 root")?).ok()?;
    let options = json.get(0)?.get("options").and_then(Value::as_object);
    let keys = options.map(|options| options.keys().cloned().collect()).unwrap_or_default();
    Some(Shown { text: text.to_owned(), keys })
}
