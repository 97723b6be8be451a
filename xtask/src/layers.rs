//! Checks how the modules of a crate use each other: no cycles, and no import from a higher layer.
//!
//! Only sibling modules are compared: if `a/x.rs` uses `b/y.rs`, then `a` uses `b`. A module is a
//! part of its parent, so a use between a module and its parent does not count. Tests are exempt.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// The layers of a crate, lowest first. Each layer may use the layers before it in the list.
pub(crate) const LAYERS: &[(&str, &[&str])] =
    &[("crates/onramp-core", &["base", "law", "filter", "sched", "qdisc", "tc", "tree", "port"])];

/// An import that is not allowed: its file and line, and the reason.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub file: PathBuf,
    pub line: usize,
    pub what: String,
}

/// A function that reads a file. Returns `None` if the file does not exist.
type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// A module, and the paths that its code uses.
#[derive(Debug, Default)]
struct Module {
    name: String,
    file: PathBuf,
    parent: usize,
    children: BTreeMap<String, usize>,
    /// The names that the module imports, with the path that each name stands for.
    imports: BTreeMap<String, Vec<String>>,
    /// The paths that the code uses, with their line numbers.
    named: Vec<(usize, Vec<String>)>,
}

/// For each pair of sibling modules of which the first uses the second: the file and line of the
/// first such use.
type Uses = BTreeMap<(usize, usize), (PathBuf, usize)>;

/// Checks the modules of the crate in folder `krate`. If `layers` is given, also checks the imports
/// between its layers.
pub(crate) fn check(krate: &Path, layers: Option<&[&str]>, read: Read<'_>) -> Vec<Wrong> {
    let roots = ["src/lib.rs", "src/main.rs"].map(|root| krate.join(root));
    let mut wrong = Vec::new();
    for root in roots {
        let mut modules = Modules::default();
        if modules.file(&root, 0, "crate", read) {
            wrong.extend(modules.circles());
            wrong.extend(layers.map(|layers| modules.upward(layers)).unwrap_or_default());
        }
    }
    wrong
}

#[derive(Debug, Default)]
struct Modules(Vec<Module>);

impl Modules {
    /// Adds the module in `file`, and its child modules, to this list. Returns false if the file
    /// does not exist or is not valid Rust.
    fn file(&mut self, file: &Path, parent: usize, name: &str, read: Read<'_>) -> bool {
        let Some(text) = read(file) else { return false };
        let Ok(syntax) = syn::parse_file(&text) else { return false };
        let is_root = self.0.is_empty() || file.ends_with("mod.rs");
        let dir = file.parent().unwrap_or_else(|| Path::new("")).to_owned();
        let dir = if is_root { dir } else { dir.join(name) };
        let at = self.add(file, parent, name);
        self.items(&syntax.items, at, &dir, read);
        true
    }

    fn add(&mut self, file: &Path, parent: usize, name: &str) -> usize {
        let at = self.0.len();
        let (name, file) = (name.to_owned(), file.to_owned());
        self.0.push(Module { name: name.clone(), file, parent, ..Module::default() });
        if at != parent {
            self.0[parent].children.insert(name, at);
        }
        at
    }

    fn items(&mut self, items: &[syn::Item], at: usize, dir: &Path, read: Read<'_>) {
        for item in items {
            match item {
                syn::Item::Mod(module) if is_test(&module.attrs) => {}
                syn::Item::Mod(module) => {
                    let name = module.ident.to_string();
                    if let Some((_, items)) = &module.content {
                        let file = self.0[at].file.clone();
                        let below = self.add(&file, at, &name);
                        self.items(items, below, &dir.join(&name), read);
                    } else {
                        let whole = self.file(&dir.join(format!("{name}.rs")), at, &name, read);
                        let _ =
                            whole || self.file(&dir.join(&name).join("mod.rs"), at, &name, read);
                    }
                }
                item => Names(&mut self.0[at]).visit_item(item),
            }
        }
    }

