//! The listing of the public API in `docs/api/`, so that a change of the API shows in review.
//!
//! rustdoc makes a page for each public item. The listing is the text of the declarations on these
//! pages.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::checks::LINKED;
use crate::shell::{cargo, root, run};
use crate::{Failure, Outcome};

/// Compares the listings in `docs/api/` with the code. With `--write`, brings outdated listings up
/// to date instead.
pub(crate) fn run_api(args: &[String]) -> Outcome {
    let writes = match args {
        [] => false,
        [option] if option == "--write" => true,
        _ => return Err(Failure::Failed("usage: cargo xtask api [--write]".to_owned())),
    };
    let mut doc = cargo(&["doc", "--no-deps", "--lib", "--target-dir", "target/api"]);
    doc.args(LINKED.iter().flat_map(|name| ["-p", name]));
    run(doc.env("RUSTDOCFLAGS", "-D warnings"))?;
    let mut stale = Vec::new();
    for name in LINKED {
        let pages = root().join("target/api/doc").join(name.replace('-', "_"));
        let (listing, file) = (listing(&pages)?, root().join(format!("docs/api/{name}.txt")));
        if fs::read_to_string(&file).ok().as_ref() == Some(&listing) {
            continue;
        }
        if writes {
            fs::write(&file, listing).map_err(|error| failed(&file, &error))?;
        } else {
            stale.push(*name);
        }
    }
    if stale.is_empty() {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "the public API differs from docs/api/ of {}; look at `cargo xtask api --write` and \
         `git diff docs/api`, and say the change in CHANGELOG.md",
        stale.join(", ")
    )))
}

fn failed(file: &Path, error: &std::io::Error) -> Failure {
    Failure::Failed(format!("{}: {error}", file.display()))
}

/// Returns the declarations on all pages below a folder, page by page.
fn listing(folder: &Path) -> Result<String, Failure> {
    let mut pages = Vec::new();
    collect(folder, &mut pages)?;
    pages.sort();
    let mut text = String::new();
    for page in pages {
        let html = fs::read_to_string(&page).map_err(|error| failed(&page, &error))?;
        let declarations = declarations(&html);
        if declarations.is_empty() {
            continue; // The page only redirects to the page of another item.
        }
        let item = page.strip_prefix(folder).unwrap_or(&page).with_extension("");
        let _ = writeln!(text, "\n{}", item.display());
        for line in declarations {
            let _ = writeln!(text, "    {line}");
        }
    }
    Ok(text.trim_start().to_owned())
}

/// Collects the paths of all item pages below a folder.
fn collect(folder: &Path, pages: &mut Vec<PathBuf>) -> Outcome {
    for entry in fs::read_dir(folder).map_err(|error| failed(folder, &error))?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, pages)?;
        } else if path.extension().is_some_and(|extension| extension == "html") {
            let name = entry.file_name().to_string_lossy().into_owned();
            // An item's page is called `KIND.NAME.html`. The page of a module, `index.html`, has
            // the re-exports of items that have no page of their own here.
            if name.matches('.').count() == 2 || name == "index.html" {
                pages.push(path);
            }
        }
    }
    Ok(())
}

