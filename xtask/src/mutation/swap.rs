//! Says what a mutant puts in place of an operator, a literal, the name of a called method, or the
//! value that a function returns.

use syn::{BinOp, GenericArgument, Lit, PathArguments, ReturnType, Type};

/// Returns the operators that mutants put in place of `op`.
pub(super) fn binary(op: &BinOp) -> &'static [&'static str] {
    match op {
        // For `<`, `<=`, `>` and `>=`: the first operator moves the boundary of the comparison, and
        // the second negates the comparison.
        BinOp::Lt(_) => &["<=", ">="],
        BinOp::Le(_) => &["<", ">"],
        BinOp::Gt(_) => &[">=", "<="],
        BinOp::Ge(_) => &[">", "<"],
        BinOp::Eq(_) => &["!="],
        BinOp::Ne(_) => &["=="],
        BinOp::And(_) => &["||"],
        BinOp::Or(_) => &["&&"],
        BinOp::Add(_) => &["-"],
        BinOp::Sub(_) => &["+"],
        BinOp::Mul(_) => &["/"],
        BinOp::Div(_) => &["*"],
        BinOp::Rem(_) => &["/"],
        BinOp::Shl(_) => &[">>"],
        BinOp::Shr(_) => &["<<"],
        BinOp::BitAnd(_) => &["|"],
        BinOp::BitOr(_) => &["&"],
        BinOp::BitXor(_) => &["|"],
        BinOp::AddAssign(_) => &["-="],
        BinOp::SubAssign(_) => &["+="],
        BinOp::MulAssign(_) => &["/="],
        BinOp::DivAssign(_) => &["*="],
        BinOp::RemAssign(_) => &["/="],
        BinOp::ShlAssign(_) => &[">>="],
        BinOp::ShrAssign(_) => &["<<="],
        BinOp::BitAndAssign(_) => &["|="],
        BinOp::BitOrAssign(_) => &["&="],
        BinOp::BitXorAssign(_) => &["|="],
        _ => &[],
    }
}

/// Whether the operator changes its left operand, as `+=` does.
pub(super) fn assigns(op: &BinOp) -> bool {
    matches!(
        op,
        BinOp::AddAssign(_)
            | BinOp::SubAssign(_)
            | BinOp::MulAssign(_)
            | BinOp::DivAssign(_)
            | BinOp::RemAssign(_)
            | BinOp::ShlAssign(_)
            | BinOp::ShrAssign(_)
            | BinOp::BitAndAssign(_)
            | BinOp::BitOrAssign(_)
            | BinOp::BitXorAssign(_)
    )
}

/// Returns the replacement of a literal: the next integer (for 1, the previous one), twice the
/// float, or the other boolean. Returns `None` if the literal has no replacement.
pub(super) fn literal(lit: &Lit) -> Option<String> {
    match lit {
        Lit::Int(it) => {
            let next = match it.base10_parse::<u128>().ok()? {
                1 => 0,
                value => value.checked_add(1)?,
            };
            Some(format!("{next}{}", it.suffix()))
        }
        Lit::Float(it) => {
            let value: f64 = it.base10_parse().ok()?;
            let next = if value == 0.0 { 1.0 } else { value * 2.0 };
            Some(format!("{next:?}{}", it.suffix()))
        }
        Lit::Bool(it) => Some((!it.value).to_string()),
        _ => None,
    }
}

/// Whether a name is written `LIKE_THIS`, as constants are. Returns false for the bounds of a
/// type's range, such as `MAX`.
pub(super) fn is_constant(name: &str) -> bool {
    let bounds = ["MAX", "MIN", "BITS", "EPSILON", "INFINITY", "NEG_INFINITY", "NAN"];
    let loud = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let letters = name.chars().filter(char::is_ascii_uppercase).count();
    letters >= 2 && name.chars().all(loud) && !bounds.contains(&name)
}

const METHODS: &[(&str, &str)] = &[
    ("min", "max"),
    ("saturating_add", "saturating_sub"),
    ("wrapping_add", "wrapping_sub"),
    ("checked_add", "checked_sub"),
];

/// Returns the method that a mutant calls instead of the method `name` with `args` arguments.
/// Returns `None` if no method can replace it.
pub(super) fn method(name: &str, args: usize) -> Option<&'static str> {
    let pair = METHODS.iter().find(|(one, other)| *one == name || *other == name);
    pair.filter(|_| args == 1).map(|(one, other)| if *one == name { *other } else { *one })
}

/// Returns values that a mutant of a function can return at once, without doing the function's
/// work. For a function that returns nothing, that is an empty string.
pub(super) fn values(output: &ReturnType) -> Vec<String> {
    match output {
        ReturnType::Default => vec![String::new()],
        ReturnType::Type(_, ty) => of_type(ty),
    }
}

fn of_type(ty: &Type) -> Vec<String> {
    let owned = |values: &[&str]| values.iter().map(|&value| value.to_owned()).collect();
    match ty {
        Type::Tuple(it) if it.elems.is_empty() => vec![String::new()],
        Type::Reference(it) => match &*it.elem {
            Type::Path(path) if path.path.is_ident("str") => owned(&["\"\""]),
            _ => Vec::new(),
        },
        Type::Path(it) => {
            let Some(last) = it.path.segments.last() else { return Vec::new() };
            match last.ident.to_string().as_str() {
                "bool" => owned(&["true", "false"]),
                "u8" | "u16" | "u32" | "u64" | "u128" | "usize" | "i8" | "i16" | "i32" | "i64"
                | "i128" | "isize" => owned(&["0", "1"]),
                "f32" | "f64" => owned(&["0.0", "1.0"]),
                "String" => owned(&["String::new()"]),
                "Vec" => owned(&["Vec::new()"]),
                "Option" => owned(&["None"]),
                "Result" => {
                    let inner = first_argument(&last.arguments).map(of_type);
                    let ok = |value: &String| match value.as_str() {
                        "" => "Ok(())".to_owned(),
                        value => format!("Ok({value})"),
                    };
                    inner.iter().flatten().map(ok).collect()
                }
                _ => Vec::new(),
            }
        }
        _ => Vec::new(),
    }
}

fn first_argument(arguments: &PathArguments) -> Option<&Type> {
    let PathArguments::AngleBracketed(them) = arguments else { return None };
    them.args.iter().find_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    })
}
