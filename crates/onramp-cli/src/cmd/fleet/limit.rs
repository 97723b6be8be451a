//! The commands `onramp fleet limit`.

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use onramp_core::units::Size;
use onramp_fleet::{Definition, DefinitionError, Definitions};
use onramp_redis::EngineError;
use serde_json::{Value, json};

use super::{EngineArgs, no_limit, rate, shown, shown_bytes, table, wait};
use crate::error::usage;
use crate::output::{self, Output};
use crate::report::json;
use crate::report::table::dash;

/// Set a limit: add it, or change it
///
/// Hosts that have joined the limit follow within 200 ms. If the limit exists, options that are not
/// given stay as they are.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp fleet limit set tenant-a 10gbit --hosts 40 --floor 10mbit
  onramp fleet limit set tenant-a 10gbit --burst 12mb
  onramp fleet limit set company 40gbit --hosts 0
  onramp fleet limit set tenant-a 10gbit --hosts 40 --parent company --weight 2 --min 1gbit
  onramp fleet limit set tenant-a 10gbit --no-parent")]
pub(crate) struct SetArgs {
    /// Name of the limit: letters, digits, `.`, `_` and `-`
    #[arg(value_name = "NAME")]
    name: String,
    /// The rate that all hosts together may have, such as 10gbit
    #[arg(value_name = "RATE")]
    rate: String,
    /// The largest number of qdiscs and classes, on all hosts, that may join the limit; 0: only
    /// other limits may be parts of it [default: 100]. A daemon that begins again counts twice for
    /// a second, so give a few more
    #[arg(long, value_name = "N",
          value_parser = crate::cmd::values::whole::<u32>(0..=4_294_967_295))]
    hosts: Option<u32>,
    /// What each host may send while it cannot reach the engine. This rate, times --hosts, is
    /// always set aside [default: a twentieth of the limit, divided by --hosts; a floor of this
    /// size follows later changes of both]; 0 counts as one byte per second
    #[arg(long, value_name = "RATE")]
    floor: Option<String>,
    /// The bytes that all hosts together may send at once, such as 12mb: each qdisc and class that
    /// follows the limit gets the part that its share is of the limit, in place of its own burst,
    /// and sends at most a packet more; `none`: each has its own burst [default: none]
    #[arg(long, value_name = "SIZE")]
    burst: Option<String>,
    /// The limit that this one is a part of
    #[arg(long, value_name = "NAME")]
    parent: Option<String>,
    /// From now on, the limit is a part of no other
    #[arg(long, conflicts_with_all = ["parent", "weight", "min"])]
    no_parent: bool,
    /// Weight among the parts of the parent [default: 1]
    #[arg(long, value_name = "N",
          value_parser = crate::cmd::values::whole::<u32>(1..=4_294_967_295))]
    weight: Option<u32>,
    /// What is guaranteed to the limit when the parts of the parent want more than it has [default:
    /// 0]
    #[arg(long, value_name = "RATE")]
    min: Option<String>,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Delete a limit
///
/// Qdiscs and classes that follow the limit pass nothing from then on, until they get a rate.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp fleet limit delete tenant-a")]
pub(crate) struct DeleteArgs {
    /// Name of the limit
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    engine: EngineArgs,
}

/// List the limits
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp fleet limit list
  onramp fleet limit list --json -")]
