//! The parts that all HTML reports have in common. A report is one file that needs no other files.
//! It has a light and a dark theme.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::chart::{self, Scene};

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2733;--soft:#5b6b7b;--line:#d7dee5;--paper:#fff;\
--ours:#0b7a75}\
@media screen and (prefers-color-scheme:dark){:root{--ink:#e4eaf0;--soft:#94a5b5;--line:#33414e;\
--paper:#131a21;--ours:#2fb3ab}}\
body{margin:0 auto;max-width:76rem;padding:2rem 1rem;color:var(--ink);background:var(--paper);\
font:16px/1.5 system-ui,sans-serif}\
h1{font-size:1.5rem;margin:0 0 .25rem}h2{font-size:1.25rem;margin:2.5rem 0 .5rem}\
h3{font-size:1.05rem;margin:1.5rem 0 .5rem}a{color:var(--ours)}\
p.meaning{font-size:1.1rem;border-left:.25rem solid var(--ours);padding-left:.75rem;\
max-width:60rem}p.failed{font-weight:600}.soft{color:var(--soft)}code{overflow-wrap:anywhere}\
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr));\
gap:1rem 2rem;align-items:start}figure{margin:0;overflow-x:auto;break-inside:avoid}\
.chart{display:block;width:100%;min-width:21rem;max-width:44rem;height:auto}\
.wide{overflow-x:auto;margin:0 0 1rem}table{border-collapse:collapse;font-size:.85rem;\
font-variant-numeric:tabular-nums}\
th,td{padding:.2rem .6rem;border-bottom:1px solid var(--line);text-align:right;\
white-space:nowrap}th{font-weight:600;white-space:normal;vertical-align:bottom}\
th:first-child,td:first-child{text-align:left;white-space:normal;min-width:5rem;max-width:18rem;\
overflow-wrap:break-word;position:sticky;left:0;background:var(--paper)}\
.range{display:block;color:var(--soft);font-size:.9em}li{margin:.25rem 0}\
@media(max-width:40rem){th:first-child,td:first-child{max-width:8rem}\
.wide{border-right:2px dotted var(--line)}}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:.5rem 0}\
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}\
@media screen and (max-width:40rem){.wide.cards{border-right:0}.cards thead{display:none}\
.cards table,.cards tbody,.cards tr{display:block}.cards tr{padding:.5rem 0}\
.cards td,.cards td:first-child{display:flex;justify-content:space-between;gap:1rem;\
position:static;max-width:none;min-width:0;white-space:normal;overflow-wrap:anywhere;\
text-align:right}.cards td:first-child{font-weight:600}\
.cards td::before{content:attr(data-head);color:var(--soft);font-weight:400;text-align:left}}\
@media print{body{max-width:none;padding:0;font-size:12px}table{font-size:8px}\
.wide,figure{overflow:visible}.chart{min-width:0}th,td{padding:.1rem .3rem}}";

/// Returns a whole HTML page with the given title and body.
pub(crate) fn page(title: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                title { (title) }
                style { (PreEscaped(STYLE)) "\n" (PreEscaped(chart::css())) }
            }
            "\n"
            body { "\n" h1 { (title) } "\n" (body) }
        }
    };
    page.into_string() + "\n"
}

/// Returns charts, side by side if there is room.
pub(crate) fn charts<'a>(scenes: impl IntoIterator<Item = &'a Scene>) -> Markup {
    html! {
        div class="charts" { "\n" @for scene in scenes { figure { (scene.inline()) } "\n" } }
    }
}

/// Returns a table whose first column is text and whose other columns are figures. On a screen that
/// is too narrow, the table scrolls by itself.
pub(crate) fn table(head: &[String], rows: &[Vec<String>]) -> Markup {
    tables(1, head, rows)
}

/// Returns a table whose first `names` columns name the row. If the table would be wider than the
/// page, its columns are distributed over several tables, each of which begins with the names. The
/// second line of a cell, if it has one, is shown small.
pub(crate) fn tables(names: usize, head: &[String], rows: &[Vec<String>]) -> Markup {
    let parts = parts(names, head, rows);
    html! { @for columns in &parts { (part(columns, head, rows)) } }
}

/// Returns a table as [`tables`] does. On a narrow screen, each row becomes a list of its cells,
/// each with its heading, so that nothing has to be scrolled to the side.
pub(crate) fn cards(names: usize, head: &[String], rows: &[Vec<String>]) -> Markup {
    let parts = parts(names, head, rows);
    html! { @for columns in &parts { (shaped("wide cards", true, columns, head, rows)) } }
}

