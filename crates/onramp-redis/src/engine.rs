//! The connection to Redis, and what is asked through it.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use onramp_fleet::{Act, Answer, Definition, DefinitionError, Definitions, Place, Refusal, TICK};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind, FromRedisValue,
    IntoConnectionInfo as _, RedisError, ServerError, Value,
};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::limits::{
    DELETED, Entry, LIMITS, RATE_END, definitions, entries, ledger_key, terms_key,
};
use crate::script::{Clocks, Held, LEDGER, answer, give, held};

const SET: &str = include_str!("set.lua");

/// A host's patience. It waits for an answer for a shorter time than the time after which it gives
/// the answer up ([`HOLD`](onramp_fleet::HOLD)); otherwise nobody would note that the connection is
/// dead. A connection to an engine that is far away takes several round trips.
const HOST: Patience =
    Patience { answer: Duration::from_millis(900), connect: Duration::from_millis(1_100) };
/// The longest wait between two attempts to connect.
const PAUSE_MAX: Duration = Duration::from_millis(400);
/// A limit has fewer levels of groups than this, however many hosts it may have.
const GROUP_LEVELS: usize = 8;
/// How often a change of limits is tried again because other operators were faster.
const TRIES: usize = 20;

/// Error: the engine could not do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineError {
    /// The URL or the certificate is no such thing: the reason.
    Url(String),
    /// The engine does not answer: the reason.
    Unreachable(String),
    /// The engine does not know the user or password, or does not let the user do this: its reason.
    Denied(String),
    /// The engine refused for another reason, or answered something that was not understood.
    Engine(String),
    /// The limit cannot be as the operator wants it.
    Definition(DefinitionError),
    /// A rate of more than 10^15 bytes per second.
    TooLarge(u64),
    /// The engine has a limit that cannot be: its name.
    Damaged(String),
    /// Other operators changed limits at the same time, again and again.
    Busy,
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(why) => f.write_str(why),
            Self::Unreachable(why) => write!(f, "the engine does not answer: {why}"),
            Self::Denied(why) => write!(f, "the engine does not allow it: {why}"),
            Self::Engine(why) => write!(f, "the engine refused: {why}"),
            Self::Definition(error) => error.fmt(f),
            Self::TooLarge(rate) => write!(f, "{rate} bytes/s: expected at most 10^15 (8000tbit)"),
            Self::Damaged(name) => write!(f, "the engine's entry of limit {name:?} is damaged"),
            Self::Busy => f.write_str("other operators change limits at the same time: try again"),
        }
    }
}

impl std::error::Error for EngineError {}

impl From<DefinitionError> for EngineError {
    fn from(error: DefinitionError) -> Self {
        Self::Definition(error)
    }
}

impl From<RedisError> for EngineError {
    fn from(error: RedisError) -> Self {
        // The first messages of a connection go together. An engine that refuses them refuses each
        // for the same reason, so the first refusal says all.
        let refused = error.clone().into_server_errors();
        let refused = refused.as_deref().and_then(|list| list.first()).map(|(_, first)| first);
        let text = |of: &ServerError| format!("{} {}", of.code(), of.details().unwrap_or_default());
        let why = refused.map_or_else(|| error.to_string(), text);
        match refused.map(ServerError::code) {
            Some("NOAUTH") => Self::Denied("it asks for a user and a password".into()),
            Some("NOPERM" | "WRONGPASS") => Self::Denied(why),
            Some("LOADING") => Self::Engine("it still reads its file: try again".into()),
            _ if error.kind() == ErrorKind::AuthenticationFailed => Self::Denied(why),
            _ if is_lost(&error) && !is_unfit(&error) => Self::Unreachable(why),
            _ => Self::Engine(why),
        }
    }
}

