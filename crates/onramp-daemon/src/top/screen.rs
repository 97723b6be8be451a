//! Draws `onramp top` on the terminal.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line as Words, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Row as Cells, Table};

use super::view::{Line, View, reasons};
use crate::figures::{count, rate, time};
use crate::snapshot::{Sort, What, histogram};

const HELP: &[(&str, &str)] = &[
    ("t r p b l d", "order: tree, rate, packets, backlog, latency, drops"),
    ("up down", "choose a row (also k j, page up and down, home, end)"),
    ("left right", "close and open the row (also enter)"),
    ("a", "open all queues, or close all queues"),
    ("/", "show only rows with all words that you type; escape: all rows"),
    ("space", "pause, and continue"),
    ("q", "quit"),
];

/// A column of the table beside the names: its heading, its least width in cells, and the sort
/// order that sorts the rows by this column, if there is one.
type Column = (&'static str, u16, Option<Sort>);

const COLUMNS: [Column; 7] = [
    ("RATE", 9, Some(Sort::Rate)),
    ("PACKETS/S", 9, Some(Sort::Packets)),
    ("BACKLOG", 8, Some(Sort::Backlog)),
    ("P50", 7, None),
    ("P99", 7, Some(Sort::P99)),
    ("DROPS/S", 7, Some(Sort::Drops)),
    ("REASONS", 12, None),
];
/// The last column, which has text and no figures. It shares with the names the width that the
/// other columns leave.
const REASONS: usize = COLUMNS.len() - 1;
/// The order in which columns are left out of a table that has no room for all of them.
const LEFT_OUT: [usize; 7] = [REASONS, 3, 1, 4, 2, 5, 0];
/// The least width of the column of names, in cells.
const NAME_MIN: u16 = 16;

/// Draws the whole screen of `onramp top`.
pub(super) fn draw(frame: &mut Frame<'_>, view: &mut View) {
    let layout =
        [Constraint::Length(1), Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)];
    let [head, _, body, foot] = Layout::vertical(layout).areas(frame.area());
    frame.render_widget(headline(view), head);
    if view.lines().is_empty() {
        frame.render_widget(Paragraph::new(nothing(view)), body);
    } else {
        table(frame, view, body);
    }
    frame.render_widget(footline(view), foot);
    if view.help {
        help(frame);
    }
}

fn headline(view: &View) -> Words<'static> {
    let sum = view.sum();
    let mut words = vec![
        "onramp top".bold(),
        format!(
            "  {} devices, {} queues  {}/s  {} packets/s  ",
            sum.devices,
            sum.queues,
            rate(sum.bytes_per_second),
            count(sum.packets_per_second),
        )
        .into(),
        dropped(sum.drops_per_second, format!("{} drops/s", count(sum.drops_per_second))),
    ];
    if view.paused {
        words.push("  paused".fg(Color::Yellow).bold());
    }
    words.into()
}

fn dropped(per_second: Option<f64>, text: String) -> Span<'static> {
    let drops = per_second.is_some_and(|rate| rate > 0.0);
    if drops { text.fg(Color::Red) } else { text.into() }
}

fn nothing(view: &View) -> Vec<Words<'static>> {
    if !view.has_looked() {
        return vec!["Waiting for the daemon.".into()];
    }
    if !view.filter.trim().is_empty() {
        return vec![format!("Nothing matches {:?}.", view.filter).into()];
    }
    [
        "There are no devices yet. Make one, and give it a qdisc:",
        "",
        "  onramp ip link add dev d0 type dummy",
        "  onramp ip link set dev d0 up",
        "  onramp tc qdisc replace dev d0 root fq",
    ]
    .map(Words::from)
    .to_vec()
}

fn footline(view: &View) -> Words<'static> {
    if view.typing() {
        return vec!["/".bold(), view.filter.clone().into(), "█".dim()].into();
    }
    let mut words = vec![format!("sort: {}", view.sort.name()).into()];
    if !view.filter.is_empty() {
        words.push(format!("  filter: {}", view.filter).into());
    }
    words.push("  ? help  / filter  space pause  q quit".dim());
    words.into()
}

