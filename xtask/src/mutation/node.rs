//! Answers questions about a piece of Rust syntax, to find the places that mutants change.

use syn::{Attribute, Expr};

/// Whether an expression is a call, perhaps followed by `?` or `.await`.
pub(super) fn is_call(expr: &Expr) -> bool {
    match expr {
        Expr::Call(_) | Expr::MethodCall(_) => true,
        Expr::Try(it) => is_call(&it.expr),
        Expr::Await(it) => is_call(&it.base),
        _ => false,
    }
}

/// Whether the expression contains `let`, as conditions of `if let` do. Such an expression cannot
/// stand anywhere but in a condition.
pub(super) fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(it) => has_let(&it.left) || has_let(&it.right),
        Expr::Paren(it) => has_let(&it.expr),
        _ => false,
    }
}

/// Whether code with these attributes is compiled only for tests or for a model checker.
pub(super) fn is_left_out(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attr| {
        let path = attr.path();
        let condition = || attr.meta.require_list().map(|list| list.tokens.to_string());
        path.is_ident("test")
            || path.is_ident("cfg")
                && condition().is_ok_and(|condition| {
                    let mut words = condition.split(|c: char| !c.is_alphanumeric() && c != '_');
                    let special = ["test", "doctest", "loom", "shuttle", "fuzzing", "miri"];
                    !condition.contains("not") && words.any(|word| special.contains(&word))
                })
    })
}

/// Shortens the text to one line of limited length.
pub(super) fn short(text: &str) -> String {
    const LONGEST: usize = 72;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}
