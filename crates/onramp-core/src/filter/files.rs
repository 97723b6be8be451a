//! Reads the files with programs that a `tc` line names.

use std::fmt;

use super::ebpf::Ebpf;
use crate::base::ConfigError;

/// The section of an object file that `tc` reads if the line names no section.
const SECTION: &str = "classifier";

/// Replaces the file names in a `tc` line by the programs in these files; `read` returns the
/// contents of a file: `bytecode-file FILE` becomes `bytecode …`, `object-file FILE section NAME`
/// becomes `ebpf-bytecode …`. Removes comments, and leaves other lines unchanged. Use this function
/// before the line is parsed, because the parser reads no files.
///
/// ```
/// use onramp_core::filter::with_files;
/// let line = "filter add dev e0 bpf bytecode-file port.txt classid 1:1";
/// let line = with_files(line, |file| {
///     assert_eq!(file, "port.txt");
///     Ok::<_, &str>(b"1\n6 0 0 4294967295\n".to_vec())
/// })?;
/// assert_eq!(line, "filter add dev e0 bpf bytecode 1,6 0 0 4294967295, classid 1:1");
/// # Ok::<(), onramp_core::ConfigError>(())
/// ```
///
/// # Errors
///
/// Returns a [`ConfigError`] with the error that `read` returned, or with what is wrong with the
/// contents of the file.
pub fn with_files<E: fmt::Display>(
    line: &str,
    mut read: impl FnMut(&str) -> Result<Vec<u8>, E>,
) -> Result<String, ConfigError> {
    let line = line.split('#').next().unwrap_or_default();
    let mut words = line.split_ascii_whitespace().peekable();
    if !words.clone().any(|word| word == "bpf") {
        return Ok(line.to_owned());
    }
    let mut out: Vec<String> = Vec::new();
    while let Some(word) = words.next() {
        let wrong = |value: &str, why: &str| ConfigError::new("filter bpf", word, value, why);
        let mut file = || {
            let name = words.next().unwrap_or_default().trim_matches(['\'', '"']);
            read(name).map(|bytes| (name, bytes)).map_err(|why| wrong(name, &why.to_string()))
        };
        match word {
            "bytecode-file" | "bcf" => {
                let (name, bytes) = file()?;
                let text =
                    String::from_utf8(bytes).map_err(|_| wrong(name, "the file is not text"))?;
                out.extend(["bytecode".into(), text.replace(['\n', '\r'], ",").trim().into()]);
            }
            "object-file" | "obj" => {
                let (name, bytes) = file()?;
                let mut section = SECTION;
                while let Some(word) = words.next_if(|word| is_of_object(word)) {
                    if matches!(word, "section" | "sec") {
                        section = words.next().unwrap_or_default();
                    }
                }
                let object = Ebpf::digits(&bytes, section);
                let digits = object.map_err(|error| {
                    let about = if error.value.is_empty() { name } else { &error.value };
                    wrong(about, &error.why)
                })?;
                out.extend(["ebpf-bytecode".into(), digits]);
            }
            word => out.push(word.into()),
        }
    }
    Ok(out.join(" "))
}

fn is_of_object(word: &str) -> bool {
    matches!(word, "section" | "sec" | "verbose" | "verb")
}
