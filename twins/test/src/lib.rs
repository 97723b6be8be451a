//! The attribute `#[test]` of crates that are compiled for the simulated machine.
//!
//! A crate that has `#[macro_use] extern crate onramp_simulated_test` takes this attribute in place
//! of the one of std. So the same source of a test runs on the real machine where it is part of the
//! original, and as the first thread of a simulated machine where it is part of the twin.

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

/// Marks a function as a test, as std's attribute does, and runs the function's body in a
/// simulation.
#[proc_macro_attribute]
pub fn test(_: TokenStream, function: TokenStream) -> TokenStream {
    let mut tokens: Vec<TokenTree> = function.into_iter().collect();
    // A function without arguments: `fn`, its name, `()`, what it returns, and its body.
    let begin = tokens
        .iter()
        .position(|token| matches!(token, TokenTree::Ident(word) if word.to_string() == "fn"));
    let returns = begin.map_or(tokens.len(), |begin| begin + 3);
    let Some(TokenTree::Group(body)) = tokens.pop().filter(|_| returns <= tokens.len()) else {
        return parse("compile_error!(\"#[test] stands before a function without arguments\");");
    };
    let mut closure = parse("||");
    closure.extend(tokens[returns..].iter().cloned());
    closure.extend([TokenTree::Group(body)]);
    let mut call = parse("::onramp_machine::testing::simulated");
    call.extend([TokenTree::Group(Group::new(Delimiter::Parenthesis, closure))]);
    // Lints that count the lines of a function do not see the body any more, so an `expect` of such
    // a lint, which the original needs, is not fulfilled.
    let mut test = parse("#[allow(unfulfilled_lint_expectations)] #[::core::prelude::v1::test]");
    test.extend(tokens);
    test.extend([TokenTree::Group(Group::new(Delimiter::Brace, call))]);
    test
}

fn parse(text: &str) -> TokenStream {
    text.parse().expect("it is Rust")
}
