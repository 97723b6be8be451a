//! A module, and the names that its code defines, imports and uses.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// A module: what it defines, what it imports, and what its code uses.
#[derive(Debug, Default)]
pub(super) struct Module {
    pub name: String,
    pub file: PathBuf,
    pub parent: usize,
    pub children: BTreeMap<String, usize>,
    /// The names of the types, functions, macros and so on that the module defines.
    pub items: BTreeSet<String>,
    /// The names that the module imports, with the paths that each name stands for. There is more
    /// than one path if the import depends on a feature.
    pub imports: BTreeMap<String, Vec<Vec<String>>>,
    /// The paths before the star in `use path::*`.
    pub globs: Vec<Vec<String>>,
    pub used: Vec<Used>,
    /// The line of the first item that is neither a module nor an import.
    pub own_code: Option<usize>,
}

/// A path in the code.
#[derive(Debug)]
pub(super) struct Used {
    pub file: PathBuf,
    pub line: usize,
    pub path: Vec<String>,
}

/// Records the names of one item of the source after the other.
pub(super) struct Names<'a> {
    module: &'a mut Module,
    file: &'a Path,
}

impl<'a> Names<'a> {
    pub(super) fn new(module: &'a mut Module, file: &'a Path) -> Self {
        Self { module, file }
    }

    /// Records what an item of the module defines, and what it uses.
    pub(super) fn item(&mut self, item: &syn::Item) {
        let imports = matches!(item, syn::Item::Use(_) | syn::Item::ExternCrate(_));
        if !imports && !is_test_item(item) {
            self.module.own_code.get_or_insert_with(|| item.span().start().line);
        }
        let name = match item {
            syn::Item::Const(item) => Some(&item.ident),
            syn::Item::Enum(item) => Some(&item.ident),
            syn::Item::Fn(item) => Some(&item.sig.ident),
            syn::Item::Macro(item) => item.ident.as_ref(),
            syn::Item::Static(item) => Some(&item.ident),
            syn::Item::Struct(item) => Some(&item.ident),
            syn::Item::Trait(item) => Some(&item.ident),
            syn::Item::Type(item) => Some(&item.ident),
            syn::Item::Union(item) => Some(&item.ident),
            _ => None,
        };
        self.module.items.extend(name.map(plain));
        self.visit_item(item);
    }

    fn uses(&mut self, line: usize, path: Vec<String>) {
        if !path.is_empty() {
            self.module.used.push(Used { file: self.file.to_owned(), line, path });
        }
    }

    fn import(&mut self, tree: &syn::UseTree, path: &mut Vec<String>) {
        match tree {
            syn::UseTree::Path(part) => {
                path.push(plain(&part.ident));
                self.import(&part.tree, path);
                path.pop();
            }
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.import(tree, path));
            }
            syn::UseTree::Name(name) => self.imported(&name.ident, &name.ident, path),
            syn::UseTree::Rename(name) => self.imported(&name.ident, &name.rename, path),
            syn::UseTree::Glob(glob) => {
                self.uses(glob.span().start().line, path.clone());
                self.module.globs.push(path.clone());
            }
        }
    }

    fn imported(&mut self, ident: &syn::Ident, alias: &syn::Ident, path: &[String]) {
        let mut whole = path.to_vec();
        let mut alias = plain(alias);
        if ident == "self" {
            if alias == "self" {
                alias = path.last().cloned().unwrap_or_default();
            }
        } else {
            whole.push(plain(ident));
        }
        self.uses(ident.span().start().line, whole.clone());
        // Do not record `use a;`, where `a` is a child module: the import would stand for itself.
        if whole != [alias.clone()] {
            self.module.imports.entry(alias).or_default().push(whole);
        }
    }

    /// Records the paths in the arguments of a macro. `above` is the path before the braces that
    /// the tokens stand in, as in `above::{tokens}`.
    fn tokens(&mut self, tokens: TokenStream, above: &[String]) {
        let mut path: Vec<String> = Vec::new();
        let mut line = 0;
        // Whether the next name continues `path`: the tokens before it are two colons.
        let mut colons = 0;
        for token in tokens {
            let colon = matches!(&token, TokenTree::Punct(punct) if punct.as_char() == ':');
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.uses(line, std::mem::take(&mut path));
                        line = ident.span().start().line;
                        path.extend_from_slice(above);
                    }
                    path.push(plain(&ident));
                }
                TokenTree::Group(group) => {
                    let above = if colons == 2 { std::mem::take(&mut path) } else { Vec::new() };
                    self.tokens(group.stream(), &above);
                }
                _ => {}
            }
            colons = if colon { colons + 1 } else { 0 };
        }
        self.uses(line, path);
    }
}

impl Visit<'_> for Names<'_> {
    fn visit_item(&mut self, item: &syn::Item) {
        if !is_test_item(item) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        self.import(&item.tree, &mut Vec::new());
    }

    fn visit_path(&mut self, path: &syn::Path) {
        let names = path.segments.iter().map(|part| plain(&part.ident)).collect();
        self.uses(path.span().start().line, names);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &syn::Macro) {
        self.visit_path(&item.path);
        self.tokens(item.tokens.clone(), &[]);
    }
}

/// Returns an identifier without the mark of a raw identifier (`r#`).
pub(super) fn plain(ident: &syn::Ident) -> String {
    let text = ident.to_string();
    text.strip_prefix("r#").map(str::to_owned).unwrap_or(text)
}

fn is_test_item(item: &syn::Item) -> bool {
    match item {
        syn::Item::Const(item) => is_test(&item.attrs),
        syn::Item::Enum(item) => is_test(&item.attrs),
        syn::Item::Fn(item) => is_test(&item.attrs),
        syn::Item::Impl(item) => is_test(&item.attrs),
        syn::Item::Macro(item) => is_test(&item.attrs),
        syn::Item::Static(item) => is_test(&item.attrs),
        syn::Item::Struct(item) => is_test(&item.attrs),
        syn::Item::Trait(item) => is_test(&item.attrs),
        syn::Item::Type(item) => is_test(&item.attrs),
        syn::Item::Use(item) => is_test(&item.attrs),
        _ => false,
    }
}

/// Whether the attributes keep an item for tests.
pub(super) fn is_test(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|attr| {
        let list = attr.meta.require_list();
        let said = list.map(|list| list.tokens.to_string()).unwrap_or_default();
        let words = said.split(|c: char| !c.is_alphanumeric() && c != '_');
        let mut words = words.filter(|word| !word.is_empty());
        // Whether the attribute is `cfg(test)` or `cfg(all(test, ..))`.
        let only_test =
            matches!((words.next(), words.next()), (Some("test"), _) | (Some("all"), Some("test")));
        attr.path().is_ident("test") || attr.path().is_ident("cfg") && only_test
    })
}