/// Returns what a page declares: the item, the item's own functions, the traits that the item
/// implements, and on what condition threads may share it (`Send` and `Sync`), if there is one. For
/// the page of a module, returns its re-exports.
fn declarations(html: &str) -> Vec<String> {
    // Leave out the list of types that implement a trait, at the end of the trait's page.
    let (html, _) = html.split_once("id=\"implementors\"").unwrap_or((html, ""));
    let (html, _) = html.split_once("id=\"blanket-implementations\"").unwrap_or((html, ""));
    let (html, auto) = html.split_once("id=\"synthetic-implementations\"").unwrap_or((html, ""));
    let (own, traits) = html.split_once("id=\"trait-implementations\"").unwrap_or((html, ""));
    let mut found = Vec::new();
    between(own, "<dt id=\"reexport.", "</dt>", &mut found);
    for reexport in &mut found {
        // The text begins with the rest of the identifier: `NAME">pub use ..`.
        *reexport = reexport.split_once('>').map_or("", |(_, text)| text).to_owned();
    }
    between(own, "item-decl\">", "</pre>", &mut found);
    // The headers of the item's own implementations, and those of a trait for types of other
    // crates.
    between(own, "<h3 class=\"code-header\">", "</h3>", &mut found);
    between(own, "<h4 class=\"code-header\">", "</h4>", &mut found);
    between(traits, "<h3 class=\"code-header\">", "</h3>", &mut found);
    let mut associated = Vec::new();
    between(traits, "<h4 class=\"code-header\">", "</h4>", &mut associated);
    let is_named = |line: &String| line.starts_with("type ") || line.starts_with("const ");
    found.extend(associated.into_iter().filter(is_named));
    let mut shared = Vec::new();
    between(auto, "<h3 class=\"code-header\">", "</h3>", &mut shared);
    // Only exceptions are listed. A type that stops being `Send` gets a line.
    let names = |line: &str| line.contains("Send for ") || line.contains("Sync for ");
    let except = |line: &String| names(line) && (line.contains('!') || line.contains(" where "));
    found.extend(shared.into_iter().filter(except));
    found
}

/// Appends each text between `start` and `end` as one line, unless `found` already has that line.
fn between(html: &str, start: &str, end: &str, found: &mut Vec<String>) {
    for rest in html.split(start).skip(1) {
        let text = plain(rest.split(end).next().unwrap_or_default());
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        if !found.contains(&line) {
            found.push(line);
        }
    }
}

/// Returns the text of a piece of HTML, without its tags.
fn plain(html: &str) -> String {
    let mut text = String::new();
    for (number, piece) in html.split('<').enumerate() {
        let behind =
            if number == 0 { piece } else { piece.split_once('>').map_or("", |(_, text)| text) };
        text.push_str(behind);
    }
    let entities = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")];
    entities.iter().fold(text, |text, (entity, sign)| text.replace(entity, sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_are_those_of_the_item_itself() {
        let html = "<pre class=\"rust item-decl\"><code>pub struct <a href=\"x\">A</a>&lt;T&gt;;\
            </code></pre><h2 id=\"implementations\"></h2>\
            <h3 class=\"code-header\">impl&lt;T: Clone&gt; A&lt;T&gt;</h3>\
            <h4 class=\"code-header\">pub fn <a>of</a>(\n  &amp;self)</h4>\
            <h2 id=\"trait-implementations\"></h2><h3 class=\"code-header\">impl Debug for A</h3>\
            <h4 class=\"code-header\">fn fmt(&amp;self)</h4>\
            <h4 class=\"code-header\">type <a>Err</a> = E</h4>\
            <h2 id=\"synthetic-implementations\"></h2>\
            <h3 class=\"code-header\">impl <a>!Send</a> for A</h3>\
            <h3 class=\"code-header\">impl Sync for A</h3>\
            <h3 class=\"code-header\">impl !Unpin for A</h3>\
            <h2 id=\"blanket-implementations\"></h2><h3 class=\"code-header\">impl Any for T</h3>";
        let expected = [
            "pub struct A<T>;",
            "impl<T: Clone> A<T>",
            "pub fn of( &self)",
            "impl Debug for A",
            "type Err = E",
            "impl !Send for A",
        ];
        assert_eq!(declarations(html), expected);
    }

    #[test]
    fn the_page_of_a_module_has_its_reexports() {
        let html = "<h2 id=\"reexports\"></h2><dl><dt id=\"reexport.dev\"><code>pub use \
            <a>onramp_dev</a> as dev;</code></dt></dl><dl><dt><a>A</a></dt></dl>";
        assert_eq!(declarations(html), ["pub use onramp_dev as dev;"]);
    }
}
