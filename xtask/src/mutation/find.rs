//! Finds the places of a source file at which mutants change it, and the changes for each place.
//!
//! No places are found in: code that is evaluated at compile time (constants, statics, `const fn`,
//! lengths of arrays, patterns), the inside of macros, tests, code for the model checkers, and the
//! implementations of `Debug` and `Display`.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use proc_macro2::{LineColumn, Span};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Block, Expr, ExprMatch, ImplItemFn, ItemFn, ItemImpl, Pat, Signature, Stmt};

use super::node::{has_let, is_call, is_left_out, short};
use super::swap;

/// The kind of a place. It decides how the rewritten source chooses between the original code and
/// the mutants: with a `match`, or (for an arm) with a guard. If places begin at the same byte,
/// they are sorted by this order of variants; places of length zero come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Shape {
    /// The place is the empty range at the start of a function's body. The mutants return at once.
    Body,
    /// The place is the empty range after the pattern of a match arm. The mutant never takes this
    /// arm.
    Arm,
    /// The place is a statement. The mutant leaves it out.
    Statement,
    /// The place is an expression. The mutants are other expressions of the same type.
    Expression,
}

/// One way to change a place.
#[derive(Clone, Debug)]
pub(super) struct Change {
    /// Description of the change in words, for reports.
    pub what: String,
    /// The text that replaces the original.
    pub text: String,
    /// Position of the change. Lines count from 1, columns from 0.
    pub at: LineColumn,
}

/// A place of a source file that mutants change. Two places of a file are either nested or
/// separate.
#[derive(Clone, Debug)]
pub(super) struct Site {
    /// The range of the place in the file, in bytes.
    pub range: Range<usize>,
    pub shape: Shape,
    /// The name of the function around the place, with its type, such as `Red::enqueue`.
    pub function: String,
    pub changes: Vec<Change>,
}

/// The result of searching a file.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The places, in the order in which the file is rewritten: sorted by their start, outer places
    /// first.
    pub sites: Vec<Site>,
    /// The bodies of functions, as ranges in the file, in bytes.
    pub functions: Vec<Range<usize>>,
    /// Modules in files of their own that are compiled only for tests or model checkers. Their
    /// files get no mutants.
    pub only_tests: Vec<String>,
}

/// Returns all places of a source text that can be changed.
pub(super) fn find(source: &str) -> Result<Found, String> {
    let file = syn::parse_file(source).map_err(|err| {
        let at = err.span().start();
        format!("{}:{}: {err}", at.line, at.column + 1)
    })?;
    let mut finder = Finder { source, ..Finder::default() };
    finder.visit_file(&file);
    let mut found = finder.found;
    found.sites = finder.sites.into_values().collect();
    Ok(found)
}

/// Sort key of a place: by start, then longest first, then by shape.
type Place = (usize, std::cmp::Reverse<usize>, Shape);

#[derive(Default)]
struct Finder<'a> {
    source: &'a str,
    found: Found,
    sites: BTreeMap<Place, Site>,
    /// Names of the types, traits and functions that contain the piece of syntax being visited.
    names: Vec<String>,
    /// How many functions contain the piece of syntax being visited. Outside of functions, there
    /// are no mutants.
    depth: usize,
    /// Variables that are declared without a value. No mutant removes an assignment to such a
    /// variable, because the result might not compile.
    unset: HashSet<String>,
}