/// A Redis that keeps ledgers and limits. Copies of an engine share one connection, so a program
/// needs one `Engine` for all its limits.
///
/// The connection is made when it is needed first, and made again when it is lost: at once, and
/// then with pauses of at most 0.4 s. A Redis that does not write, because it still reads its file
/// or follows another one, counts as lost, and the next connection comes 0.2 to 0.4 s later. No
/// call waits for longer than 0.9 s for each answer that it needs, and for longer than 2.2 s for a
/// connection, unless the engine was made [`with_patience`](Self::with_patience). If a call is
/// given up while it waits for a connection, the attempt goes on for the next call.
#[derive(Clone)]
pub struct Engine(Arc<Shared>);

/// How long calls wait.
#[derive(Clone, Copy)]
struct Patience {
    /// The longest wait for an answer.
    answer: Duration,
    /// The longest time that one part of making a connection may take. There are two parts.
    connect: Duration,
}

struct Shared {
    client: Client,
    patience: Patience,
    state: Mutex<State>,
    /// The entries of limits as they were last read, by name: for an engine that has lost them, or
    /// that does not answer.
    known: std::sync::Mutex<BTreeMap<String, String>>,
}

#[derive(Default)]
struct State {
    link: Option<Link>,
    /// Number of connections made so far.
    links: u64,
    /// Number of attempts that failed since the last connection.
    failures: u32,
    not_before: Option<Instant>,
    why: Option<EngineError>,
}

#[derive(Clone)]
struct Link {
    number: u64,
    connection: MultiplexedConnection,
    /// Name of the engine's process.
    epoch: String,
    /// Name of the ledger's script.
    script: String,
}

/// What the engine says to a host's message.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    /// The entries of the limits that were asked for, as they were just after the message was
    /// processed.
    pub(crate) entries: Vec<Option<String>>,
    pub(crate) result: Result<Answer, Refusal>,
}

// The URL has a password.
impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Engine").field(self.0.client.get_connection_info().addr()).finish()
    }
}

impl Engine {
    /// Makes an engine for a URL: `redis://USER:PASSWORD@HOST:PORT`, the same with `rediss` for a
    /// connection by TLS, or `unix:///PATH?user=USER&pass=PASSWORD`. `authority` is a certificate
    /// (PEM) of the authority that the server's certificate must come from; without it, the
    /// machine's authorities count.
    ///
    /// # Errors
    ///
    /// [`EngineError::Url`]. Whether the engine answers is not found out here.
    pub fn new(url: &str, authority: Option<&[u8]>) -> Result<Self, EngineError> {
        // The message of the client's error might show the password.
        let wrong =
            |_| EngineError::Url("expected redis://HOST:PORT, rediss:// or unix:///PATH".into());
        let info = url.into_connection_info().map_err(wrong)?;
        // The client's name and version are nobody's business, and hosts may not tell them.
        let settings = info.redis_settings().clone().set_skip_set_lib_name();
        let info = info.set_redis_settings(settings);
        let client = match authority {
            None => Client::open(info).map_err(wrong)?,
            Some(pem) => with_authority(info, pem)?,
        };
        #[cfg(feature = "tls")]
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // It fails if another thread was faster, and then there is one.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        Ok(Self::with(client, HOST))
    }

    fn with(client: Client, patience: Patience) -> Self {
        let (state, known) = Default::default();
        Self(Arc::new(Shared { client, patience, state, known }))
    }