fn part(columns: &[usize], head: &[String], rows: &[Vec<String>]) -> Markup {
    shaped("wide", false, columns, head, rows)
}

/// Returns a table of these columns in a box of the given class. If `is_headed`, each cell knows
/// the heading of its column.
fn shaped(
    class: &str,
    is_headed: bool,
    columns: &[usize],
    head: &[String],
    rows: &[Vec<String>],
) -> Markup {
    let heading = |at: usize| is_headed.then(|| &head[at]);
    html! {
        div class=(class) {
            table {
                thead { tr { @for at in columns { th scope="col" { (head[*at]) } } } }
                "\n"
                tbody {
                    @for row in rows {
                        tr {
                            @for at in columns {
                                td data-head=[heading(*at)] { (cell(&row[*at])) }
                            }
                        }
                        "\n"
                    }
                }
            }
        }
        "\n"
    }
}

fn cell(text: &str) -> Markup {
    match text.split_once('\n') {
        Some((first, second)) => html! { (first) " " span class="range" { (second) } },
        None => html! { (text) },
    }
}

/// Returns the numbers of the columns of each table over which [`tables`] distributes the columns.
fn parts(names: usize, head: &[String], rows: &[Vec<String>]) -> Vec<Vec<usize>> {
    let width = |at: usize| {
        let words = head[at].split(' ').map(|word| chart::bold_width(word, LETTERS));
        let lines = rows.iter().flat_map(|row| row[at].split('\n'));
        let lines = lines.map(|line| chart::width(line, LETTERS));
        words.chain(lines).fold(0.0, f64::max) + PADDING
    };
    let named: Vec<usize> = (0..names.min(head.len())).collect();
    let names_width: f64 = named.iter().map(|at| width(*at).min(NAME)).sum();
    let (mut parts, mut free) = (vec![named.clone()], ROOM - names_width);
    for at in named.len()..head.len() {
        let width = width(at);
        if width > free && parts.last().is_some_and(|part| part.len() > named.len()) {
            parts.push(named.clone());
            free = ROOM - names_width;
        }
        parts.last_mut().expect("there is a table").push(at);
        free -= width;
    }
    parts
}

/// Widths in pixels: of the page in a window of 1,100 pixels, beside a scroll bar; of the space
/// beside the text of a cell; and of the widest first column. Size of the letters of a table.
const ROOM: f64 = 1050.0;
const PADDING: f64 = 20.0;
const NAME: f64 = 18.0 * 16.0;
const LETTERS: f64 = 13.6;

/// Returns a list of names and their values.
pub(crate) fn list(entries: &[(String, String)]) -> Markup {
    html! {
        dl { @for (name, value) in entries { dt { (name) } dd { (value) } "\n" } }
        "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_too_wide_for_the_page_becomes_several() {
        let head: Vec<String> = (0..20).map(|n| format!("column {n}")).collect();
        let row: Vec<String> = (0..20).map(|n| format!("{n}.00\n(from 123.4 to 567.8)")).collect();
        let parts = parts(2, &head, std::slice::from_ref(&row));
        assert!(parts.len() > 1, "{parts:?}");
        let columns = || parts.iter().flat_map(|part| &part[2..]).copied();
        assert!(parts.iter().all(|part| part[..2] == [0, 1]), "each names its rows: {parts:?}");
        assert!(columns().eq(2..20), "each column stands once: {parts:?}");
        let few = self::parts(1, &head[..5], &[row[..5].to_vec()]);
        assert_eq!(few, [[0, 1, 2, 3, 4]]);
        let html = tables(2, &head, &[row]).into_string();
        assert_eq!(html.matches("<table>").count(), parts.len());
        assert!(html.contains("<td>5.00 <span class=\"range\">(from 123.4 to 567.8)</span></td>"));
    }

    #[test]
    fn cells_of_cards_know_their_headings() {
        let head = ["name", "a"].map(str::to_owned);
        let rows = [["x", "1"].map(str::to_owned).to_vec()];
        let html = cards(1, &head, &rows).into_string();
        assert!(html.starts_with("<div class=\"wide cards\">"), "{html}");
        assert!(html.contains("<td data-head=\"a\">1</td>"), "{html}");
        assert!(!table(&head, &rows).into_string().contains("data-head"));
    }

    #[test]
    fn a_column_wider_than_the_page_stands_alone() {
        let head = ["name", "a", "b"].map(str::to_owned);
        let row = ["x".to_owned(), "long ".repeat(400), "1".to_owned()];
        assert_eq!(parts(1, &head, &[row.to_vec()]), [[0, 1], [0, 2]]);
        assert_eq!(parts(1, &head[..1], &[]), [[0]]);
    }
}
