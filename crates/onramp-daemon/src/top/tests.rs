//! Keys and screens of `onramp top`, on a simulated terminal.

mod drawn;
mod keys;

use std::collections::VecDeque;

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::snapshot::tests::{at, nested, steady};
use crate::snapshot::{RateMeter, Stats};

/// Statistics with rates, of these devices: `d0` has three queues, `eth1` has an `htb` qdisc,
/// `wide0` has twenty queues.
fn look(second: u64) -> Stats {
    let devices = |step| {
        let mut down = steady("spare0", 4, 1, 0);
        down.up = false;
        vec![steady("d0", 1, 3, step), nested("eth1", 2), steady("wide0", 3, 20, step), down]
    };
    let mut meter = RateMeter::default();
    meter.update(&at(second, devices(second)));
    meter.update(&at(second + 1, devices(second + 1)))
}

fn screen_of(view: &mut View, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    terminal.draw(|frame| screen::draw(frame, view)).expect("it draws");
    let buffer = terminal.backend().buffer();
    let cell = |x, y| buffer[(x, y)].symbol().to_owned();
    let line = |y| (0..width).map(|x| cell(x, y)).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect()
}

fn press(view: &mut View, keys: &str) -> Step {
    let mut step = Step::On;
    for c in keys.chars() {
        let code = match c {
            '↓' => KeyCode::Down,
            '↑' => KeyCode::Up,
            '→' => KeyCode::Right,
            '←' => KeyCode::Left,
            '\n' => KeyCode::Enter,
            '\u{1b}' => KeyCode::Esc,
            '\u{8}' => KeyCode::Backspace,
            c => KeyCode::Char(c),
        };
        step = view.key(KeyEvent::new(code, KeyModifiers::NONE));
    }
    step
}

fn names(view: &View) -> Vec<String> {
    view.lines().iter().map(|line| line.row.id.clone()).collect()
}

#[test]
fn a_screen_has_all_that_matters() {
    let mut view = View::default();
    let before = screen_of(&mut view, 100, 8).join("\n");
    assert!(before.contains("Waiting for the daemon"), "{before}");
    view.take(look(1));
    let screen = screen_of(&mut view, 110, 60);
    assert!(screen[0].starts_with("onramp top  4 devices, 25 queues  173Mbit/s  21.6k packets/s"));
    assert!(screen[0].ends_with("1.08k drops/s"), "{}", screen[0]);
    let line = |name: &str| {
        let found = screen.iter().find(|line| line.contains(name));
        found.unwrap_or_else(|| panic!("no {name} in {screen:#?}")).split_whitespace().collect()
    };
    let d0: Vec<&str> = line("d0 dummy");
    let expected = "▾ d0 dummy, 3 queues 4.80Mbit 600 21 1.54us 2.05us 30 overlimit 30";
    assert_eq!(d0.join(" "), expected);
    // If a device has only one queue, that queue has no row of its own. If a device has many
    // queues, they are collapsed at first.
    assert_eq!(line("fq_codel 10:").first(), Some(&"fq_codel"));
    assert!(line("spare0").contains(&"down"));
    assert!(screen.iter().any(|line| line.starts_with("  ▸ queue 19")));
    assert!(screen.last().is_some_and(|line| line.starts_with("sort: tree  ? help")));
}

#[test]
fn rows_open_and_close() {
    let mut view = View::default();
    view.take(look(1));
    let all = names(&view).len();
    // `d0` has 7 rows, `eth1` 7, `wide0` 21 and `spare0` 2.
    assert_eq!(all, 7 + 7 + 21 + 2);
    press(&mut view, "←");
    assert_eq!(names(&view).len(), all - 6);
    press(&mut view, "→↓↓");
    assert_eq!((names(&view).len(), view.at), (all, 2));
    press(&mut view, "←");
    assert_eq!(view.at, 1, "what has nothing below it leads to what is above");
    press(&mut view, "\n");
    assert_eq!(names(&view).len(), all - 1);
    press(&mut view, "a");
    assert_eq!(names(&view).len(), all + 20);
    press(&mut view, "a↓↓↓");
    assert_eq!((names(&view).len(), view.at), (all, 4));
}

#[test]
fn order_filter_and_pause() {
    let mut view = View::default();
    view.take(look(1));
    press(&mut view, "r");
    assert_eq!(names(&view)[..3], ["wide0", "wide0/19", "wide0/18"]);
    assert_eq!(names(&view)[view.at], "d0", "the chosen row stays chosen");
    press(&mut view, "/fq_codelx\u{8}");
    assert!(view.typing());
    assert_eq!(names(&view).last().map(String::as_str), Some("eth1/0/10:"));
    press(&mut view, "\n");
    assert_eq!((view.typing(), view.filter.as_str()), (false, "fq_codel"));
    press(&mut view, "/q\u{1b}");
    assert_eq!(view.filter, "fq_codel", "escape takes back what was typed");
    press(&mut view, "/zz\n");
    assert!(screen_of(&mut view, 80, 8)[2].contains("Nothing matches \"fq_codelzz\"."));
    assert_eq!(press(&mut view, "\u{1b}"), Step::On);
    assert_eq!(view.filter, "");
    press(&mut view, " ");
    let before = screen_of(&mut view, 100, 30);
    assert!(before[0].ends_with("paused"), "{}", before[0]);
    let mut other = look(5);
    other.rows.truncate(1);
    view.take(other.clone());
    assert_eq!(screen_of(&mut view, 100, 30), before);
    press(&mut view, " ");
    view.take(other);
    assert_eq!(names(&view), ["d0"]);
    assert_eq!(press(&mut view, "q"), Step::Quit);
    assert_eq!(press(&mut view, "\u{1b}"), Step::Quit);
    let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    press(&mut view, "/");
    assert_eq!(view.key(control), Step::Quit);
}