    /// Returns an engine for the same Redis with a connection of its own. A program that reads much
    /// from Redis, or from another runtime, uses it, so that no report of a host waits for that.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self::with(self.0.client.clone(), self.0.patience)
    }

    /// Returns an engine for the same Redis with a connection of its own, whose calls wait for up
    /// to `longest` for each answer, and twice as long for a connection. An operator's program uses
    /// it: a Redis that is far away, or a busy machine, may need more time than the 0.9 s and 2.2 s
    /// that a host waits. A host does without it, because it has to note soon that its connection
    /// is dead.
    #[must_use]
    pub fn with_patience(&self, longest: Duration) -> Self {
        Self::with(self.0.client.clone(), Patience { answer: longest, connect: longest })
    }

    /// Returns all limits.
    ///
    /// # Errors
    ///
    /// [`EngineError`].
    pub async fn limits(&self) -> Result<Definitions, EngineError> {
        Ok(self.versioned_limits().await?.1)
    }

    /// Sets a limit: adds it, or replaces it if it exists. Hosts follow within about two ticks.
    ///
    /// # Errors
    ///
    /// [`EngineError`]; if it is [`Definition`](EngineError::Definition),
    /// [`TooLarge`](EngineError::TooLarge) or [`Denied`](EngineError::Denied), nothing has changed.
    pub async fn set(&self, name: &str, definition: &Definition) -> Result<(), EngineError> {
        self.update(name, |_| definition.clone()).await
    }

    /// Sets a limit to what `change` makes of it (`None`: there is no such limit). If another
    /// operator changes a limit meanwhile, `change` is called again with the new state, so no
    /// operator's change is lost.
    ///
    /// # Errors
    ///
    /// [`EngineError`]; see [`set`](Self::set).
    pub async fn update(
        &self,
        name: &str,
        change: impl Fn(Option<&Definition>) -> Definition,
    ) -> Result<(), EngineError> {
        self.change(|all| {
            let definition = change(all.get(name));
            if definition.rate >= RATE_END {
                return Err(EngineError::TooLarge(definition.rate));
            }
            Ok(all.set(name, definition)?)
        })
        .await
    }

    /// Deletes a limit. Its hosts stop sending within about two ticks; a host that cannot reach the
    /// engine goes on at its guaranteed rate until it can.
    ///
    /// # Errors
    ///
    /// [`EngineError`]; see [`set`](Self::set).
    pub async fn delete(&self, name: &str) -> Result<(), EngineError> {
        self.change(|all| Ok(all.delete(name).map(drop)?)).await
    }

    /// Returns what the ledgers of a limit say: its hosts, or the limits that are its parts, in the
    /// order of their names. `all` are all limits, as [`limits`](Self::limits) returns them.
    /// Nothing changes.
    ///
    /// # Errors
    ///
    /// [`EngineError`].
    pub async fn members(&self, all: &Definitions, limit: &str) -> Result<Vec<Held>, EngineError> {
        let (mut root, mut above) = (limit, GROUP_LEVELS);
        while let Some(parent) = all.get(root).and_then(|limit| limit.parent.as_deref()) {
            root = parent;
            above += 1;
        }
        let mut members = Vec::new();
        for ledger in all.ledgers(limit) {
            let command = redis::cmd("HGETALL").arg(ledger_key(root, &ledger)).to_owned();
            let fields: Vec<(Vec<u8>, Vec<u8>)> = self.query(&command).await?;
            if fields.is_empty() {
                continue;
            }
            let clock = self.clock(root, &ledger, above).await?;
            members.extend(held(&fields, clock).ok_or(EngineError::Damaged(ledger))?);
        }
        members.sort_by(|a, b| (&a.name, a.life).cmp(&(&b.name, b.life)));
        Ok(members)
    }

    /// Returns what a ledger's clock would show if the ledger were called now, in microseconds: a
    /// ledger that nobody calls any more stands still. There are at most `above` ledgers above it:
    /// what a hostile host wrote may name more, or lead in a circle.
    async fn clock(&self, root: &str, ledger: &str, above: usize) -> Result<f64, EngineError> {
        let (mut now, mut at, mut seen) = (0.0, Some(ledger.to_owned()), 0);
        while let Some(name) = at {
            if seen > above {
                return Err(EngineError::Damaged(ledger.to_owned()));
            }
            seen += 1;
            let mut command = redis::cmd("HGET");
            command.arg(ledger_key(root, &name)).arg(Clocks::FIELD);
            // A ledger that has gone meanwhile adds nothing.
            let Some(head) = self.query::<Option<Vec<u8>>>(&command).await? else { break };
            let clocks = Clocks::read(&head).ok_or(EngineError::Damaged(name))?;
            now += clocks.own - clocks.led;
            at = clocks.leader;
            if at.is_none() {
                let (seconds, micros): (f64, f64) = self.query(&redis::cmd("TIME")).await?;
                now += seconds * 1e6 + micros;
            }
        }
        Ok(now)
    }

    async fn versioned_limits(&self) -> Result<(String, Definitions), EngineError> {
        let texts: Vec<(String, String)> = self.query(redis::cmd("HGETALL").arg(LIMITS)).await?;
        let mut version = String::new();
        let mut found = BTreeMap::new();
        for (name, text) in texts {
            if name.is_empty() {
                version = text;
            } else if text != DELETED {
                let entry = Entry::from_text(&text);
                found.insert(name.clone(), entry.ok_or(EngineError::Damaged(name))?);
            }
        }
        Ok((version, definitions(found).map_err(EngineError::Damaged)?))
    }

    async fn change(
        &self,
        change: impl Fn(&mut Definitions) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        for _ in 0..TRIES {
            let (version, before) = self.versioned_limits().await?;
            let mut after = before.clone();
            change(&mut after)?;
            let command = write(&version, &before, &after);
            if self.query::<u64>(&command).await? == 1 {
                return Ok(());
            }
        }
        Err(EngineError::Busy)
    }

    /// Returns the entry of a limit as text: from the engine, or if the engine does not have it or
    /// does not answer, as it was when any host of this program last read it.
    pub(crate) async fn entry(&self, name: &str) -> Result<Option<String>, EngineError> {
        let read: Result<Option<String>, _> =
            self.query(redis::cmd("HGET").arg(LIMITS).arg(name)).await;
        let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        match (read, known.get(name)) {
            (Ok(Some(text)), _) => {
                known.insert(name.to_owned(), text.clone());
                Ok(Some(text))
            }
            (_, Some(text)) => Ok(Some(text.clone())),
            (read, None) => read,
        }
    }

    /// Notes entries of limits that were just read, by name, as [`entry`](Self::entry) does.
    pub(crate) fn note(&self, read: &BTreeMap<String, String>) {
        let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.extend(read.iter().map(|(name, text)| (name.clone(), text.clone())));
    }

    /// Sends a host's message, and reads the entries of the limits on the way.
    pub(crate) async fn ask(&self, way: &[Place], act: &Act) -> Result<Reply, EngineError> {
        let mut read = redis::cmd("HMGET");
        read.arg(LIMITS);
        way.iter().filter(|place| place.is_limit).for_each(|place| {
            read.arg(&place.name);
        });
        let mut link = self.link().await?;
        let mut call = redis::cmd("EVALSHA");
        give(call.arg(&link.script), &link.epoch, way, act);
        let mut other = link.connection.clone();
        // Both go through one connection in this order, so the host reads every change under which
        // the ledger has answered.
        let asked = async {
            tokio::join!(
                biased;
                call.query_async::<Value>(&mut other),
                read.query_async::<Vec<Option<String>>>(&mut link.connection),
            )
        };
        let (words, entries) = self.in_time(link.number, asked).await?;
        let entries = self.checked(link.number, entries).await?;
        match words {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                let load = redis::cmd("SCRIPT").arg("LOAD").arg(LEDGER).to_owned();
                self.query::<String>(&load).await?;
                // The host asks again at its next tick.
                Err(error.into())
            }
            words => {
                let result = answer(self.checked(link.number, words).await?);
                let result = result.ok_or_else(|| EngineError::Engine("not understood".into()))?;
                Ok(Reply { entries, result })
            }
        }
    }

    async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, EngineError> {
        let mut link = self.link().await?;
        let number = link.number;
        let result = self.in_time(number, command.query_async(&mut link.connection)).await?;
        self.checked(number, result).await
    }

    /// Waits for an answer, but not for longer than the engine's patience. A connection without an
    /// answer is given up: TCP would wait for minutes until it sends again on a way that was cut.
    async fn in_time<T>(
        &self,
        number: u64,
        asked: impl Future<Output = T>,
    ) -> Result<T, EngineError> {
        let longest = self.0.patience.answer;
        match tokio::time::timeout(longest, asked).await {
            Ok(answer) => Ok(answer),
            Err(_) => {
                self.lost(number, None).await;
                Err(EngineError::Unreachable(format!("no answer for {longest:?}")))
            }
        }
    }

    async fn checked<T>(
        &self,
        number: u64,
        result: Result<T, RedisError>,
    ) -> Result<T, EngineError> {
        if let Err(error) = &result
            && is_lost(error)
        {
            self.lost(number, is_unfit(error).then(|| error.clone().into())).await;
        }
        Ok(result?)
    }

    /// Gives a connection up. `why` is what an engine has answered that is of no use now: it may
    /// answer the same again, so the next attempt to connect waits.
    async fn lost(&self, number: u64, why: Option<EngineError>) {
        let mut state = self.0.state.lock().await;
        if state.link.take_if(|link| link.number == number).is_some() && why.is_some() {
            state.not_before = Some(Instant::now() + pause(u32::MAX));
            state.why = why;
        }
    }

    /// Returns the connection, and makes one if there is none. The attempt is a task of its own: a
    /// host gives a message up after [`HOLD`](onramp_fleet::HOLD), and a connection to an engine
    /// far away, with TLS and a password, takes longer.
    async fn link(&self) -> Result<Link, EngineError> {
        if let Some(link) = &self.0.state.lock().await.link {
            return Ok(link.clone());
        }
        let this = self.clone();
        let made = tokio::spawn(async move { this.connected().await }).await;
        made.unwrap_or_else(|ended| Err(EngineError::Unreachable(ended.to_string())))
    }

    /// Returns the connection, and makes one if there is none.
    async fn connected(&self) -> Result<Link, EngineError> {
        let mut state = self.0.state.lock().await;
        if let Some(link) = &state.link {
            return Ok(link.clone());
        }
        if state.not_before.is_some_and(|end| Instant::now() < end) {
            let why = state.why.clone();
            return Err(why.unwrap_or_else(|| EngineError::Unreachable("no connection".into())));
        }
        // If the task is cancelled, the next attempt has its pause all the same.
        state.not_before = Some(Instant::now() + pause(state.failures));
        state.failures += 1;
        let longest = 2 * self.0.patience.connect;
        let opened = tokio::time::timeout(longest, open(&self.0)).await;
        let opened = opened.unwrap_or_else(|_| {
            Err(EngineError::Unreachable(format!("no connection after {longest:?}")))
        });
        match opened {
            Ok((connection, epoch, script)) => {
                state.links += 1;
                state.failures = 0;
                state.not_before = None;
                let link = Link { number: state.links, connection, epoch, script };
                state.link = Some(link.clone());
                Ok(link)
            }
            Err(error) => {
                state.not_before = Some(Instant::now() + pause(state.failures - 1));
                state.why = Some(error.clone());
                Err(error)
            }
        }
    }
}

