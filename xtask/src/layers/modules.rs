//! The modules of a crate, and where the names in their code lead.

use std::collections::BTreeSet;
use std::ops::Index;
use std::path::{Path, PathBuf};

use syn::spanned::Spanned;

use super::module::{Module, Names, is_test, plain};
use super::{Read, Wrong};

/// Whether a name leads to a module, or to an item that the module defines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Module(usize),
    ItemOf(usize),
}

/// The names that [`Modules::find`] is looking up, with their modules. A name that leads back to
/// itself is not followed again.
type Asked = BTreeSet<(usize, String)>;

/// All modules of a crate. The first is the root.
#[derive(Debug, Default)]
pub(super) struct Modules {
    all: Vec<Module>,
    /// The files that were read.
    files: BTreeSet<PathBuf>,
    /// The files of modules for tests, which are not read, without their extension. The files below
    /// the folder of the same name belong to them.
    tests: Vec<PathBuf>,
}

impl Index<usize> for Modules {
    type Output = Module;

    fn index(&self, at: usize) -> &Module {
        &self.all[at]
    }
}

impl Modules {
    /// Reads the crate whose root is in the file `root`. Adds to `wrong` what it cannot read.
    pub(super) fn read(root: &Path, read: Read<'_>, wrong: &mut Vec<Wrong>) -> Self {
        let mut modules = Self::default();
        let dir = root.parent().unwrap_or_else(|| Path::new(""));
        let at = modules.add(root, 0, "crate");
        Reader { modules: &mut modules, read, wrong }.file(root, at, dir);
        modules
    }

    /// Whether a module is in this file, or in a file that belongs to a module for tests.
    pub(super) fn knows(&self, file: &Path) -> bool {
        let is_test = || self.tests.iter().any(|test| file.with_extension("").starts_with(test));
        self.files.contains(file) || is_test()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &Module)> {
        self.all.iter().enumerate()
    }

    /// Adds a module and returns its number. If the parent has a module of this name already, which
    /// another feature chooses, returns the number of that one: both are one module here.
    fn add(&mut self, file: &Path, parent: usize, name: &str) -> usize {
        if let Some(known) = self.all.get(parent).and_then(|parent| parent.children.get(name)) {
            return *known;
        }
        let at = self.all.len();
        let (name, file) = (name.to_owned(), file.to_owned());
        self.all.push(Module { name: name.clone(), file, parent, ..Module::default() });
        if at != parent {
            self.all[parent].children.insert(name, at);
        }
        at
    }

    /// Returns the modules to which `path`, seen from module `from`, leads: the module that it
    /// names, or the module that defines the item that it names. Returns none if the path leads to
    /// another crate.
    pub(super) fn resolve(&self, from: usize, path: &[String]) -> BTreeSet<usize> {
        let targets = self.follow(from, path, &mut Asked::new()).into_iter();
        // A single name is an item. A variable may have the name of a module.
        let single = path.len() == 1;
        let modules = targets.filter_map(|target| match target {
            Target::Module(_) if single => None,
            Target::Module(at) | Target::ItemOf(at) => Some(at),
        });
        modules.collect()
    }

    fn follow(&self, from: usize, path: &[String], asked: &mut Asked) -> BTreeSet<Target> {
        let Some((first, rest)) = path.split_first() else { return BTreeSet::new() };
        let mut targets = match first.as_str() {
            "crate" => BTreeSet::from([Target::Module(0)]),
            "self" => BTreeSet::from([Target::Module(from)]),
            "super" => BTreeSet::from([Target::Module(self.all[from].parent)]),
            name => self.find(from, name, asked),
        };
        for name in rest {
            let step = |target: Target| match target {
                Target::Module(at) if name == "super" => {
                    BTreeSet::from([Target::Module(self.all[at].parent)])
                }
                Target::Module(at) => {
                    let found = self.find(at, name, asked);
                    // A macro may define an item that this check does not see.
                    if found.is_empty() { BTreeSet::from([Target::ItemOf(at)]) } else { found }
                }
                // The path goes on inside an item: `Type::function`.
                item => BTreeSet::from([item]),
            };
            targets = targets.into_iter().flat_map(step).collect();
        }
        targets
    }

    /// Returns what `name` stands for in module `at`.
    fn find(&self, at: usize, name: &str, asked: &mut Asked) -> BTreeSet<Target> {
        let module = &self.all[at];
        if let Some(child) = module.children.get(name) {
            return BTreeSet::from([Target::Module(*child)]);
        }
        if module.items.contains(name) {
            return BTreeSet::from([Target::ItemOf(at)]);
        }
        if !asked.insert((at, name.to_owned())) {
            return BTreeSet::new();
        }
        if let Some(imports) = module.imports.get(name) {
            let each = imports.iter().flat_map(|path| self.follow(at, path, &mut asked.clone()));
            return each.collect();
        }
        let mut found = BTreeSet::new();
        for glob in &module.globs {
            for target in self.follow(at, glob, &mut asked.clone()) {
                if let Target::Module(other) = target {
                    found.extend(self.find(other, name, asked));
                }
            }
        }
        found
    }

