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
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem;\
font-variant-numeric:tabular-nums}\
th,td{padding:.2rem .6rem;border-bottom:1px solid var(--line);text-align:right;\
white-space:nowrap}th:first-child,td:first-child{text-align:left}th{font-weight:600}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:.5rem 0}\
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}\
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

/// Returns a table whose first column is text and whose other columns are figures. A table that is
/// too wide for the page scrolls by itself.
pub(crate) fn table(head: &[String], rows: &[Vec<String>]) -> Markup {
    html! {
        div class="wide" {
            table {
                thead { tr { @for cell in head { th scope="col" { (cell) } } } }
                "\n"
                tbody {
                    @for row in rows { tr { @for cell in row { td { (cell) } } } "\n" }
                }
            }
        }
        "\n"
    }
}

/// Returns a list of names and their values.
pub(crate) fn list(entries: &[(String, String)]) -> Markup {
    html! {
        dl { @for (name, value) in entries { dt { (name) } dd { (value) } "\n" } }
        "\n"
    }
}
