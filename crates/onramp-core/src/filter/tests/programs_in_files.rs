//! Tests of `with_files`: which files a line names, and which lines stay unchanged.

use super::super::with_files;

const PROGRAM: &[u8] = b"2,128 0 0 0\r\n22 0 0 0\n";
const OBJECT: &[u8] = include_bytes!("../../../tests/ebpf/ports.o");

/// Returns the line with the programs from its files, and the names of the files that were read.
fn read(line: &str, bytes: &[u8]) -> Result<(String, Vec<String>), String> {
    let mut asked = Vec::new();
    let line = with_files(line, |file| {
        asked.push(file.to_owned());
        Ok::<_, &str>(bytes.to_vec())
    });
    line.map(|line| (line, asked)).map_err(|error| error.to_string())
}

#[test]
fn programs_stand_in_files() {
    let files = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    for (line, expected, names) in [
        (
            "filter add dev e0 bpf bytecode-file \"port.txt\" classid 1:1",
            "filter add dev e0 bpf bytecode 2,128 0 0 0,,22 0 0 0, classid 1:1",
            &["port.txt"][..],
        ),
        ("bpf bcf x da # bcf y", "bpf bytecode 2,128 0 0 0,,22 0 0 0, da", &["x"]),
        // A line for another kind of filter names no files; only its comment is removed.
        ("filter  add basic bcf x", "filter  add basic bcf x", &[]),
        ("filter  add basic bcf x # bpf", "filter  add basic bcf x ", &[]),
        ("", "", &[]),
        ("bpf", "bpf", &[]),
        ("bpf   bytecode 1,6 0 0 1", "bpf bytecode 1,6 0 0 1", &[]),
    ] {
        let (found, asked) = read(line, PROGRAM).expect(line);
        assert_eq!(found, expected, "{line}");
        assert_eq!(asked, files(names), "{line}");
    }
    // The line that `with_files` returns creates a filter.
    let (line, _) = read("bpf bcf x", PROGRAM).expect("a program");
    super::filters(&[&line]);
}

#[test]
fn objects_stand_in_files() {
    let (classifier, _) = read("bpf obj x", OBJECT).expect("a program");
    let (act, _) = read("bpf obj x sec act", OBJECT).expect("a program");
    assert_ne!(classifier, act);
    for (line, expected) in [
        ("bpf object-file x", &classifier),
        ("bpf object-file x section classifier", &classifier),
        ("bpf obj x verbose", &classifier),
        ("bpf obj x verb sec act", &act),
        ("bpf object-file x section act verbose", &act),
        ("bpf obj x sec classifier sec act", &act),
    ] {
        assert_eq!(&read(line, OBJECT).expect(line).0, expected, "{line}");
    }
    let (line, _) = read("bpf obj x sec act da classid 1:1", OBJECT).expect("a program");
    assert_eq!(line, format!("{act} da classid 1:1"));
    // The program is written with two hexadecimal digits for each byte, in the order of the file.
    let digits = act.strip_prefix("bpf ebpf-bytecode ").expect("its word");
    assert!(digits.ends_with("9500000000000000"), "{digits}");
    let bytes: Vec<u8> = (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("two digits"))
        .collect();
    assert!(OBJECT.windows(bytes.len()).any(|part| part == bytes));
}

#[test]
fn what_is_wrong_with_a_file() {
    let said = |line: &str, bytes: &[u8]| read(line, bytes).expect_err(line);
    assert_eq!(
        said("bpf bcf x", &[0x80]),
        "filter bpf: illegal \"bcf\" \"x\": the file is not text"
    );
    // The error for a wrong object file names the file; the error for an unknown section names the
    // section.
    assert_eq!(
        said("bpf obj x.o", b"text"),
        "filter bpf: illegal \"obj\" \"x.o\": expected what `clang -target bpf -c` writes"
    );
    assert_eq!(
        said("bpf object-file x.o sec foo", OBJECT),
        "filter bpf: illegal \"object-file\" \"foo\": there is no such section; expected one of \
         classifier, act, map"
    );
    assert_eq!(
        said("bpf obj x.o sec", OBJECT),
        "filter bpf: illegal \"obj\" \"x.o\": there is no such section; expected one of \
         classifier, act, map"
    );
    let missing = with_files("bpf bytecode-file y", |_| Err::<Vec<u8>, _>("no such file"));
    assert_eq!(
        missing.expect_err("it is not there").to_string(),
        "filter bpf: illegal \"bytecode-file\" \"y\": no such file"
    );
    let error = with_files("bpf obj", |file| Err::<Vec<u8>, _>(format!("no file {file:?}")));
    assert_eq!(error.expect_err("none is named").to_string(), "filter bpf: \"obj\": no file \"\"");
}
