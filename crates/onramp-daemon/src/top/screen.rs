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
    let shown = view.lines().iter().enumerate().skip(view.from).take(fits);
    let rows = shown.map(|(at, line)| {
        let style = if at == view.at { Modifier::REVERSED.into() } else { Style::new() };
        cells(line).style(style)
    });
    let widths = [
        Constraint::Fill(3),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Length(7),
        Constraint::Length(7),
        Constraint::Length(7),
        Constraint::Fill(2),
    ];
    let table = Table::new(rows.collect::<Vec<_>>(), widths).header(heads(view.sort));
    frame.render_widget(table, area);
}

fn heads(sort: Sort) -> Cells<'static> {
    // The titles of the columns, each with the sort order that sorts the rows by this column, or
    // with `None` if there is no such order.
    let heads = [
        ("NAME", None),
        ("RATE", Some(Sort::Rate)),
        ("PACKETS/S", Some(Sort::Packets)),
        ("BACKLOG", Some(Sort::Backlog)),
        ("P50", None),
        ("P99", Some(Sort::P99)),
        ("DROPS/S", Some(Sort::Drops)),
        ("REASONS", None),
    ];
    let cells = heads.into_iter().enumerate().map(|(at, (name, by))| {
        let words = Words::from(if by == Some(sort) { name.underlined() } else { name.into() });
        if (1..7).contains(&at) { words.right_aligned() } else { words }
    });
    Cells::new(cells.collect::<Vec<_>>()).style(Modifier::BOLD)
}

fn cells(line: &Line) -> Cells<'static> {
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
    Cells::new([
        Words::from(name),
        right(rate(row.bytes_per_second).into()),
        right(count(row.packets_per_second).into()),
        right(backlog),
        right(time(row.sojourn_p50_ns).into()),
        right(time(row.sojourn_p99_ns).into()),
        right(dropped(row.drops_per_second, count(row.drops_per_second))),
        Words::from(reasons(row)),
    ])
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
