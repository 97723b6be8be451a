//! Tests how the words of a line and their values are read, mostly independently of filters.

use std::net::IpAddr;

use super::super::reader::{Reader, classid, count, hexadecimal, is, leading, mac, masked, prefix};
use super::tools::wrong;
use crate::Setup;
use crate::base::{ConfigError, Handle};

fn reader(line: &str) -> Reader<'_> {
    Reader::new(line)
}

/// Returns all words that have not been read yet, with one space between them.
fn rest(words: &Reader<'_>) -> String {
    let words: Vec<_> = (words.position()..words.len()).map(|at| words.again(at)).collect();
    words.join(" ")
}

/// A line gives the same words whether or not a shell has removed the quotes.
#[test]
fn quotes_are_space_and_parentheses_are_words() {
    for (line, words) in [
        ("basic match 'cmp(u8 at 1 eq 2)'", "basic match cmp ( u8 at 1 eq 2 )"),
        (r#"a"b" \( (c)d( "#, "a b ( ( c ) d ("),
        ("''", ""),
        ("((x))", "( ( x ) )"),
    ] {
        assert_eq!(rest(&reader(line)), words, "{line}");
    }
}

#[test]
fn words_are_taken_one_by_one() {
    let mut words = reader("one two act");
    assert_eq!(
        (words.peek(), words.peek_at(1), words.peek_at(2)),
        (Some("one"), Some("two"), Some("act"))
    );
    assert_eq!((words.peek_at(3), rest(&words).as_str()), (None, "one two act"));
    assert!(!words.take("two") && !words.takes("two"));
    assert!(words.take("one"));
    assert_eq!(words.next(), Some("two"));
    words.back();
    assert_eq!(rest(&words), "two act");
    assert!(words.take("two"));
    // `takes` accepts an abbreviation of a word, but no word that is longer.
    assert!(!words.takes("ac"));
    assert!(words.takes("action"));
    assert_eq!((words.peek(), words.next(), words.next()), (None, None, None));
    assert!(!words.take("") && !words.takes("x"));
    // At the end of the line, the last word can still be put back.
    words.back();
    assert_eq!(words.next(), Some("act"));
    (0..4).for_each(|_| words.back());
    assert_eq!(words.next(), Some("one"));
    assert!(is("flow", "flowid") && is("flowid", "flowid"));
    assert!(!is("flowidx", "flowid") && !is("", "flowid") && !is("low", "flowid"));
}

#[test]
fn values_say_what_was_expected() {
    let said = |error: ConfigError| (error.fault.code(), error.to_string());
    let number = |line: &str| reader(line).number("many", 20).map_err(said);
    let range = "expected a whole number, 0 to 20";
    assert_eq!((number("20"), number("0x14"), number("010")), (Ok(20), Ok(20), Ok(8)));
    assert_eq!(number("21"), Err((1, format!("filter: illegal \"many\" \"21\": {range}"))));
    // If the value is missing, `tc` exits with status 255. If the value is wrong, it exits with 1.
    assert_eq!(number(""), Err((255, format!("filter: \"many\": {range}"))));
    let hex = |line: &str| reader(line).hex("mask", 0xfff).map_err(said);
    let range = "expected a hexadecimal number, 0 to fff";
    assert_eq!((hex("fff"), hex("0x20"), hex("0")), (Ok(0xfff), Ok(0x20), Ok(0)));
    assert_eq!(hex("1000"), Err((1, format!("filter: illegal \"mask\" \"1000\": {range}"))));
    assert_eq!(hex(""), Err((255, format!("filter: \"mask\": {range}"))));
    let class = |line: &str| reader(line).class("flowid").map_err(said);
    assert_eq!(class("1:20"), Ok(Handle::new(1, 0x20)));
    let why = "expected a class such as 1:20, hexadecimal";
    assert_eq!(class("y"), Err((1, format!("filter: illegal \"flowid\" \"y\": {why}"))));
}

#[test]
fn numbers() {
    for (word, number) in
        [("0", Some(0)), ("255", Some(255)), ("256", None), ("-1", None), ("", None), ("x", None)]
    {
        assert_eq!(count(word, 255), number, "{word}");
    }
    assert_eq!(
        (count("4294967295", u32::MAX), count("4294967296", u32::MAX)),
        (Some(u32::MAX), None)
    );
    for (word, number) in [
        ("0", Some(0)),
        ("ff", Some(255)),
        ("FF", Some(255)),
        ("0xff", Some(255)),
        ("0XfF", Some(255)),
        ("100", None),
        ("+1", None),
        ("-1", None),
        ("0x", None),
        ("", None),
        ("g", None),
        ("100000000", None),
    ] {
        assert_eq!(hexadecimal(word, 255), number, "{word}");
    }
    assert_eq!(hexadecimal("ffffffff", u32::MAX), Some(u32::MAX));
    // `masked` tells the function that reads a word whether the word is the mask.
    let read = |word: &str, is_mask: bool| Some((word.to_owned(), is_mask));
    let all = ("all".to_owned(), true);
    let (word, one) = (("a".to_owned(), false), ("b/c".to_owned(), true));
    assert_eq!(masked("a", all.clone(), read), Some((word.clone(), all)));
    assert_eq!(masked("a/b/c", one.clone(), read), Some((word, one)));
    assert_eq!(masked("1/x", 9, |word, _| count(word, 9)), None);
    assert_eq!(masked("x/1", 9, |word, _| count(word, 9)), None);
    assert_eq!(masked("x", 9, |word, _| count(word, 9)), None);
    assert_eq!(masked("3/4", 9, |word, _| count(word, 9)), Some((3, 4)));
}

#[test]
fn classes() {
    for (word, class) in [
        ("1:20", Some((1, 0x20))),
        ("ffff:fffe", Some((0xffff, 0xfffe))),
        ("1:", Some((1, 0))),
        (":5", Some((0, 5))),
        (":", Some((0, 0))),
        // A word without a colon is a number with the 32 bits of major and minor number.
        ("10002", Some((1, 2))),
        ("5", Some((0, 5))),
        ("ffffffff", Some((0xffff, 0xffff))),
        ("100000000", None),
        ("10000:1", None),
        ("1:10000", None),
        ("1:2:3", None),
        ("x:1", None),
        ("1:x", None),
        ("", None),
    ] {
        assert_eq!(classid(word), class.map(|(major, minor)| Handle::new(major, minor)), "{word}");
    }
}

#[test]
fn prefixes() {
    for (word, expected) in [
        ("10.0.0.0/8", Some(("10.0.0.0", 8))),
        ("10.1.2.3", Some(("10.1.2.3", 32))),
        ("10.1.2.3/32", Some(("10.1.2.3", 32))),
        ("10.1.2.3/0", Some(("10.1.2.3", 0))),
        // Missing octets of an IPv4 address are zeros.
        ("10/8", Some(("10.0.0.0", 8))),
        ("10.9", Some(("10.9.0.0", 32))),
        ("255.255.255.255/1", Some(("255.255.255.255", 1))),
        ("10.0.0.0/255.255.0.0", Some(("10.0.0.0", 16))),
        ("10.0.0.0/255.255.255.255", Some(("10.0.0.0", 32))),
        ("10.0.0.0/0.0.0.0", Some(("10.0.0.0", 0))),
        ("any", Some(("0.0.0.0", 0))),
        ("all", Some(("0.0.0.0", 0))),
        ("default", Some(("0.0.0.0", 0))),
        ("fd00::1", Some(("fd00::1", 128))),
        ("fd00::/8", Some(("fd00::", 8))),
        ("::/0", Some(("::", 0))),
        ("fd00::1/128", Some(("fd00::1", 128))),
        ("10.0.0.0/33", None),
        ("10.0.0.0/", None),
        ("10.0.0.0/255.0.255.0", None),
        ("10.0.0.0/0.255.0.0", None),
        ("10.0.0.0/x", None),
        ("fd00::/129", None),
        ("fd00::/255.0.0.0", None),
        ("fd00:::1", None),
        ("1.2.3.4.5", None),
        ("1..2", None),
        ("1.2.3.256", None),
        ("1.2.3.+4", None),
        ("", None),
        ("x", None),
    ] {
        let expected = expected.map(|(address, bits): (&str, u8)| {
            (address.parse::<IpAddr>().expect("an address"), bits)
        });
        assert_eq!(prefix(word), expected, "{word}");
    }
}

/// The four words that `leading` returns for a prefix of an IPv6 address are the mask of 128 bits.
#[test]
fn leading_bits() {
    for bits in 0..=128_u8 {
        let whole = (0..bits).fold(0_u128, |sum, bit| sum | 1 << (127 - bit));
        for (place, from) in [0, 32, 64, 96].into_iter().enumerate() {
            let word = u32::try_from(whole >> (96 - 32 * place) & 0xffff_ffff).expect("a word");
            assert_eq!(leading(bits, from), word, "{bits} from {from}");
        }
    }
}

#[test]
fn addresses_of_ethernet() {
    for (word, expected) in [
        ("02:00:00:00:00:01", Some([2, 0, 0, 0, 0, 1])),
        ("2:0:0a:B:ff:1", Some([2, 0, 10, 11, 255, 1])),
        ("2:0:0:0:0", None),
        ("2:0:0:0:0:1:2", None),
        ("2:0:0:0:0:100", None),
        ("2:0:0:0:0:001", None),
        ("2:0:0:0:0:", None),
        ("2::0:0:0:1", None),
        ("2:0:0:0:0:g", None),
        ("24", None),
        ("", None),
    ] {
        assert_eq!(mac(word), expected, "{word}");
    }
}

/// Tests each option before the kind of a filter: its abbreviations, and its errors.
#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn what_stands_before_the_kind() {
    use super::super::Head;
    let read = |line: &str| {
        let mut words = reader(line);
        let head = Head::read(&mut words).unwrap_or_else(|error| panic!("{line}: {error}"));
        (head, rest(&words))
    };
    let parent = |line: &str| read(line).0.parent;
    assert_eq!(parent("parent 1:2 x"), Some(Handle::new(1, 2)));
    assert_eq!(parent("root"), Some(Handle::new(0xffff, 0xffff)));
    assert_eq!(parent("ingress"), Some(Handle::new(0xffff, 0xfff2)));
    assert_eq!(parent("egress"), Some(Handle::new(0xffff, 0xfff3)));
    assert_eq!(read("dev e0 handle 7 u32 dev e1").0.device.as_deref(), Some("e0"));
    assert_eq!(read("dev e0 handle 7 u32 dev e1").0.handle.as_deref(), Some("7"));
    assert_eq!(read("dev e0 handle 7 u32 dev e1").1, "u32 dev e1");
    for word in ["prio", "pref", "preference", "priority", "p", "pr", "prior", "prefer"] {
        assert_eq!(read(&format!("{word} 65535 x")).0.pref(), Some(u16::MAX), "{word}");
    }
    // Preference 0 means that a preference is to be assigned.
    assert_eq!(read("prio 0").0.pref(), None);
    for word in ["protocol", "pro", "proto"] {
        assert_eq!(read(&format!("{word} arp x")).0.query().protocol, Some(0x0806), "{word}");
    }
    let head = read("chain 4294967295 parent 1: pref 3").0;
    assert_eq!((head.chain(), read("pref 3").0.chain()), (u32::MAX, 0));
    let query = head.query();
    assert_eq!((query.parent, query.pref), (Some(Handle::new(1, 0)), Some(3)));
    assert_eq!((query.protocol, query.chain), (None, Some(u32::MAX)));
    for (line, key, second) in [
        ("dev e0 dev e1", "dev", "e1"),
        ("parent 1: parent 2:", "parent", "2:"),
        ("root parent 2:", "parent", "2:"),
        ("parent 2: ingress", "parent", ""),
        ("pref 1 priority 2", "priority", "2"),
        ("protocol ip proto all", "protocol", "all"),
        ("chain 1 chain 2", "chain", "2"),
        ("handle 1 handle 2", "handle", "2"),
    ] {
        let said = match second {
            "" => format!("filter: \"{key}\": given twice"),
            second => format!("filter: illegal \"{key}\" \"{second}\": given twice"),
        };
        assert_eq!(wrong(line), (255, said), "{line}");
    }
    for (line, message) in [
        ("dev", "filter: \"dev\": expected the name of a device"),
        ("handle", "filter: \"handle\": expected a filter's handle"),
        (
            "parent x",
            "filter: illegal \"parent\" \"x\": expected a handle such as 1: or 1:20, hexadecimal, \
             1 to ffff",
        ),
        ("pref 65536", "filter: illegal \"pref\" \"65536\": expected a whole number, 0 to 65535"),
        (
            "chain 4294967296",
            "filter: illegal \"chain\" \"4294967296\": expected a whole number, 0 to 4294967295",
        ),
        (
            "protocol",
            "filter: \"protocol\": expected all, ip, ipv6, arp, 802.1q, 802.1ad or a number",
        ),
        (
            "est 1sec 4sec",
            "filter: \"estimator\": estimators are not supported; use the filter's counters",
        ),
    ] {
        assert_eq!(wrong(line), (255, message.to_owned()), "{line}");
    }
    let query = Head::read_query(&mut reader("dev e0 pref 2")).expect("words of a query");
    assert_eq!(query.pref(), Some(2));
    let error = Head::read_query(&mut reader("dev e0 basic")).expect_err("a kind");
    let why =
        "filter: unexpected \"basic\": expected dev, parent, root, pref, protocol, chain, handle";
    assert_eq!((error.fault.code(), error.to_string().as_str()), (255, why));
}