/// Makes a connection, and returns it with the names of the engine's process and of the script.
async fn open(of: &Shared) -> Result<(MultiplexedConnection, String, String), EngineError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(of.patience.connect))
        .set_response_timeout(Some(of.patience.answer));
    let mut connection = of.client.get_multiplexed_async_connection_with_config(&config).await?;
    let (info, script): (String, String) = redis::pipe()
        .cmd("INFO")
        .arg("server")
        .cmd("SCRIPT")
        .arg("LOAD")
        .arg(LEDGER)
        .query_async(&mut connection)
        .await?;
    let epoch = info.lines().find_map(|line| line.strip_prefix("run_id:"));
    let epoch = epoch.ok_or_else(|| EngineError::Engine("INFO shows no run_id".into()))?;
    Ok((connection, epoch.trim().to_owned(), script))
}

/// Whether the connection is of no use after this error.
fn is_lost(error: &RedisError) -> bool {
    error.is_io_error() || error.is_timeout() || error.is_connection_dropped() || is_unfit(error)
}

/// Whether the engine says that it still reads its file, or that it follows another engine now, so
/// that it writes no ledger. At its address there may be a better one.
fn is_unfit(error: &RedisError) -> bool {
    matches!(error.code(), Some("LOADING" | "READONLY" | "MASTERDOWN"))
}