/// Draws as many rows as fit on the screen. The selected row is always among them.
fn table(frame: &mut Frame<'_>, view: &mut View, area: Rect) {
    let fits = usize::from(area.height.saturating_sub(1)).max(1);
    view.from = view.from.min(view.at).max((view.at + 1).saturating_sub(fits));
    view.from = view.from.min(view.lines().len().saturating_sub(fits));
    let lines = view.lines().iter().enumerate().skip(view.from).take(fits);
    let (name, shown) = columns(area.width, view.sort);
    let rows = lines.map(|(at, line)| {
        let style = if at == view.at { Modifier::REVERSED.into() } else { Style::new() };
        cells(line, &shown).style(style)
    });
    let rest = shown.iter().map(|at| match *at {
        REASONS => Constraint::Fill(1),
        at => Constraint::Length(COLUMNS[at].1),
    });
    let widths = std::iter::once(Constraint::Length(name)).chain(rest);
    let table = Table::new(rows.collect::<Vec<_>>(), widths).header(heads(view.sort, &shown));
    frame.render_widget(table, area);
}

/// Returns the width of the column of names in a table that is `width` cells wide, and the indexes
/// of the other columns for which there is room. The column by which the rows are sorted is the
/// last to be left out.
fn columns(width: u16, sort: Sort) -> (u16, Vec<usize>) {
    // One cell is free between two columns.
    let needed = |shown: &[usize]| shown.iter().map(|at| COLUMNS[*at].1 + 1).sum::<u16>();
    let mut shown: Vec<usize> = (0..COLUMNS.len()).collect();
    let is_last = |at: &usize| COLUMNS[*at].2 == Some(sort);
    let (last, first): (Vec<_>, Vec<_>) = LEFT_OUT.into_iter().partition(is_last);
    for out in first.into_iter().chain(last) {
        if NAME_MIN + needed(&shown) <= width {
            break;
        }
        shown.retain(|at| *at != out);
    }
    let free = width.saturating_sub(needed(&shown));
    if !shown.contains(&REASONS) {
        return (free, shown);
    }
    let both = free + COLUMNS[REASONS].1;
    ((both * 3 / 5).max(NAME_MIN), shown)
}

fn heads(sort: Sort, shown: &[usize]) -> Cells<'static> {
    let title = |at: &usize| {
        let (name, _, by) = COLUMNS[*at];
        let words = Words::from(if by == Some(sort) { name.underlined() } else { name.into() });
        if *at == REASONS { words } else { words.right_aligned() }
    };
    let cells = std::iter::once("NAME".into()).chain(shown.iter().map(title));
    Cells::new(cells.collect::<Vec<_>>()).style(Modifier::BOLD)
}

/// Returns the cells of a row: its name, and the columns `shown`.
fn cells(line: &Line, shown: &[usize]) -> Cells<'static> {
    let row = &line.row;
    let sign = match line.open {
        None => "  ",
        Some(true) => "▾ ",
        Some(false) => "▸ ",
    };
    let mut name = vec![("  ".repeat(line.depth) + sign).into()];
    name.push(if row.what == What::Device { row.label().bold() } else { row.label().into() });
    if row.what == What::Device {
        name.push(format!(" {}", row.kind.as_deref().unwrap_or_default()).dim());
        if row.queues.is_some_and(|queues| queues > 1) {
            name.push(format!(", {} queues", row.queues.unwrap_or_default()).dim());
        }
        if row.up == Some(false) {
            name.push(" down".fg(Color::Red));
        }
    }
    let backlog = count(Some(histogram::as_f64(row.backlog_packets)));
    let backlog: Span<'_> =
        if row.backlog_packets > 0 { backlog.fg(Color::Yellow) } else { backlog.into() };
    let right = |span: Span<'static>| Words::from(span).right_aligned();
    let columns = [
        right(rate(row.bytes_per_second).into()),
        right(count(row.packets_per_second).into()),
        right(backlog),
        right(time(row.sojourn_p50_ns).into()),
        right(time(row.sojourn_p99_ns).into()),
        right(dropped(row.drops_per_second, count(row.drops_per_second))),
        Words::from(reasons(row)),
    ];
    let shown = shown.iter().map(|at| columns[*at].clone());
    Cells::new(std::iter::once(Words::from(name)).chain(shown))
}

fn help(frame: &mut Frame<'_>) {
    let lines: Vec<Words<'_>> = HELP
        .iter()
        .map(|(keys, what)| vec![format!(" {keys:<12}").bold(), (*what).into()].into())
        .collect();
    let area = frame.area();
    let width = area.width.min(78);
    let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX).min(area.height);
    let place = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, place);
    let block = Block::bordered().title(" onramp top: press any key to return ");
    frame.render_widget(Paragraph::new(lines).block(block), place);
}