impl Finder<'_> {
    fn text(&self, range: Range<usize>) -> &str {
        &self.source[range]
    }

    fn of(&self, node: &impl Spanned) -> &str {
        self.text(node.span().byte_range())
    }

    fn add(&mut self, range: Range<usize>, shape: Shape, changes: Vec<Change>) {
        if changes.is_empty() || self.depth == 0 {
            return;
        }
        // A place of length zero comes before the places that start at the same byte, as if it were
        // the longest.
        let length = if range.is_empty() { usize::MAX } else { range.end };
        let place = (range.start, std::cmp::Reverse(length), shape);
        let function = self.names.join("::");
        let fresh = || Site { range, shape, function, changes: Vec::new() };
        self.sites.entry(place).or_insert_with(fresh).changes.extend(changes);
    }

    /// Adds a place for an expression, with a mutant for each of `changes`.
    fn swap(&mut self, expr: &Expr, at: Span, changes: Vec<(String, String)>) {
        let shown = short(self.of(expr));
        let change = |(what, text): (String, String)| {
            let what = format!("{what} in `{shown}`");
            Change { what, text, at: at.start() }
        };
        let changes = changes.into_iter().map(change).collect();
        self.add(expr.span().byte_range(), Shape::Expression, changes);
    }

    fn expression(&mut self, expr: &Expr) {
        match expr {
            Expr::Binary(it) if !has_let(&it.left) && !has_let(&it.right) => {
                let (left, right) = (self.of(&it.left), self.of(&it.right));
                let op = self.of(&it.op);
                let write = |new: &str| match op.ends_with('=') && swap::assigns(&it.op) {
                    true => format!("{left} {new} {right}"),
                    false => format!("({left}) {new} ({right})"),
                };
                let others = swap::binary(&it.op).iter();
                let mut changes: Vec<_> =
                    others.map(|new| (format!("replaced {op} by {new}"), write(new))).collect();
                if swap::assigns(&it.op) {
                    changes.push(("deleted the assignment".into(), "()".into()));
                }
                self.swap(expr, it.op.span(), changes);
            }
            Expr::Unary(it) if !has_let(&it.expr) => {
                let (op, inner) = (self.of(&it.op), self.of(&it.expr));
                let changes = matches!(op, "!" | "-")
                    .then(|| (format!("deleted {op}"), inner.to_owned()))
                    .into_iter();
                self.swap(expr, it.op.span(), changes.collect());
            }
            Expr::Assign(it) => {
                let first = matches!(&*it.left, Expr::Path(_)) && {
                    let name = self.of(&it.left).to_owned();
                    self.unset.contains(&name)
                };
                if !first {
                    let change = ("deleted the assignment".into(), "()".into());
                    self.swap(expr, it.eq_token.span(), vec![change]);
                }
            }
            Expr::Lit(it) => {
                let old = self.of(it).to_owned();
                let change =
                    swap::literal(&it.lit).map(|new| (format!("replaced {old} by {new}"), new));
                self.around(expr, change);
            }
            Expr::Path(it) if it.qself.is_none() => {
                let name = it.path.segments.last().map(|last| last.ident.to_string());
                let change = name.filter(|name| swap::is_constant(name)).map(|_| {
                    let old = self.of(it);
                    (format!("doubled {old}"), format!("({old} + {old})"))
                });
                self.around(expr, change);
            }
            Expr::MethodCall(it) => {
                let name = it.method.to_string();
                let change = swap::method(&name, it.args.len()).map(|new| {
                    let (whole, at) = (expr.span().byte_range(), it.method.span().byte_range());
                    let (before, after) = (whole.start..at.start, at.end..whole.end);
                    let text = format!("{}{new}{}", self.text(before), self.text(after));
                    (format!("replaced {name} by {new}"), text)
                });
                self.swap(expr, it.method.span(), change.into_iter().collect());
            }
            Expr::Macro(it) if it.mac.path.is_ident("matches") => self.negate(expr),
            Expr::Match(it) => self.arms(it),
            _ => {}
        }
    }

    /// Adds a mutant of a literal or a constant. The text of a literal says little, so the
    /// description of the mutant shows the whole source line.
    fn around(&mut self, expr: &Expr, change: Option<(String, String)>) {
        let Some((what, text)) = change else { return };
        let range = expr.span().byte_range();
        let start = self.source[..range.start].rfind('\n').map_or(0, |at| at + 1);
        let end =
            self.source[range.end..].find('\n').map_or(self.source.len(), |at| at + range.end);
        let what = format!("{what} in `{}`", short(&self.source[start..end]));
        let changes = vec![Change { what, text, at: expr.span().start() }];
        self.add(range, Shape::Expression, changes);
    }

    fn negate(&mut self, expr: &Expr) {
        let change = ("negated".into(), format!("!({})", self.of(expr)));
        self.swap(expr, expr.span(), vec![change]);
    }

    /// Adds a mutant that negates a condition that has no operator. If a condition has an operator,
    /// mutants replace the operator instead.
    fn condition(&mut self, expr: &Expr) {
        match expr {
            Expr::Call(_) | Expr::MethodCall(_) | Expr::Path(_) | Expr::Field(_) => {
                self.negate(expr);
            }
            Expr::Paren(it) => self.condition(&it.expr),
            _ => {}
        }
    }

    fn arms(&mut self, it: &ExprMatch) {
        let last_takes_all = it.arms.last().is_some_and(|arm| {
            let all = match &arm.pat {
                Pat::Wild(_) => true,
                Pat::Ident(name) => name.ident.to_string().starts_with(char::is_lowercase),
                _ => false,
            };
            all && arm.guard.is_none()
        });
        for (index, arm) in it.arms.iter().enumerate() {
            if is_left_out(&arm.attrs) {
                continue;
            }
            if let Some((_, guard)) = &arm.guard {
                if !has_let(guard) {
                    let to = |new: &str| ("replaced the guard by ".to_owned() + new, new.into());
                    self.swap(guard, guard.span(), vec![to("true"), to("false")]);
                }
            } else if last_takes_all && index + 1 < it.arms.len() {
                let what = format!("deleted the match arm `{}`", short(self.of(&arm.pat)));
                let end = arm.pat.span().byte_range().end;
                let change = Change { what, text: String::new(), at: arm.pat.span().start() };
                self.add(end..end, Shape::Arm, vec![change]);
            }
        }
    }

    fn function(&mut self, attrs: &[Attribute], sig: &Signature, block: &Block) {
        if is_left_out(attrs) || sig.constness.is_some() {
            return;
        }
        self.names.push(sig.ident.to_string());
        self.depth += 1;
        let range = block.span().byte_range();
        self.found.functions.push(range.clone());
        self.body(sig, block, range.start + 1);
        self.visit_block(block);
        self.depth -= 1;
        self.names.pop();
    }

    fn body(&mut self, sig: &Signature, block: &Block, start: usize) {
        let whole = self.of(block).trim_matches(['{', '}']).trim().to_owned();
        let one_call = matches!(&block.stmts[..], [Stmt::Expr(expr, Some(_))] if is_call(expr));
        let change = |value: &String| {
            let name = sig.ident.to_string();
            let (what, text) = match value.as_str() {
                "" => (format!("emptied {name}"), "return".to_owned()),
                _ => (format!("replaced the body of {name} by {value}"), format!("return {value}")),
            };
            Change { what, text, at: sig.ident.span().start() }
        };
        let values = swap::values(&sig.output);
        let differs = |value: &&String| **value != whole && !(value.is_empty() && one_call);
        let changes = values.iter().filter(differs).map(change).collect();
        self.add(start..start, Shape::Body, changes);
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_expr(&mut self, expr: &'ast Expr) {
        // An expression with attributes of its own gets no mutants, but its parts may.
        let marked = self.of(expr).starts_with('#');
        if marked && self.of(expr).starts_with("#[cfg") {
            return;
        }
        if !marked && self.depth > 0 {
            self.expression(expr);
        }
        visit::visit_expr(self, expr);
    }

    fn visit_expr_if(&mut self, it: &'ast syn::ExprIf) {
        self.condition(&it.cond);
        visit::visit_expr_if(self, it);
    }

    fn visit_expr_while(&mut self, it: &'ast syn::ExprWhile) {
        self.condition(&it.cond);
        visit::visit_expr_while(self, it);
    }

    fn visit_expr_call(&mut self, it: &'ast syn::ExprCall) {
        // Skip the name of the called function, which looks like a constant but is not one.
        if !matches!(&*it.func, Expr::Path(_)) {
            self.visit_expr(&it.func);
        }
        it.args.iter().for_each(|arg| self.visit_expr(arg));
    }

    fn visit_expr_reference(&mut self, it: &'ast syn::ExprReference) {
        // Skip a reference to a constant expression, such as `&[1, 2]`: the original may be
        // `'static`, but a mutant is computed when the program runs, so a reference to its value
        // would not live long enough.
        let constant = matches!(
            &*it.expr,
            Expr::Lit(_)
                | Expr::Path(_)
                | Expr::Array(_)
                | Expr::Struct(_)
                | Expr::Tuple(_)
                | Expr::Unary(_)
                | Expr::Repeat(_)
        );
        if !constant || it.mutability.is_some() {
            visit::visit_expr_reference(self, it);
        }
    }

    fn visit_expr_repeat(&mut self, it: &'ast syn::ExprRepeat) {
        self.visit_expr(&it.expr);
    }

    fn visit_field_value(&mut self, field: &'ast syn::FieldValue) {
        // Skip a constructor without arguments: it usually makes the default value already, so a
        // mutant that replaces it by the default would change nothing.
        let computed = match &field.expr {
            Expr::Field(_) | Expr::MethodCall(_) => true,
            Expr::Call(it) => !it.args.is_empty(),
            _ => false,
        };
        if computed && field.attrs.is_empty() {
            let name = self.of(&field.member);
            let change = (format!("defaulted {name}"), "Default::default()".to_owned());
            self.around(&field.expr, Some(change));
        }
        if !is_left_out(&field.attrs) {
            visit::visit_field_value(self, field);
        }
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if !is_left_out(&arm.attrs) {
            visit::visit_arm(self, arm);
        }
    }

    fn visit_stmt(&mut self, stmt: &'ast Stmt) {
        if let Stmt::Local(local) = stmt {
            if is_left_out(&local.attrs) {
                return;
            }
            if let (None, Pat::Ident(name)) = (&local.init, &local.pat) {
                self.unset.insert(name.ident.to_string());
            }
        }
        if let Stmt::Expr(expr, Some(_)) = stmt
            && is_call(expr)
            && !self.of(stmt).starts_with('#')
        {
            let what = format!("deleted `{}`", short(self.of(stmt)));
            let change = Change { what, text: String::new(), at: stmt.span().start() };
            self.add(stmt.span().byte_range(), Shape::Statement, vec![change]);
        }
        visit::visit_stmt(self, stmt);
    }

    fn visit_item_fn(&mut self, it: &'ast ItemFn) {
        self.function(&it.attrs, &it.sig, &it.block);
    }

    fn visit_impl_item_fn(&mut self, it: &'ast ImplItemFn) {
        self.function(&it.attrs, &it.sig, &it.block);
    }

    fn visit_trait_item_fn(&mut self, it: &'ast syn::TraitItemFn) {
        if let Some(block) = &it.default {
            self.function(&it.attrs, &it.sig, block);
        }
    }

    fn visit_item_impl(&mut self, it: &'ast ItemImpl) {
        let of_trait = it.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
        let told = of_trait.is_some_and(|last| last.ident == "Debug" || last.ident == "Display");
        if told || is_left_out(&it.attrs) {
            return;
        }
        let name = match &*it.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
            _ => None,
        };
        self.names.push(name.unwrap_or_else(|| short(self.of(&it.self_ty))));
        visit::visit_item_impl(self, it);
        self.names.pop();
    }

    fn visit_item_trait(&mut self, it: &'ast syn::ItemTrait) {
        self.names.push(it.ident.to_string());
        visit::visit_item_trait(self, it);
        self.names.pop();
    }

    fn visit_item_mod(&mut self, it: &'ast syn::ItemMod) {
        if !is_left_out(&it.attrs) {
            visit::visit_item_mod(self, it);
        } else if it.content.is_none() {
            self.found.only_tests.push(it.ident.to_string());
        }
    }

    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_item_enum(&mut self, _: &'ast syn::ItemEnum) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_pat(&mut self, _: &'ast Pat) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}
    fn visit_generics(&mut self, _: &'ast syn::Generics) {}
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
    fn visit_macro(&mut self, _: &'ast syn::Macro) {}
}
