//! What `onramp top` draws on the screen, cell by cell.

use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier};

use super::*;
use crate::snapshot::{Reason, Row, What};

fn drawn(view: &mut View, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    terminal.draw(|frame| screen::draw(frame, view)).expect("it draws");
    terminal.backend().buffer().clone()
}

fn line(buffer: &Buffer, y: u16) -> String {
    let cell = |x| buffer[(x, y)].symbol();
    (0..buffer.area.width).map(cell).collect::<String>()
}

/// Returns the column in which a word begins.
fn place(buffer: &Buffer, y: u16, word: &str) -> u16 {
    let line = line(buffer, y);
    let at = line.find(word).unwrap_or_else(|| panic!("no {word:?} in {line:?}"));
    u16::try_from(line[..at].chars().count()).expect("a narrow screen")
}

fn device(name: &str, queues: usize) -> Row {
    Row {
        id: name.into(),
        device: name.into(),
        queues: Some(queues),
        kind: Some("veth".into()),
        up: Some(true),
        ..Row::default()
    }
}

fn view(rows: Vec<Row>, sort: Sort) -> View {
    let mut view = View::new(sort, "");
    view.take(Stats { rows, ..Stats::default() });
    view
}

/// Three devices: one with traffic, one without, and one that is down.
fn three() -> Vec<Row> {
    let reason = Reason { packets: 5, per_second: Some(0.5) };
    let busy = Row {
        bytes_per_second: Some(125_000.0),
        packets_per_second: Some(1_234.0),
        backlog_packets: 1,
        sojourn_p50_ns: Some(1_500.0),
        sojourn_p99_ns: Some(2e6),
        drops_per_second: Some(0.5),
        drops: [("late".into(), reason)].into(),
        ..device("d0", 2)
    };
    let zero = Some(0.0);
    let idle = Row {
        bytes_per_second: zero,
        packets_per_second: zero,
        drops_per_second: zero,
        ..device("d1", 1)
    };
    vec![busy, idle, Row { up: Some(false), ..device("d2", 5) }]
}

/// Formats eight columns as the screen shows them on a line of 104 cells. The first and the last
/// column share, as 3:2, the width that the other columns leave: they get 30 and 20 cells.
fn columns(cells: [&str; 8]) -> String {
    let [name, rate, packets, backlog, p50, p99, drops, reasons] = cells;
    format!(
        "{name:30} {rate:>9} {packets:>9} {backlog:>8} {p50:>7} {p99:>7} {drops:>7} {reasons:20}"
    )
}

#[test]
fn every_line_of_the_screen() {
    let buffer = drawn(&mut view(three(), Sort::Tree), 104, 8);
    let lines: Vec<String> = (0..8).map(|y| line(&buffer, y)).collect();
    let blank = " ".repeat(104);
    let expected = [
        format!(
            "{:104}",
            "onramp top  3 devices, 8 queues  1.00Mbit/s  1.23k packets/s  0.50 drops/s"
        ),
        blank.clone(),
        columns(["NAME", "RATE", "PACKETS/S", "BACKLOG", "P50", "P99", "DROPS/S", "REASONS"]),
        columns([
            "  d0 veth, 2 queues",
            "1.00Mbit",
            "1.23k",
            "1",
            "1.50us",
            "2.00ms",
            "0.50",
            "late 0.50",
        ]),
        columns(["  d1 veth", "0bit", "0", "0", "-", "-", "0", ""]),
        columns(["  d2 veth, 5 queues down", "-", "-", "0", "-", "-", "-", ""]),
        blank,
        format!("{:104}", "sort: tree  ? help  / filter  space pause  q quit"),
    ];
    assert_eq!(lines, expected);
}