    /// Returns the deepest module that `path` names, seen from module `from`. Returns `None` if the
    /// path leads to another crate.
    fn resolve(&self, from: usize, path: &[String], depth: usize) -> Option<usize> {
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => 0,
            "self" => from,
            "super" => self.0[from].parent,
            _ => {
                rest = path;
                from
            }
        };
        while let Some((name, behind)) = rest.split_first() {
            if name == "super" {
                at = self.0[at].parent;
            } else if let Some(child) = self.0[at].children.get(name) {
                at = *child;
            } else if let Some(import) = self.0[at].imports.get(name).filter(|_| depth < 8) {
                let whole: Vec<_> = import.iter().chain(behind).cloned().collect();
                return self.resolve(at, &whole, depth + 1);
            } else {
                // If no module is called `name`, `name` is an item of the module `at`. But if
                // already the first name of the path is no module, the path leads to another crate.
                return (rest.len() < path.len()).then_some(at);
            }
            rest = behind;
        }
        Some(at)
    }

    /// Returns a module and its ancestors, the outermost first.
    fn way(&self, module: usize) -> Vec<usize> {
        let mut way = vec![module];
        while let Some(last) = way.last().filter(|last| **last != 0) {
            way.push(self.0[*last].parent);
        }
        way.reverse();
        way
    }

    /// Returns the pairs of sibling modules of which the first uses the second, with the place of
    /// the use.
    fn uses(&self) -> Uses {
        let mut uses = Uses::new();
        for (from, module) in self.0.iter().enumerate() {
            for (line, path) in &module.named {
                let Some(to) = self.resolve(from, path, 0) else { continue };
                let (from, to) = (self.way(from), self.way(to));
                let apart = from.iter().zip(&to).find(|(from, to)| from != to);
                if let Some((from, to)) = apart {
                    uses.entry((*from, *to)).or_insert_with(|| (module.file.clone(), *line));
                }
            }
        }
        uses
    }

    /// Returns each import that is part of a cycle of sibling modules.
    fn circles(&self) -> Vec<Wrong> {
        let uses = self.uses();
        let reaches = |from: usize, to: usize| {
            let (mut seen, mut next) = (BTreeSet::from([from]), vec![from]);
            while let Some(at) = next.pop() {
                let used = uses.range((at, 0)..=(at, usize::MAX)).map(|((_, used), _)| *used);
                next.extend(used.filter(|used| seen.insert(*used)));
            }
            seen.contains(&to)
        };
        let circular = uses.iter().filter(|((from, to), _)| reaches(*to, *from));
        let wrong = circular.map(|((from, to), (file, line))| {
            let (from, to) = (&self.0[*from].name, &self.0[*to].name);
            let what =
                format!("`{from}` uses `{to}`, which uses `{from}`, directly or through others");
            Wrong { file: file.clone(), line: *line, what }
        });
        wrong.collect()
    }

    /// Returns each import from a higher layer, and each module that belongs to no layer.
    fn upward(&self, layers: &[&str]) -> Vec<Wrong> {
        let rank = |module: usize| layers.iter().position(|layer| *layer == self.0[module].name);
        let mut wrong = Vec::new();
        for (name, module) in &self.0[0].children {
            if rank(*module).is_none() && self.0[*module].file != self.0[0].file {
                let what = format!("`{name}` is in none of the layers {}", layers.join(", "));
                let file = self.0[*module].file.clone();
                wrong.push(Wrong { file, line: 1, what });
            }
        }
        for ((from, to), (file, line)) in self.uses() {
            if let (Some(below), Some(above)) = (rank(from), rank(to))
                && below < above
            {
                let what = format!("`{}` is below `{}` and uses it", layers[below], layers[above]);
                wrong.push(Wrong { file, line, what });
            }
        }
        wrong
    }
}

/// Records the paths that an item of the source uses.
struct Names<'a>(&'a mut Module);

impl Names<'_> {
    fn import(&mut self, tree: &syn::UseTree, path: &mut Vec<String>) {
        match tree {
            syn::UseTree::Path(part) => {
                path.push(part.ident.to_string());
                self.import(&part.tree, path);
                path.pop();
            }
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.import(tree, path));
            }
            syn::UseTree::Name(name) => self.imported(&name.ident, &name.ident, path),
            syn::UseTree::Rename(name) => self.imported(&name.ident, &name.rename, path),
            syn::UseTree::Glob(glob) => {
                self.0.named.push((glob.span().start().line, path.clone()));
            }
        }
    }

    fn imported(&mut self, ident: &syn::Ident, alias: &syn::Ident, path: &[String]) {
        let mut whole = path.to_vec();
        let mut alias = alias.to_string();
        if ident == "self" {
            if alias == "self" {
                alias = path.last().cloned().unwrap_or_default();
            }
        } else {
            whole.push(ident.to_string());
        }
        self.0.named.push((ident.span().start().line, whole.clone()));
        // Do not record `use a;`, where `a` is a child module: the import would stand for itself.
        if whole != [alias.clone()] {
            self.0.imports.insert(alias, whole);
        }
    }

    /// Records the paths that begin with `crate` in the arguments of a macro.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(ident) if ident == "crate" => {
                    let idents = tokens[at..].iter().take_while(|token| match token {
                        TokenTree::Ident(_) => true,
                        TokenTree::Punct(punct) => punct.as_char() == ':',
                        _ => false,
                    });
                    let names = idents.filter_map(|token| match token {
                        TokenTree::Ident(ident) => Some(ident.to_string()),
                        _ => None,
                    });
                    let path = names.collect();
                    self.0.named.push((ident.span().start().line, path));
                }
                _ => {}
            }
        }
    }
}