/// Returns how long to wait after this many attempts that failed. Half of it is drawn by chance, so
/// that the hosts of a fleet do not all come at once.
fn pause(failures: u32) -> Duration {
    let most = (TICK / 4 * 2u32.pow(failures.min(8))).min(PAUSE_MAX);
    most.mul_f64(0.5 + f64::from(u32::try_from(random() >> 33).unwrap_or(0)) / 2f64.powi(32))
}

/// Draws a number. The standard library's hash maps draw their keys from the system's source.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Returns the command that writes what is another after than before.
fn write(version: &str, before: &Definitions, after: &Definitions) -> Cmd {
    let (before, after) = (entries(before), entries(after));
    let mut names: Vec<(&str, String)> = Vec::new();
    let mut terms: Vec<(String, String)> = Vec::new();
    for (name, entry) in after.iter().filter(|(name, entry)| before.get(*name) != Some(*entry)) {
        names.push((name, entry.text()));
        terms.push((terms_key(&entry.root, name), entry.text()));
    }
    for (name, entry) in &before {
        let now = after.get(name);
        if now.is_none() {
            names.push((name, DELETED.to_owned()));
        }
        // A limit that moved to another tree is deleted in its old one.
        if now.is_none_or(|now| now.root != entry.root) {
            terms.push((terms_key(&entry.root, name), DELETED.to_owned()));
        }
    }
    let mut command = redis::cmd("EVAL");
    command.arg(SET).arg(1 + terms.len()).arg(LIMITS);
    terms.iter().for_each(|(key, _)| {
        command.arg(key);
    });
    command.arg(version).arg(random()).arg(names.len());
    names.iter().for_each(|(name, text)| {
        command.arg(*name).arg(text);
    });
    terms.iter().for_each(|(_, text)| {
        command.arg(text);
    });
    command
}