#[test]
fn the_chosen_row_is_on_the_screen() {
    let mut view = View::default();
    view.take(look(1));
    for _ in 0..30 {
        press(&mut view, "↓");
    }
    let name = view.lines()[view.at].row.label();
    let screen = screen_of(&mut view, 100, 12);
    assert!(screen.iter().any(|line| line.contains(&name)), "{name}: {screen:#?}");
    view.key(KeyEvent::new(KeyCode::End, KeyModifiers::NONE));
    assert!(screen_of(&mut view, 100, 12)[10].contains("fq 8001:"));
    view.key(KeyEvent::new(KeyCode::Home, KeyModifiers::NONE));
    assert!(screen_of(&mut view, 100, 12)[3].contains("d0"));
    // Drawing never fails, however small the terminal is.
    for (width, height) in [(1, 1), (2, 4), (20, 3), (300, 2)] {
        screen_of(&mut view, width, height);
        view.help = true;
        screen_of(&mut view, width, height);
        view.help = false;
    }
}

#[test]
fn help_and_no_devices() {
    let mut view = View::default();
    view.take(Stats::default());
    let screen = screen_of(&mut view, 90, 20).join("\n");
    assert!(screen.contains("onramp tc qdisc replace dev d0 root fq"), "{screen}");
    press(&mut view, "?");
    let screen = screen_of(&mut view, 90, 20).join("\n");
    assert!(screen.contains("order: tree, rate, packets"), "{screen}");
    assert_eq!(press(&mut view, "q"), Step::On);
    assert!(!view.help);
}

/// With ten thousand queues, only the rows that fit are drawn.
#[test]
fn many_queues() {
    let mut meter = RateMeter::default();
    meter.update(&at(0, vec![steady("wide0", 1, 10_000, 1)]));
    let mut view = View::new(Sort::Rate, "");
    view.take(meter.update(&at(1, vec![steady("wide0", 1, 10_000, 2)])));
    assert_eq!(view.lines().len(), 10_001);
    let screen = screen_of(&mut view, 100, 30);
    assert!(screen[4].contains("queue 9999"), "{screen:#?}");
}

/// A source of statistics (a `Feed`) that returns prepared statistics from a list.
struct Given(VecDeque<Stats>);

impl Feed for Given {
    fn poll(&mut self) -> Result<Option<Stats>, FeedError> {
        Ok(self.0.pop_front())
    }

    fn wait(&mut self) -> Result<Stats, FeedError> {
        self.0.pop_front().ok_or(FeedError::Gone)
    }
}

#[test]
fn tables_for_programs() {
    let first = Stats { seconds: None, ..look(1) };
    let given = || Given(VecDeque::from([first.clone(), look(1), look(2), look(3)]));
    let mut out = Vec::new();
    let query = Query { device: Some("eth1".into()), ..Query::default() };
    let batch = Batch { tables: Some(2), json: false, query };
    print(&mut given(), &batch, &mut out).expect("it is there");
    let text = String::from_utf8(out).expect("text");
    let tables: Vec<_> = text.split("\n\n").collect();
    assert_eq!(tables.len(), 3, "{text}");
    let lines: Vec<_> = tables[0].lines().collect();
    assert!(lines[0].starts_with("NAME ") && lines[0].ends_with("DROPS/S  REASONS"), "{text}");
    assert_eq!(lines[3].split_whitespace().next(), Some("htb"));
    let mut out = Vec::new();
    let query = Query { filter: Some("nosuchword".into()), ..Query::default() };
    let nothing = print(&mut given(), &Batch { tables: Some(2), json: false, query }, &mut out);
    let told = nothing.expect_err("no row has it").to_string();
    assert!(told.starts_with("no row contains \"nosuchword\"; "), "{told}");
    let text = String::from_utf8(out).expect("text");
    assert!(!text.contains("more"), "rows that the filter hides are none to look for: {text}");
    // Of the eight rows of eth1, six exceed the limit.
    let mut out = Vec::new();
    let query = Query { filter: Some("eth1".into()), limit: Some(2), ..Query::default() };
    print(&mut given(), &Batch { tables: Some(1), json: false, query }, &mut out).expect("rows");
    let text = String::from_utf8(out).expect("text");
    assert!(text.ends_with("\n6 more\n\n"), "{text}");
    // Rows that exceed the limit are there.
    let query = Query { filter: Some("eth1".into()), limit: Some(0), ..Query::default() };
    let batch = Batch { tables: Some(1), json: false, query };
    print(&mut given(), &batch, &mut Vec::new()).expect("eight rows");
    let json = Batch { tables: None, json: true, query: Query::default() };
    let mut out = Vec::new();
    let ended = print(&mut given(), &json, &mut out);
    assert!(matches!(ended, Err(FeedError::Gone)));
    let text = String::from_utf8(out).expect("text");
    let read: Vec<Stats> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(read, [look(1), look(2), look(3)]);
}
