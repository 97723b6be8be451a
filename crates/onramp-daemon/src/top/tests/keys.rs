//! The effect of each key in `onramp top`.

use super::*;
use crate::snapshot::{Row, What};
use crate::top::view::{Sum, reasons};

fn shown(sort: Sort) -> View {
    let mut view = View::new(sort, "");
    view.take(look(1));
    view
}

fn press_code(view: &mut View, code: KeyCode) -> Step {
    view.key(KeyEvent::new(code, KeyModifiers::NONE))
}

#[test]
fn letters_sort() {
    let mut view = shown(Sort::Tree);
    for (key, sort) in [
        ("r", Sort::Rate),
        ("t", Sort::Tree),
        ("p", Sort::Packets),
        ("b", Sort::Backlog),
        ("l", Sort::P99),
        ("d", Sort::Drops),
    ] {
        assert_eq!(press(&mut view, key), Step::On);
        assert_eq!(view.sort, sort, "{key}");
        let mut other = View::new(sort, "");
        other.take(look(1));
        assert_eq!(names(&view), names(&other), "{key}");
    }
}

#[test]
fn the_mark_moves() {
    let mut view = shown(Sort::Tree);
    let last = view.lines().len() - 1;
    for (code, at) in [
        (KeyCode::Up, 0),
        (KeyCode::Down, 1),
        (KeyCode::Char('j'), 2),
        (KeyCode::Char('k'), 1),
        (KeyCode::Up, 0),
        (KeyCode::PageDown, 20),
        (KeyCode::PageUp, 0),
        (KeyCode::End, last),
        (KeyCode::Down, last),
        (KeyCode::PageUp, last - 20),
        (KeyCode::PageDown, last),
        (KeyCode::Home, 0),
        (KeyCode::Tab, 0),
    ] {
        assert_eq!(press_code(&mut view, code), Step::On);
        assert_eq!(view.at, at, "{code:?}");
        // The selection stays on the selected row, even if that row moves to another place in the
        // table.
        view.take(look(2));
        assert_eq!(view.at, at, "{code:?}");
    }
}

#[test]
fn help_comes_and_goes() {
    for code in [KeyCode::Char('?'), KeyCode::Char('h'), KeyCode::F(1)] {
        let mut view = shown(Sort::Tree);
        assert_eq!((press_code(&mut view, code), view.help), (Step::On, true));
        // While the help is shown, any key closes it and has no other effect.
        assert_eq!((press(&mut view, "r"), view.help), (Step::On, false));
        assert_eq!(view.sort, Sort::Tree);
    }
    let mut view = shown(Sort::Tree);
    assert_eq!((press_code(&mut view, KeyCode::F(2)), view.help), (Step::On, false));
    // `c` without the control key does nothing, and the control key with a letter other than `c`
    // does not quit.
    assert_eq!(press(&mut view, "c"), Step::On);
    let control = KeyEvent::new(KeyCode::Char('d'), KeyModifiers::CONTROL);
    assert_eq!(view.key(control), Step::On);
}

#[test]
fn a_filter_is_typed_and_given_up() {
    let mut view = shown(Sort::Tree);
    let all = names(&view);
    press(&mut view, "/q");
    assert_eq!((view.filter.as_str(), view.typing()), ("q", true), "letters are no keys now");
    press(&mut view, "\u{8}fq_codel");
    let found = names(&view);
    assert_eq!(found, ["eth1", "eth1/0/1:", "eth1/0/1:1", "eth1/0/1:10", "eth1/0/10:"]);
    // While the user edits the filter, keys that neither change it nor end the editing do nothing.
    press(&mut view, "←↓");
    assert_eq!((names(&view), view.at), (found.clone(), 0));
    press(&mut view, "\n");
    assert_eq!(names(&view), found);
    // The first press of escape removes the filter, and the second press quits.
    assert_eq!(press(&mut view, "\u{1b}"), Step::On);
    assert_eq!((names(&view), view.filter.as_str()), (all, ""));
    assert_eq!(press(&mut view, "\u{1b}"), Step::Quit);
    // `q` quits even if a filter is set.
    press(&mut view, "/x\n");
    assert_eq!(press(&mut view, "q"), Step::Quit);
    assert_eq!(view.filter, "x");
}