#[cfg(feature = "tls")]
fn with_authority(info: ConnectionInfo, pem: &[u8]) -> Result<Client, EngineError> {
    let root_cert = Some(pem.to_vec());
    let certificates = redis::TlsCertificates { client_tls: None, root_cert };
    Client::build_with_tls(info, certificates)
        .map_err(|_| EngineError::Url("expected a rediss:// URL and a certificate (PEM)".into()))
}

#[cfg(not(feature = "tls"))]
fn with_authority(_: ConnectionInfo, _: &[u8]) -> Result<Client, EngineError> {
    Err(EngineError::Url("this program was built without TLS".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_said_in_plain_words() {
        for (reply, said) in [
            ("LOADING Redis is loading", "the engine refused: it still reads its file: try again"),
            ("NOAUTH needed", "the engine does not allow it: it asks for a user and a password"),
            ("NOPERM no", "the engine does not allow it: NOPERM no"),
            ("WRONGPASS bad", "the engine does not allow it: WRONGPASS bad"),
            ("ODD thing", "the engine refused: ODD thing"),
        ] {
            let value = redis::parse_redis_value(format!("-{reply}\r\n").as_bytes()).unwrap();
            let error = EngineError::from(value.extract_error().unwrap_err());
            assert_eq!(error.to_string(), said);
        }
    }
}