impl Visit<'_> for Names<'_> {
    fn visit_item(&mut self, item: &syn::Item) {
        let test = match item {
            syn::Item::Fn(item) => is_test(&item.attrs),
            syn::Item::Impl(item) => is_test(&item.attrs),
            syn::Item::Use(item) => is_test(&item.attrs),
            _ => false,
        };
        if !test {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        self.import(&item.tree, &mut Vec::new());
    }

    fn visit_path(&mut self, path: &syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        if names.len() > 1 {
            self.0.named.push((path.span().start().line, names));
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &syn::Macro) {
        self.tokens(item.tokens.clone());
    }
}

fn is_test(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|attr| {
        let list = attr.meta.require_list();
        let said = list.map(|list| list.tokens.to_string()).unwrap_or_default();
        let mut words = said.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        // Whether the attribute is `cfg(test)` or `cfg(all(test, ..))`.
        let only_test =
            matches!((words.next(), words.next()), (Some("test"), _) | (Some("all"), Some("test")));
        attr.path().is_ident("test") || attr.path().is_ident("cfg") && only_test
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the findings for a crate that consists of these files: file, line, and the two
    /// modules.
    fn wrong(files: &[(&str, &str)], layers: Option<&[&str]>) -> Vec<(String, usize, String)> {
        let read = |path: &Path| {
            let name = path.to_str().and_then(|path| path.strip_prefix("a/src/"));
            files.iter().find(|(file, _)| Some(*file) == name).map(|(_, text)| (*text).to_owned())
        };
        let wrong = check(Path::new("a"), layers, &read).into_iter();
        let short =
            |what: &str| what.split('`').skip(1).step_by(2).take(2).collect::<Vec<_>>().join(" ");
        wrong.map(|w| (w.file.display().to_string(), w.line, short(&w.what))).collect()
    }

    fn at(file: &str, line: usize, what: &str) -> (String, usize, String) {
        (format!("a/src/{file}"), line, what.to_owned())
    }

    #[test]
    fn siblings_that_use_each_other_are_a_circle() {
        let files = [
            ("lib.rs", "mod one;\nmod two;\n"),
            ("one.rs", "\nuse crate::two::Two;\npub struct One(Two);"),
            ("two.rs", "pub struct Two;\nfn f() { crate::one::g(); }"),
        ];
        assert_eq!(wrong(&files, None), [at("one.rs", 2, "one two"), at("two.rs", 2, "two one")]);
        let straight = [files[0], files[1], ("two.rs", "pub struct Two;")];
        assert_eq!(wrong(&straight, None), []);
        let main = [("main.rs", files[0].1), files[1], files[2]];
        assert_eq!(wrong(&main, None).len(), 2);
    }

    #[test]
    fn a_circle_may_run_through_others_and_names_that_are_handed_on() {
        let files = [
            ("lib.rs", "mod one;\nmod two;\nmod three;\npub use one::One;"),
            ("one.rs", "mod deep;\npub struct One;"),
            ("one/deep.rs", "use crate::two;\nfn f() { two::f() }"),
            ("two.rs", "pub fn f() { vec![crate::three::g()]; }"),
            ("three.rs", "pub fn g(_: crate::One) {}"),
        ];
        let circle = [
            at("one/deep.rs", 1, "one two"),
            at("two.rs", 1, "two three"),
            at("three.rs", 1, "three one"),
        ];
        assert_eq!(wrong(&files, None), circle);
    }

    #[test]
    fn parents_children_and_tests_are_free() {
        let files = [
            ("lib.rs", "mod one;\nmod two;"),
            ("one.rs", "mod deep;\nuse self::deep::f;\npub struct One;"),
            ("one/deep.rs", "use super::One;\nuse crate::two::Two;\npub fn f() {}"),
            ("two.rs", "pub struct Two;\n#[cfg(test)]\nmod tests { use crate::one::One; }"),
        ];
        assert_eq!(wrong(&files, None), []);
        // Sibling modules inside other modules are compared as well.
        let files = [
            ("lib.rs", "mod one;"),
            ("one.rs", "mod x;\nmod y;"),
            ("one/x.rs", "pub fn f() { super::y::f() }"),
            ("one/y.rs", "use super::x::f as g;\npub fn f() { g() }"),
        ];
        assert_eq!(wrong(&files, None), [at("one/x.rs", 1, "x y"), at("one/y.rs", 1, "y x")]);
    }

    #[test]
    fn no_import_runs_up_the_layers() {
        let files = [
            ("lib.rs", "mod low;\nmod high;\npub mod facade { pub use crate::high::f; }"),
            ("low.rs", "pub fn f() {}\nfn g() { crate::high::f() }"),
            ("high.rs", "pub fn f() {}"),
        ];
        assert_eq!(wrong(&files, None), []);
        assert_eq!(wrong(&files, Some(&["low", "high"])), [at("low.rs", 2, "low high")]);
        assert_eq!(wrong(&files, Some(&["high", "low"])), []);
        assert_eq!(wrong(&files, Some(&["high"])).len(), 1, "each module is in a layer");
    }
}
