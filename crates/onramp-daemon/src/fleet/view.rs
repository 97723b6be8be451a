//! What the ledgers of a fleet say, as `onramp fleet show` and the web page show it.

use onramp_fleet::Definitions;
use onramp_redis::{Engine, EngineError, Held};

/// A limit with all that its ledgers say.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LimitView {
    /// The limit's name.
    pub name: String,
    /// The limit that this one is a part of.
    pub parent: Option<String>,
    /// The limit, in bytes per second.
    pub rate: u64,
    /// What all hosts together may send at once, in bytes; `None`: each host has its own burst.
    pub burst: Option<u32>,
    /// The largest number of hosts; 0: other limits are its parts.
    pub hosts_max: u32,
    /// The hosts, or parts, that are in its ledgers, in the order of their names.
    pub members: Vec<MemberView>,
}

/// A host or a part of a limit.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MemberView {
    /// What the ledger says of it.
    pub held: Held,
    /// What it sends, in bytes per second: of a part, what its hosts send.
    pub used: u64,
}

impl LimitView {
    /// Returns the sum of a figure of all members.
    #[must_use]
    pub fn sum(&self, of: impl Fn(&MemberView) -> u64) -> u64 {
        self.members.iter().fold(0, |sum, member| sum.saturating_add(of(member)))
    }
}

/// Reads limits with their members from the engine, in the order of their names: all of them, or
/// `only` the one with this name if there is one. Nothing changes.
///
/// # Errors
///
/// [`EngineError`].
pub async fn read(engine: &Engine, only: Option<&str>) -> Result<Vec<LimitView>, EngineError> {
    let all = engine.limits().await?;
    let mut limits = Vec::new();
    for (name, definition) in all.iter().filter(|(name, _)| only.is_none_or(|only| only == *name)) {
        let mut members = Vec::new();
        for held in engine.members(&all, name).await? {
            let used = used(engine, &all, name, &held).await?;
            members.push(MemberView { held, used });
        }
        limits.push(LimitView {
            name: name.to_owned(),
            parent: definition.parent.clone(),
            rate: definition.rate,
            burst: definition.burst,
            hosts_max: definition.hosts,
            members,
        });
    }
    Ok(limits)
}

/// Returns what a member of `limit` sends: for a limit that is a part of it, what its hosts send.
async fn used(
    engine: &Engine,
    all: &Definitions,
    limit: &str,
    member: &Held,
) -> Result<u64, EngineError> {
    // What operators have set has no circle; what hosts wrote into a ledger might.
    let is_part = |part: &str, of: &str| {
        all.get(part).is_some_and(|definition| definition.parent.as_deref() == Some(of))
    };
    let mut sum = member.used.unwrap_or(0);
    if member.used.is_some() || !is_part(&member.name, limit) {
        return Ok(sum);
    }
    let mut parts = vec![member.name.as_str()];
    while let Some(part) = parts.pop() {
        for held in engine.members(all, part).await? {
            sum = held.used.unwrap_or(0).saturating_add(sum);
        }
        parts.extend(all.iter().map(|(name, _)| name).filter(|name| is_part(name, part)));
    }
    Ok(sum)
}