/// The right arrow opens a closed row; on an open row, it moves the selection to the row below. The
/// left arrow closes an open row; on any other row, it moves the selection to the row above in the
/// tree.
#[test]
fn arrows_open_and_close() {
    let mut view = shown(Sort::Tree);
    let all = names(&view);
    // `d0` is open, so the right arrow moves the selection to the first row below `d0`. On a row
    // that has no rows below it, the right arrow does nothing.
    press(&mut view, "→");
    assert_eq!((view.at, names(&view) == all), (1, true));
    press(&mut view, "→→");
    assert_eq!((view.at, view.lines()[2].open), (2, None));
    press(&mut view, "←");
    assert_eq!(view.at, 1);
    press(&mut view, "←");
    assert_eq!(
        (view.at, view.lines()[1].open, names(&view).len()),
        (1, Some(false), all.len() - 1)
    );
    // On a closed row, the left arrow moves the selection to the row above it in the tree.
    press(&mut view, "←");
    assert_eq!((view.at, names(&view).len()), (0, all.len() - 1));
    press(&mut view, "←←");
    assert_eq!((view.at, view.lines()[0].open), (0, Some(false)));
    assert_eq!(names(&view).len(), all.len() - 6);
    // If the user closes a row and opens it again, rows below it that the user had closed stay
    // closed. The key `enter` opens and closes a row.
    press(&mut view, "\n");
    assert_eq!((view.at, names(&view).len()), (0, all.len() - 1));
    press(&mut view, "\n");
    assert_eq!(view.lines()[0].open, Some(false));
    press(&mut view, "aa");
    assert_eq!(names(&view), all, "what was done by hand is forgotten");
    press(&mut view, "↓↓\n");
    assert_eq!((names(&view), view.at), (all, 2), "nothing is below it");
}

/// The queues of a device are open at first if there are at most four. If a device has only one
/// queue, that queue is not shown, and the rows below it move up one level.
#[test]
fn few_queues_are_open() {
    for (queues, lines) in [(1, 2), (2, 5), (4, 9), (5, 6)] {
        let mut view = View::default();
        view.take(RateMeter::default().update(&at(1, vec![steady("x0", 1, queues, 1)])));
        assert_eq!(view.lines().len(), lines, "{queues}");
        let depths: Vec<usize> = view.lines().iter().map(|line| line.depth).take(3).collect();
        let expected = match queues {
            1 => vec![0, 1],
            5 => vec![0, 1, 1],
            _ => vec![0, 1, 2],
        };
        assert_eq!(depths, expected, "{queues}");
        let open = view.lines()[1].open;
        let expected = match queues {
            1 => None,
            5 => Some(false),
            _ => Some(true),
        };
        assert_eq!((view.lines()[0].open, open), (Some(true), expected), "{queues}");
        // A filter also shows the rows that it finds below closed rows.
        press(&mut view, "/fq\n");
        assert_eq!(view.lines().len(), if queues == 1 { 2 } else { 1 + 2 * queues });
    }
}

#[test]
fn a_mark_whose_row_has_gone_stays_where_it_was() {
    let mut view = shown(Sort::Tree);
    press(&mut view, "↓↓");
    let mut fewer = look(1);
    fewer.rows.retain(|row| row.id != "d0/0/8001:");
    view.take(fewer);
    assert_eq!((view.at, names(&view)[2].as_str()), (2, "d0/1"));
    press_code(&mut view, KeyCode::End);
    let mut one = look(1);
    one.rows.truncate(3);
    view.take(one);
    assert_eq!((view.at, names(&view).len()), (2, 3));
    view.take(Stats::default());
    assert_eq!((view.at, names(&view).len()), (0, 0));
    // If the table is empty, the keys that move the selection or open rows do nothing.
    press(&mut view, "↓←→\n");
    assert_eq!(view.at, 0);
}