/// A filter means a device, and not its name: the name in its words is the present one.
#[test]
fn a_filter_names_its_device_as_it_is_called_now() {
    let mut setup = Setup::default();
    for line in [
        "qdisc add dev indev root handle 1: prio",
        "filter add dev indev parent 1: pref 1 handle 5 fw indev indev classid 1:1",
        "filter add dev indev parent 1: pref 2 flower indev e1 classid 1:2 action pass",
        "filter add dev indev parent 1: pref 3 u32 match u32 1 1 indev indev classid 1:3",
    ] {
        setup.apply(line).expect(line);
    }
    assert_eq!(setup.indev_of_change(), Some("indev"));
    setup.rename_indev("e1", "e2");
    setup.rename_indev("indev", "e1");
    assert_eq!(setup.indevs().collect::<Vec<_>>(), ["e1", "e2", "e1"]);
    let filters = |setup: &Setup| -> Vec<String> {
        let lines = setup.lines().into_iter().filter(|line| line.starts_with("filter"));
        lines.filter_map(|line| Some(line.split_once(" chain 0 ")?.1.to_owned())).collect()
    };
    let u32s = ["u32", "handle ::800 u32 match u32 1 1 indev e1 classid 1:3"];
    let flower = "handle 0x1 flower indev e2 classid 1:2 action pass index 1";
    let want = ["handle 0x5 fw indev e1 classid 1:1", flower];
    let mut all = filters(&setup);
    all.retain(|line| !line.ends_with(": u32 divisor 1") && line != u32s[0]);
    assert_eq!(all, [want[0], want[1], u32s[1]]);
    setup.forget_indevs(|name| name == "e2");
    assert_eq!(filters(&setup), [want[1]]);
}
