//! The ledger's script: what it is given and what it answers.

use std::time::Duration;

use onramp_fleet::{Act, Answer, Claim, KEEP, MemberView, Place, Refusal};
use redis::{Cmd, Value};

use crate::limits::ledger_key;

/// The script.
pub(crate) const LEDGER: &str = include_str!("ledger.lua");
/// The field of a ledger that is no member.
const HEAD: &[u8] = b"@";
/// The numbers before the claim in a member's value.
const NUMBERS: usize = 7;
/// Of these numbers, those that say when the member's time runs out, what it holds and what it
/// sends.
const ENDS: usize = 0;
const HELD: usize = 3;
const USED: usize = 4;

/// Adds to a command what the script is given: the number of keys, the keys and the arguments.
/// `epoch` is the name of the engine's process.
pub(crate) fn give(command: &mut Cmd, epoch: &str, way: &[Place], act: &Act) {
    let root = way.last().map_or("", |place| place.name.as_str());
    let keys: Vec<String> = way.iter().map(|place| ledger_key(root, &place.name)).collect();
    command.arg(keys.len()).arg(keys).arg(epoch).arg(act.words(way));
}

/// Reads what the script answers; `None` if it is no answer.
pub(crate) fn answer(value: Value) -> Option<Result<Answer, Refusal>> {
    let Value::Array(values) = value else { return None };
    let values = match <[Value; 6]>::try_from(values) {
        Ok(values) => values,
        Err(values) => return refusal(&values).map(Err),
    };
    let [turn, granted, young, rate, due, Value::Array(fields)] = values else { return None };
    let due = match due {
        Value::BulkString(_) => None,
        due => Some(usize::try_from(number(&due)?).ok()?),
    };
    let (pairs, []) = fields.as_chunks() else { return None };
    let mut members = Vec::with_capacity(pairs.len());
    for [field, value] in pairs {
        let (Value::BulkString(field), Value::BulkString(value)) = (field, value) else {
            return None;
        };
        if field != HEAD {
            members.push(member(field, value)?);
        }
    }
    members.sort_by(|a, b| (&a.name, a.life).cmp(&(&b.name, b.life)));
    Some(Ok(Answer {
        turn: number(&turn)?,
        granted: number(&granted)?,
        is_young: number(&young)? != 0,
        rate: number(&rate)?,
        members,
        due,
    }))
}

fn refusal(values: &[Value]) -> Option<Refusal> {
    match values {
        [Value::BulkString(word)] if word == b"overtaken" => Some(Refusal::Overtaken),
        [Value::BulkString(word)] if word == b"full" => Some(Refusal::Full),
        _ => None,
    }
}

/// Returns one of a member's numbers.
fn number_of(value: &[u8], at: usize) -> Option<f64> {
    Some(f64::from_le_bytes(*value.as_chunks().0.get(at)?))
}

/// Returns one of a member's rates; `None` if there is none. Rates of the script are whole and
/// below 2^53.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "see above")]
fn rate_of(value: &[u8], at: usize) -> Option<u64> {
    number_of(value, at).filter(|rate| *rate >= 0.0).map(|rate| rate as u64)
}

fn member(field: &[u8], value: &[u8]) -> Option<MemberView> {
    let (life, name) = std::str::from_utf8(field).ok()?.split_once(' ')?;
    let (_, claim) = value.split_at_checked(NUMBERS * 8)?;
    let held = rate_of(value, HELD)?;
    let claim = std::str::from_utf8(claim).ok()?.parse().ok()?;
    Some(MemberView { name: name.to_owned(), life: life.parse().ok()?, claim, held })
}

/// A member of a ledger: a host, or a limit that is a part of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// Name of the host or limit. What writes a ledger chooses it, so it may have any characters:
    /// a program that shows it on a terminal must escape those that control the terminal.
    pub name: String,
    /// The number that tells the lives of a host's program apart; 0 for a limit.
    pub life: u64,
    /// What the member wants.
    pub claim: Claim,
    /// What the member holds, in bytes per second.
    pub held: u64,
    /// What the member sent in the tick before its last report, in bytes per second; `None` for a
    /// limit, whose own members say it.
    pub used: Option<u64>,
    /// How long ago the member's last report came; for a limit, the last report of a member of it.
    pub age: Duration,
    /// How long the ledger still keeps this for the member.
    pub left: Duration,
}

/// The clocks of a ledger, in microseconds.
#[derive(Clone, Debug)]
pub(crate) struct Clocks {
    /// The ledger's own clock at its last call.
    pub(crate) own: f64,
    /// The clock that it follows, at its last call.
    pub(crate) led: f64,
    /// Name of the ledger whose clock that is; `None`: the engine's clock.
    pub(crate) leader: Option<String>,
}

impl Clocks {
    /// The field of a ledger with its clocks.
    pub(crate) const FIELD: &[u8] = HEAD;

    /// Reads the clocks from their field.
    pub(crate) fn read(head: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(head).ok()?.split(' ');
        let (own, led) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let leader = words.next().filter(|name| *name != "@").map(str::to_owned);
        Some(Self { own, led, leader })
    }
}

/// Reads the members of a ledger from its fields, at the moment `clock` of the ledger's clock in
/// microseconds; `None` if these are no such fields.
pub(crate) fn held(fields: &[(Vec<u8>, Vec<u8>)], clock: f64) -> Option<Vec<Held>> {
    let mut members = Vec::new();
    for (field, value) in fields.iter().filter(|(field, _)| field != HEAD) {
        let MemberView { name, life, claim, held } = member(field, value)?;
        let ends = number_of(value, ENDS)?;
        if ends > clock {
            let left = Duration::try_from_secs_f64((ends - clock) / 1e6).unwrap_or_default();
            let (used, age) = (rate_of(value, USED), KEEP.saturating_sub(left));
            members.push(Held { name, life, claim, held, used, age, left });
        }
    }
    Some(members)
}

fn number(value: &Value) -> Option<u64> {
    let Value::Int(number) = value else { return None };
    u64::try_from(*number).ok()
}

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;

#[cfg(test)]
#[path = "script_tests.rs"]
mod tests;