pub(crate) struct ListArgs {
    /// Write the limits as JSON (docs/json.md: onramp.fleet-limits); - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Runs `onramp fleet limit set`.
pub(crate) fn set(args: &SetArgs) -> Result<()> {
    let limit = rate("RATE", &args.rate)?;
    if limit == 0 {
        return Err(usage("RATE 0: expected at least 8bit"));
    }
    let floor = args.floor.as_ref().map(|floor| rate("--floor", floor)).transpose()?;
    let min = args.min.as_ref().map(|min| rate("--min", min)).transpose()?;
    let burst = args.burst.as_deref().map(burst).transpose()?;
    let engine = args.engine.engine()?;
    let define = |there: Option<&Definition>| {
        let hosts = args.hosts.or_else(|| there.map(|limit| limit.hosts)).unwrap_or(100);
        // A floor that nobody chose follows the limit and the number of hosts.
        let usual = |limit: u64, hosts: u32| limit / 20 / u64::from(hosts.max(1));
        let chosen = there.filter(|there| {
            there.hosts > 0 && there.floor != usual(there.rate, there.hosts).max(1)
        });
        let floor = floor.or_else(|| chosen.map(|there| there.floor));
        // What the limit is among the parts of a parent goes with the parent.
        let part = there.filter(|_| !args.no_parent);
        Definition {
            rate: limit,
            weight: args.weight.or_else(|| part.map(|limit| limit.weight)).unwrap_or(1),
            guaranteed: min.or_else(|| part.map(|limit| limit.guaranteed)).unwrap_or(0),
            hosts,
            // Ledgers count hosts by their floors, so no floor is zero.
            floor: if hosts == 0 { 0 } else { floor.unwrap_or_else(|| usual(limit, hosts)).max(1) },
            burst: burst.unwrap_or_else(|| there.and_then(|limit| limit.burst)),
            parent: args.parent.clone().or_else(|| part?.parent.clone()),
        }
    };
    wait(async {
        if floor.is_some_and(|floor| floor > 0) {
            let hosts = match args.hosts {
                None => engine.limits().await?.get(&args.name).map(|limit| limit.hosts),
                given => given,
            };
            if hosts == Some(0) {
                return Ok(Err(usage(
                    "--floor is for each host, but --hosts is 0; give --hosts, too",
                )));
            }
        }
        if args.parent.is_none() && (args.weight.is_some() || args.min.is_some()) {
            let all = engine.limits().await?;
            if all.get(&args.name).is_none_or(|limit| limit.parent.is_none()) {
                return Ok(Err(usage("--weight and --min are about the parts of a --parent")));
            }
        }
        engine.update(&args.name, define).await.map(Ok)
    })?
    .map_err(|error: EngineError| anyhow!("{error}"))?
}

/// Reads the burst of a limit, in bytes.
fn burst(word: &str) -> Result<Option<u32>> {
    if word == "none" {
        return Ok(None);
    }
    let Size(bytes) = word
        .parse()
        .map_err(|_| usage(format!("--burst {word}: expected a size such as 12mb, or none")))?;
    match u32::try_from(bytes) {
        Ok(bytes @ 1..) => Ok(Some(bytes)),
        _ => Err(usage(format!("--burst {word}: expected 1 to {} bytes, or none", u32::MAX))),
    }
}

/// Runs `onramp fleet limit delete`.
pub(crate) fn delete(args: &DeleteArgs) -> Result<()> {
    let engine = args.engine.engine()?;
    wait(engine.delete(&args.name))?.map_err(|error| match error {
        EngineError::Definition(DefinitionError::Unknown(name)) => anyhow!(no_limit(&name)),
        error => anyhow!("{error}"),
    })
}

/// Runs `onramp fleet limit list`.
pub(crate) fn list(args: &ListArgs) -> Result<()> {
    let output = args.json.as_deref().map(Output::new).transpose()?;
    let engine = args.engine.engine()?;
    let all = wait(engine.limits())?.map_err(|error| anyhow!("{error}"))?;
    match output {
        Some(output) => output.write(&json::pretty(&document(&all))),
        None => output::print(&text(&all)),
    }
}

fn text(all: &Definitions) -> String {
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|(name, limit)| {
            vec![
                name.to_owned(),
                shown(limit.rate),
                limit.hosts.to_string(),
                shown(limit.floor),
                limit.parent.clone().unwrap_or_else(dash),
                limit.weight.to_string(),
                shown(limit.guaranteed),
                limit.burst.map_or_else(dash, shown_bytes),
            ]
        })
        .collect();
    table(&["LIMIT", "RATE", "HOSTS", "FLOOR", "PARENT", "WEIGHT", "MIN", "BURST"], &rows)
}

fn document(all: &Definitions) -> Value {
    let limit = |(name, limit): (&str, &Definition)| {
        json!({
            "name": name,
            "bytes_per_second": limit.rate,
            "hosts": limit.hosts,
            "floor_bytes_per_second": limit.floor,
            "parent": limit.parent,
            "weight": limit.weight,
            "min_bytes_per_second": limit.guaranteed,
            "burst_bytes": limit.burst,
        })
    };
    let limits: Vec<Value> = all.iter().map(limit).collect();
    json!({ "schema": "onramp.fleet-limits", "version": 1, "limits": limits })
}
