//! Tests what a listing looks like as text and as JSON.

use super::*;

fn style(json: bool, pretty: bool) -> Style {
    Style { json, pretty, ..Style::default() }
}

/// Writes a listing with one item of each type.
fn all(json: bool, pretty: bool) -> String {
    let mut out = Out::new(style(json, pretty));
    assert_eq!(out.is_json(), json);
    out.open(None);
    out.text(format_args!("begin "));
    out.uint("uint", 5, format_args!("u {} ", 5));
    out.int("int", -5, format_args!("i {} ", -5));
    out.float("float", 0.25, format_args!("f {} ", 0.25));
    out.string("string", "word", format_args!("s {} ", "word"));
    out.flag("flag", true, format_args!("b "));
    out.flag("other", false, format_args!("n "));
    out.null("null", format_args!("z "));
    out.open(Some("inner"));
    out.json(|json| json.raw(Some("only"), format_args!("1")));
    out.close();
    out.open(Some("empty"));
    out.close();
    out.json(|json| {
        json.open_array(Some("list"));
        json.string(None, "a");
        json.raw(None, format_args!("2"));
        json.close_array();
        json.open_array(Some("none"));
        json.close_array();
    });
    out.close();
    out.open(None);
    out.uint("second", 1, format_args!("end\n"));
    out.close();
    out.finish()
}

#[test]
fn text_and_json_say_the_same() {
    assert_eq!(all(false, false), "begin u 5 i -5 f 0.25 s word b n z end\n");
    assert_eq!(all(false, true), all(false, false));
    let object = r#"{"uint":5,"int":-5,"float":0.25,"string":"word","flag":true,"other":false,"#
        .to_owned()
        + r#""null":null,"inner":{"only":1},"empty":{},"list":["a",2],"none":[]}"#;
    assert_eq!(all(true, false), format!("[{object},{{\"second\":1}}]\n"));
}

/// Pretty JSON has the layout of iproute2: a line for each member, indented by four spaces for each
/// level, where arrays count as levels. Elements of an array follow each other on one line.
#[test]
fn pretty_json_has_a_line_for_each_member() {
    let lines = [
        "[ {",
        "        \"uint\": 5,",
        "        \"int\": -5,",
        "        \"float\": 0.25,",
        "        \"string\": \"word\",",
        "        \"flag\": true,",
        "        \"other\": false,",
        "        \"null\": null,",
        "        \"inner\": {",
        "            \"only\": 1",
        "        },",
        "        \"empty\": {},",
        "        \"list\": [ \"a\",2 ],",
        "        \"none\": [ ]",
        "    },{",
        "        \"second\": 1",
        "    } ]",
        "",
    ];
    assert_eq!(all(true, true), lines.join("\n"));
}

#[test]
fn an_empty_listing_is_one() {
    assert_eq!(Out::new(style(false, false)).finish(), "");
    assert_eq!(Out::new(style(true, false)).finish(), "[]\n");
    assert_eq!(Out::new(style(true, true)).finish(), "[ ]\n");
}

/// Strings are quoted as in RFC 8259, section 7.
#[test]
fn strings_are_quoted() {
    for (text, quoted) in [
        ("", r#""""#),
        ("a b", r#""a b""#),
        ("say \"no\"", r#""say \"no\"""#),
        ("C:\\", r#""C:\\""#),
        ("1\n2\t3\r4", r#""1\n2\t3\r4""#),
        ("\u{1}\u{1f} \u{7f}é", "\"\\u0001\\u001f \u{7f}é\""),
    ] {
        let mut json = Json::new(false);
        json.string(None, text);
        assert_eq!(json.finish(), format!("{quoted}\n"));
        let mut json = Json::new(false);
        json.open_object(None);
        json.raw(Some(text), format_args!("1"));
        json.close_object();
        assert_eq!(json.finish(), format!("{{{quoted}:1}}\n"));
    }
}

/// Numbers with a fraction have six significant digits, as with C's `%g`.
#[test]
fn numbers_with_a_fraction_have_six_digits() {
    for (number, text) in [
        (0.0, "0"),
        (1.0, "1"),
        (-1.5, "-1.5"),
        (12.5, "12.5"),
        (1.0 / 3.0, "0.333333"),
        (2.0 / 3.0, "0.666667"),
        (100.0, "100"),
        (100_000.0, "100000"),
        (123_456.7, "123457"),
        (99_999.96, "100000"),
        (999_999.4, "999999"),
        (999_999.6, "1e+06"),
        (1_000_000.0, "1e+06"),
        (-1_234_567.0, "-1.23457e+06"),
        (1.5e10, "1.5e+10"),
        (1e100, "1e+100"),
        (0.000_1, "0.0001"),
        (0.000_123_456_78, "0.000123457"),
        (0.000_099, "9.9e-05"),
        (1.234_567e-7, "1.23457e-07"),
    ] {
        let mut json = Json::new(false);
        json.float(None, number);
        assert_eq!(json.finish(), format!("{text}\n"));
    }
}
