//! `onramp top`: a table of the current traffic on all devices, updated continuously.

mod batch;
mod screen;
mod view;

use std::io::{self, Write};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};

pub use self::view::View;
use crate::feed::{Feed, FeedError};
use crate::snapshot::{Query, Sort};

/// How often the keyboard is polled.
const PULSE: Duration = Duration::from_millis(50);

/// What to print in batch mode, in which `onramp top` writes plain text for programs and for paper.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Number of tables to print; `None`: print without end.
    pub tables: Option<u64>,
    /// Whether to print each table as one line of JSON.
    pub json: bool,
    /// Which rows to print.
    pub query: Query,
}

/// Prints one table for each set of statistics, except for the first set, which has no rates.
///
/// # Errors
///
/// [`FeedError`] if the daemon went away, if writing failed, or if the query has a filter and none
/// of the tables had a row.
pub fn print(feed: &mut impl Feed, batch: &Batch, out: &mut impl Write) -> Result<(), FeedError> {
    let mut left = batch.tables;
    let mut found = batch.query.filter.is_none();
    while left != Some(0) {
        let mut stats = feed.wait()?;
        if stats.seconds.is_none() {
            continue;
        }
        let cut = stats.select(&batch.query);
        found |= !stats.rows.is_empty() || cut > 0;
        let text = if batch.json {
            serde_json::to_string(&stats).map_err(|error| FeedError::Show(error.into()))? + "\n"
        } else {
            batch::table(&stats, cut)
        };
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => {}
            // If the reader of the output closes the pipe, it has read enough; this is no error.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(FeedError::Show(error)),
        }
        left = left.map(|left| left - 1);
    }
    match &batch.query.filter {
        Some(filter) if !found && batch.tables != Some(0) => {
            Err(FeedError::Nothing(filter.clone()))
        }
        _ => Ok(()),
    }
}

/// Shows the table on the terminal until the user quits, or until `ends` returns true, which the
/// function calls several times a second: for example because of a signal. The terminal then is as
/// it was before.
///
/// # Errors
///
/// [`FeedError`] if the daemon went away, or if there is no terminal.
pub fn run(
    feed: &mut impl Feed,
    sort: Sort,
    filter: &str,
    ends: impl Fn() -> bool,
) -> Result<(), FeedError> {
    let mut terminal = ratatui::try_init().map_err(FeedError::Show)?;
    let mut view = View::new(sort, filter);
    let ended = live(feed, &mut view, &mut terminal, ends);
    ratatui::restore();
    ended
}

fn live(
    feed: &mut impl Feed,
    view: &mut View,
    terminal: &mut DefaultTerminal,
    ends: impl Fn() -> bool,
) -> Result<(), FeedError> {
    let mut stale = true;
    while !ends() {
        if let Some(stats) = feed.poll()? {
            view.take(stats);
            stale = true;
        }
        if std::mem::take(&mut stale) {
            let drawn = terminal.draw(|frame| screen::draw(frame, view));
            drawn.map_err(FeedError::Show)?;
        }
        if !event::poll(PULSE).map_err(FeedError::Show)? {
            continue;
        }
        stale = true;
        if let Event::Key(key) = event::read().map_err(FeedError::Show)?
            && !key.is_release()
            && view.key(key) == Step::Quit
        {
            break;
        }
    }
    Ok(())
}

/// What `onramp top` does after a key press.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Continue to show the table.
    On,
    /// Quit `onramp top`.
    Quit,
}

impl View {
    /// Changes the view as a key press says. Returns whether to quit.
    pub fn key(&mut self, key: KeyEvent) -> Step {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && key.code == KeyCode::Char('c') {
            return Step::Quit;
        }
        if self.typing() {
            self.type_key(key.code);
            return Step::On;
        }
        if self.help {
            self.help = false;
            return Step::On;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc if !self.clear_filter(key.code) => return Step::Quit,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.help = true,
            KeyCode::Char('/') => self.begin_typing(),
            KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Char('t') => self.sort_by(Sort::Tree),
            KeyCode::Char('r') => self.sort_by(Sort::Rate),
            KeyCode::Char('p') => self.sort_by(Sort::Packets),
            KeyCode::Char('b') => self.sort_by(Sort::Backlog),
            KeyCode::Char('l') => self.sort_by(Sort::P99),
            KeyCode::Char('d') => self.sort_by(Sort::Drops),
            KeyCode::Char('a') => self.open_all(),
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::PageDown => self.go(20),
            KeyCode::PageUp => self.go(-20),
            KeyCode::Home => self.go(isize::MIN),
            KeyCode::End => self.go(isize::MAX),
            KeyCode::Right => self.open(true),
            KeyCode::Left => self.open(false),
            KeyCode::Enter => self.toggle(),
            _ => {}
        }
        Step::On
    }
}

#[cfg(test)]
mod tests;