    /// Returns a module and its ancestors, the outermost first.
    pub(super) fn way(&self, module: usize) -> Vec<usize> {
        let mut way = vec![module];
        while let Some(last) = way.last().filter(|last| **last != 0) {
            way.push(self.all[*last].parent);
        }
        way.reverse();
        way
    }
}

/// Reads the files of a crate.
struct Reader<'a> {
    modules: &'a mut Modules,
    read: Read<'a>,
    wrong: &'a mut Vec<Wrong>,
}

impl Reader<'_> {
    /// Reads module `at` from `file`. The files of its child modules are in `dir`.
    fn file(&mut self, file: &Path, at: usize, dir: &Path) {
        let Some(text) = (self.read)(file) else { return };
        self.modules.files.insert(file.to_owned());
        match syn::parse_file(&text) {
            Ok(syntax) => {
                let beside = file.parent().unwrap_or_else(|| Path::new(""));
                self.items(&syntax.items, at, &Place { file, dir, beside });
            }
            Err(err) => {
                let (line, what) = (err.span().start().line, format!("not valid Rust: {err}"));
                self.wrong.push(Wrong { file: file.to_owned(), line, what });
            }
        }
    }

    fn items(&mut self, items: &[syn::Item], at: usize, place: &Place<'_>) {
        for item in items {
            match item {
                syn::Item::Mod(module) if is_test(&module.attrs) => {
                    let named = path_attribute(&module.attrs).map(|path| place.beside.join(path));
                    let file = named.unwrap_or_else(|| place.dir.join(plain(&module.ident)));
                    self.modules.tests.push(file.with_extension(""));
                }
                syn::Item::ExternCrate(item) if item.ident == "self" => {
                    let what = "`extern crate self`: this check cannot follow the new name".into();
                    let line = item.span().start().line;
                    self.wrong.push(Wrong { file: place.file.to_owned(), line, what });
                }
                syn::Item::Mod(module) => self.module(module, at, place),
                item => {
                    Names::new(&mut self.modules.all[at], place.file).item(item);
                    if let syn::Item::Macro(item) = item {
                        self.exported(item, at);
                    }
                }
            }
        }
    }

    /// Gives the crate's root the name of an exported macro, as the compiler does.
    fn exported(&mut self, item: &syn::ItemMacro, at: usize) {
        let exported = item.attrs.iter().any(|attr| attr.path().is_ident("macro_export"));
        if let Some(name) = item.ident.as_ref().filter(|_| exported && at != 0) {
            let way = self.modules.way(at).into_iter().map(|at| self.modules[at].name.clone());
            let path: Vec<_> = way.chain([name.to_string()]).collect();
            self.modules.all[0].imports.entry(name.to_string()).or_default().push(path);
        }
    }

    fn module(&mut self, module: &syn::ItemMod, parent: usize, place: &Place<'_>) {
        let name = plain(&module.ident);
        let line = module.span().start().line;
        let mut refuse = |what: String| {
            self.wrong.push(Wrong { file: place.file.to_owned(), line, what });
        };
        if module.attrs.iter().any(|attr| attr.path().is_ident("macro_use")) {
            refuse(format!("`macro_use`: import the macros of `{name}` by their paths instead"));
        }
        let inside = place.dir.join(&name);
        let path = path_attribute(&module.attrs);
        if let Some((_, items)) = &module.content {
            // A `path` of a module with a body names the folder of its child modules.
            let inside = path.map_or(inside, |path| place.beside.join(path));
            let at = self.modules.add(place.file, parent, &name);
            self.items(items, at, &Place { dir: &inside, beside: &inside, ..*place });
            return;
        }
        let (file, dir) = match path {
            // The files of its child modules are beside a file that `path` names.
            Some(path) => {
                let file = place.beside.join(path);
                let dir = file.parent().unwrap_or(place.beside).to_owned();
                (file, dir)
            }
            None => {
                let file = place.dir.join(format!("{name}.rs"));
                let exists = (self.read)(&file).is_some();
                (if exists { file } else { inside.join("mod.rs") }, inside)
            }
        };
        if (self.read)(&file).is_none() {
            refuse(format!("no file of module `{name}` can be read, such as {}", file.display()));
            return;
        }
        let at = self.modules.add(&file, parent, &name);
        self.file(&file, at, &dir);
    }
}

/// Where the items of a module stand.
#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    file: &'a Path,
    /// The folder of the child modules' files.
    dir: &'a Path,
    /// The folder from which a `path` attribute counts.
    beside: &'a Path,
}

/// Returns the file that `#[path = ".."]` names.
fn path_attribute(attrs: &[syn::Attribute]) -> Option<String> {
    attrs.iter().filter(|attr| attr.path().is_ident("path")).find_map(|attr| {
        let value = &attr.meta.require_name_value().ok()?.value;
        let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(path), .. }) = value else {
            return None;
        };
        Some(path.value())
    })
}