/// The sum of the rates of all devices includes every device whose rates are known.
#[test]
fn devices_are_summed() {
    let row = |what, queues, figure: Option<f64>| Row {
        what,
        queues,
        bytes_per_second: figure,
        packets_per_second: figure.map(|figure| figure * 2.0),
        drops_per_second: figure.map(|figure| figure * 4.0),
        ..Row::default()
    };
    let mut view = View::default();
    assert_eq!(view.sum(), Sum::default());
    let rows = vec![
        row(What::Device, Some(3), Some(0.5)),
        row(What::Queue, None, Some(100.0)),
        row(What::Device, Some(4), Some(8.0)),
        row(What::Device, None, None),
    ];
    view.take(Stats { rows, ..Stats::default() });
    let expected = Sum {
        devices: 3,
        queues: 7,
        bytes_per_second: Some(8.5),
        packets_per_second: Some(17.0),
        drops_per_second: Some(34.0),
    };
    assert_eq!(view.sum(), expected);
}

/// The view lists only the reasons for which packets are dropped at present, highest rate first.
#[test]
fn reasons_of_now() {
    let drops = [("a", Some(0.5)), ("b", Some(2_000.0)), ("c", Some(0.0)), ("d", None)];
    let reason = |per_second| crate::snapshot::Reason { packets: 9, per_second };
    let drops = drops.into_iter().map(|(name, rate)| (name.into(), reason(rate))).collect();
    assert_eq!(reasons(&Row { drops, ..Row::default() }), "b 2.00k, a 0.50");
    assert_eq!(reasons(&Row::default()), "");
}

/// If the view is paused before it has any statistics, it takes the first statistics that arrive,
/// and no others until the pause ends.
#[test]
fn a_pause_keeps_the_first_look() {
    let mut view = View::default();
    press(&mut view, " ");
    assert!(!view.has_looked());
    view.take(look(1));
    assert!(view.has_looked());
    view.take(Stats::default());
    assert_eq!(names(&view), names(&shown(Sort::Tree)));
    press(&mut view, " ");
    view.take(Stats::default());
    assert_eq!(names(&view).len(), 0);
}

/// A writer that accepts as many bytes as field `0` says, and then fails with the error kind in
/// field `1`.
struct Taker(usize, io::ErrorKind);

impl Write for Taker {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(self.1)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn tables_end_with_their_reader() {
    let batch = Batch::default();
    let ended = |kind| print(&mut Given(VecDeque::from([look(1)])), &batch, &mut Taker(9, kind));
    assert!(matches!(ended(io::ErrorKind::BrokenPipe), Ok(())));
    assert!(matches!(ended(io::ErrorKind::StorageFull), Err(FeedError::Show(_))));
    let none = Batch { tables: Some(0), ..Batch::default() };
    let mut out = Vec::new();
    assert!(print(&mut Given(VecDeque::new()), &none, &mut out).is_ok() && out.is_empty());
}

/// The exact text of a table in plain text; the first column is as wide as the longest name.
#[test]
fn a_table_is_plain_text() {
    let row = |what, depth, device: &str| Row {
        what,
        depth,
        device: device.into(),
        queue: Some(12),
        ..Row::default()
    };
    let drops = [("late".into(), crate::snapshot::Reason { packets: 5, per_second: Some(3.0) })];
    let busy = Row {
        bytes_per_second: Some(125_000.0),
        packets_per_second: Some(1_234.0),
        backlog_packets: 7,
        sojourn_p50_ns: Some(1_500.0),
        sojourn_p99_ns: Some(2e6),
        drops_per_second: Some(3.0),
        drops: drops.into(),
        ..row(What::Device, 0, "d0")
    };
    let rows = vec![busy, row(What::Queue, 1, "d0")];
    let table = |cut| batch::table(&Stats { rows: rows.clone(), ..Stats::default() }, cut);
    let text = "\
NAME            RATE PACKETS/S   BACKLOG       P50       P99   DROPS/S  REASONS
d0          1.00Mbit     1.23k         7    1.50us    2.00ms         3  late 3
  queue 12         -         -         0         -         -         -
";
    assert_eq!(table(0), format!("{text}\n"));
    assert_eq!(table(1), format!("{text}1 more\n\n"));
    // The first column of the plain text is at least as wide as its title.
    let short = vec![row(What::Device, 0, "d")];
    let short = batch::table(&Stats { rows: short, ..Stats::default() }, 0);
    assert!(short.starts_with("NAME      RATE PACKETS/S "), "{short}");
    assert!(short.contains("\nd            -         - "), "{short}");
}