/// A narrow screen shows fewer columns, and the names keep 16 cells. The column by which the rows
/// are sorted is the last to go.
#[test]
fn a_narrow_screen_shows_names_and_fewer_columns() {
    let heads = |width, sort| {
        let buffer = drawn(&mut view(three(), sort), width, 8);
        let names = line(&buffer, 3);
        assert!(names.starts_with("  d0 veth, 2 que"), "{width}: {names:?}");
        line(&buffer, 2).split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    let all = "NAME RATE PACKETS/S BACKLOG P50 P99 DROPS/S REASONS";
    let figures = "NAME RATE PACKETS/S BACKLOG P50 P99 DROPS/S";
    for (width, sort, expected) in [
        (300, Sort::Tree, all),
        (82, Sort::Tree, all),
        (81, Sort::Tree, figures),
        (80, Sort::Tree, figures),
        (69, Sort::Tree, figures),
        (68, Sort::Tree, "NAME RATE PACKETS/S BACKLOG P99 DROPS/S"),
        (60, Sort::Tree, "NAME RATE BACKLOG P99 DROPS/S"),
        (50, Sort::Tree, "NAME RATE BACKLOG DROPS/S"),
        (40, Sort::Tree, "NAME RATE DROPS/S"),
        (40, Sort::Packets, "NAME RATE PACKETS/S"),
        (30, Sort::Tree, "NAME RATE"),
        (30, Sort::Packets, "NAME PACKETS/S"),
        (20, Sort::Packets, "NAME"),
    ] {
        assert_eq!(heads(width, sort), expected, "{width} {sort:?}");
    }
}

/// A row that can be opened or closed begins with a triangle, and the rows below it are indented.
#[test]
fn a_tree_has_signs() {
    let below = |what, id: &str, depth, handle: &str| Row {
        what,
        id: id.into(),
        depth,
        device: "d0".into(),
        queue: Some(0),
        kind: Some("htb".into()),
        handle: Some(handle.into()),
        ..Row::default()
    };
    let mut view = view(
        vec![
            device("d0", 2),
            below(What::Queue, "d0/0", 1, ""),
            below(What::Qdisc, "d0/0/1:", 2, "1:"),
            below(What::Class, "d0/0/1:1", 3, "1:1"),
        ],
        Sort::Tree,
    );
    press(&mut view, "↓↓←");
    let buffer = drawn(&mut view, 104, 8);
    let names = [3, 4, 5].map(|y| line(&buffer, y).chars().take(30).collect::<String>());
    let names = names.each_ref().map(|name| name.trim_end());
    assert_eq!(names, ["▾ d0 veth, 2 queues", "  ▾ queue 0", "    ▸ htb 1:"]);
    press(&mut view, "→");
    let buffer = drawn(&mut view, 104, 8);
    assert!(line(&buffer, 6).starts_with("        class 1:1 "), "{}", line(&buffer, 6));
}

fn colour(buffer: &Buffer, y: u16, word: &str) -> Color {
    buffer[(place(buffer, y, word), y)].fg
}

fn has(buffer: &Buffer, y: u16, word: &str, modifier: Modifier) -> bool {
    buffer[(place(buffer, y, word), y)].modifier.contains(modifier)
}

/// The colours of the table: drops and devices that are down are red, a backlog is yellow, and the
/// selected row is highlighted.
#[test]
fn colours_say_what_matters() {
    let mut view = view(three(), Sort::Tree);
    press(&mut view, "↓");
    let buffer = drawn(&mut view, 104, 8);
    assert_eq!(colour(&buffer, 0, "0.50 drops/s"), Color::Red);
    assert_eq!(colour(&buffer, 0, "1.23k packets"), Color::Reset);
    assert_eq!(colour(&buffer, 3, "0.50 late"), Color::Red);
    assert_eq!(buffer[(58, 3)].fg, Color::Yellow, "the backlog");
    assert_eq!((buffer[(58, 4)].symbol(), buffer[(58, 4)].fg), ("0", Color::Reset));
    assert_eq!((buffer[(82, 4)].symbol(), buffer[(82, 4)].fg), ("0", Color::Reset));
    assert_eq!(colour(&buffer, 5, "down"), Color::Red);
    for (y, chosen) in [(3, false), (4, true), (5, false)] {
        assert_eq!(has(&buffer, y, "veth", Modifier::REVERSED), chosen, "{y}");
        assert!(has(&buffer, y, "d", Modifier::BOLD) && has(&buffer, y, "veth", Modifier::DIM));
    }
    assert!(has(&buffer, 0, "onramp top", Modifier::BOLD));
    assert!(has(&buffer, 7, "? help", Modifier::DIM) && !has(&buffer, 7, "sort", Modifier::DIM));
    // If no packets are dropped, nothing on the screen is red.
    let buffer = drawn(&mut self::view(three().split_off(1), Sort::Tree), 104, 8);
    assert_eq!(colour(&buffer, 0, "0 drops/s"), Color::Reset);
}

/// The title of the column by which the rows are sorted is underlined; in tree order, no title is.
#[test]
fn the_order_is_underlined() {
    let heads = ["NAME", "RATE", "PACKETS/S", "BACKLOG", "P50", "P99", "DROPS/S", "REASONS"];
    for (sort, head) in [
        (Sort::Tree, None),
        (Sort::Rate, Some("RATE")),
        (Sort::Packets, Some("PACKETS/S")),
        (Sort::Backlog, Some("BACKLOG")),
        (Sort::P99, Some("P99")),
        (Sort::Drops, Some("DROPS/S")),
    ] {
        let buffer = drawn(&mut view(three(), sort), 104, 8);
        let underlined = |head: &&str| has(&buffer, 2, head, Modifier::UNDERLINED);
        let found: Vec<&str> = heads.into_iter().filter(underlined).collect();
        assert_eq!(found, Vec::from_iter(head), "{sort:?}");
        assert!(has(&buffer, 2, "NAME", Modifier::BOLD));
    }
}

/// The list scrolls so that the selected row is visible. The list leaves no line of the screen
/// empty while there are more rows.
#[test]
fn a_long_list_scrolls() {
    let rows = || (0..20).map(|number| device(&format!("n{number:02}"), 1)).collect::<Vec<_>>();
    let mut view = view(rows(), Sort::Tree);
    // Eight lines: the header, an empty line, the column titles, four rows and the footer.
    let shown = |view: &mut View| -> Vec<String> {
        let buffer = drawn(view, 104, 8);
        (3..7).map(|y| line(&buffer, y).split_whitespace().next().unwrap_or("").into()).collect()
    };
    assert_eq!(shown(&mut view), ["n00", "n01", "n02", "n03"]);
    press(&mut view, "↓↓↓");
    assert_eq!(shown(&mut view), ["n00", "n01", "n02", "n03"]);
    press(&mut view, "↓");
    assert_eq!(shown(&mut view), ["n01", "n02", "n03", "n04"]);
    press(&mut view, "↑↑↑");
    assert_eq!(shown(&mut view), ["n01", "n02", "n03", "n04"], "as long as it is there");
    press(&mut view, "↑");
    assert_eq!(shown(&mut view), ["n00", "n01", "n02", "n03"]);
    view.key(KeyEvent::new(KeyCode::End, KeyModifiers::NONE));
    assert_eq!(shown(&mut view), ["n16", "n17", "n18", "n19"]);
    // If rows disappear, the list scrolls back so that it still fills the screen.
    let mut fewer = rows();
    fewer.truncate(10);
    view.take(Stats { rows: fewer, ..Stats::default() });
    assert_eq!(shown(&mut view), ["n06", "n07", "n08", "n09"]);
}

/// The help box is centred and 78 cells wide, and hides the table behind it.
#[test]
fn help_stands_in_the_middle() {
    let rows = (0..20).map(|number| device(&format!("n{number:02}"), 1)).collect();
    let mut view = view(rows, Sort::Tree);
    press(&mut view, "?");
    let buffer = drawn(&mut view, 100, 20);
    // The help box has seven lines of text and a border: 9 of the screen's 20 lines, from line 5
    // on, and 78 of its 100 columns, from column 11 on.
    let corners = [(11, 5), (88, 5), (11, 13), (88, 13)].map(|at| buffer[at].symbol());
    assert_eq!(corners, ["┌", "┐", "└", "┘"]);
    let inside = |y: u16| (12..88).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    assert_eq!(inside(5), format!("{:─<76}", " onramp top: press any key to return "));
    let first = " t r p b l d order: tree, rate, packets, backlog, latency, drops";
    assert_eq!(inside(6), format!("{first:76}"));
    assert_eq!(inside(12), format!("{:76}", " q           quit"));
    assert!(line(&buffer, 4).starts_with("  n01 veth"));
    assert!(line(&buffer, 6).starts_with("  n03 veth "), "beside it the table goes on");
    // If the terminal is smaller than the help box, the box takes the whole screen.
    let buffer = drawn(&mut view, 40, 5);
    let corners = [(0, 0), (39, 0), (0, 4), (39, 4)].map(|at| buffer[at].symbol());
    assert_eq!(corners, ["┌", "┐", "└", "┘"]);
}

/// The text that the screen shows if there are no rows, and the footer.
#[test]
fn words_in_the_place_of_rows() {
    let mut view = View::default();
    assert!(line(&drawn(&mut view, 80, 8), 2).starts_with("Waiting for the daemon. "));
    view.take(Stats::default());
    let buffer = drawn(&mut view, 80, 8);
    assert!(
        line(&buffer, 2).starts_with("There are no devices yet. Make one, and give it a qdisc:")
    );
    assert!(line(&buffer, 4).starts_with("  onramp ip link add dev d0 type dummy "));
    press(&mut view, "/ ");
    let buffer = drawn(&mut view, 80, 8);
    assert!(line(&buffer, 2).starts_with("There are no devices yet."), "a blank is no filter");
    assert!(line(&buffer, 7).starts_with("/ █ "), "{}", line(&buffer, 7));
    press(&mut view, "x y");
    let buffer = drawn(&mut view, 80, 8);
    assert!(line(&buffer, 2).starts_with("Nothing matches \" x y\". "));
    press(&mut view, "\n");
    let foot = "sort: tree  filter:  x y  ? help  / filter  space pause  q quit ";
    assert!(line(&drawn(&mut view, 80, 8), 7).starts_with(foot));
    press(&mut view, " ");
    let buffer = drawn(&mut view, 80, 8);
    assert!(line(&buffer, 0).trim_end().ends_with("- drops/s  paused"), "{}", line(&buffer, 0));
    assert_eq!(colour(&buffer, 0, "paused"), Color::Yellow);
}
