//! Finds an eBPF program in an object file as compilers for `bpf` write it: ELF of 64 bits, little
//! endian.
//!
//! Source: "Tool Interface Standard: Executable and Linking Format"; RFC 9669.
//! Differs: a section that must be relocated, because it uses maps or calls functions, is an error.

use super::AT;
use crate::base::ConfigError;

const MAGIC: &[u8] = b"\x7fELF\x02\x01";
/// The number in the file header that stands for the `bpf` machine, `EM_BPF`.
const MACHINE: u16 = 247;
/// The least length of an entry in the section table, in bytes.
const ENTRY: usize = 64;
/// The type of a section that contains bytes of the program (`SHT_PROGBITS`).
const PROGBITS: u32 = 1;
const RELOCATIONS: [u32; 2] = [4, 9];

struct Section<'f> {
    name: &'f [u8],
    kind: u32,
    /// For relocations: the number (`sh_info`) of the section to which they apply.
    about: u32,
    bytes: &'f [u8],
}

fn read<const N: usize>(bytes: &[u8], at: u64) -> Option<[u8; N]> {
    bytes.get(usize::try_from(at).ok()?..)?.first_chunk().copied()
}

fn part(file: &[u8], at: u64, len: u64) -> Option<&[u8]> {
    let at = usize::try_from(at).ok()?;
    file.get(at..at.checked_add(usize::try_from(len).ok()?)?)
}

/// Returns the sections of the file, or `None` if the file is damaged.
fn sections(file: &[u8]) -> Option<Vec<Section<'_>>> {
    let table = u64::from_le_bytes(read(file, 40)?);
    let half = |at| read(file, at).map(u16::from_le_bytes);
    let (size, count, names) = (half(58)?, half(60)?, half(62)?);
    if usize::from(size) < ENTRY {
        return None;
    }
    let entry = |place: u16| {
        part(file, table.checked_add(u64::from(place) * u64::from(size))?, size.into())
    };
    let bytes = |entry: &[u8]| {
        let [at, len] = [24, 32].map(|at| read(entry, at).map(u64::from_le_bytes));
        part(file, at?, len?)
    };
    let names = bytes(entry(names)?)?;
    let section = |place: u16| {
        let entry = entry(place)?;
        let word = |at| read(entry, at).map(u32::from_le_bytes);
        let (name, kind) = (names.get(usize::try_from(word(0)?).ok()?..)?, word(4)?);
        let name = name.split(|byte| *byte == 0).next()?;
        // Only sections of type `PROGBITS` are read. Others, such as `.bss`, may have no bytes.
        let bytes = if kind == PROGBITS { bytes(entry)? } else { &[] };
        Some(Section { name, kind, about: word(44)?, bytes })
    };
    (0..count).map(section).collect()
}

/// Returns the instructions in the section with the name `section`.
pub(super) fn program<'f>(file: &'f [u8], name: &str) -> Result<&'f [u8], ConfigError> {
    let wrong = |key: &str, value: &str, why: &str| Err(ConfigError::new(AT, key, value, why));
    if !file.starts_with(MAGIC) || read(file, 18).map(u16::from_le_bytes) != Some(MACHINE) {
        return wrong("object-file", "", "expected what `clang -target bpf -c` writes");
    }
    let Some(sections) = sections(file) else {
        return wrong("object-file", "", "the file is damaged or incomplete");
    };
    let is_program = |section: &Section<'_>| section.kind == PROGBITS;
    let named =
        sections.iter().position(|section| is_program(section) && section.name == name.as_bytes());
    let Some(place) = named else {
        let there: Vec<_> = sections
            .iter()
            .filter(|section| is_program(section) && !section.bytes.is_empty())
            .map(|section| String::from_utf8_lossy(section.name))
            .collect();
        let why = format!("there is no such section; expected one of {}", there.join(", "));
        return wrong("section", name, &why);
    };
    let relocates = |section: &Section<'_>| {
        RELOCATIONS.contains(&section.kind) && section.about as usize == place
    };
    if sections.iter().any(relocates) {
        let why = "its program uses maps, data or other functions, which are not supported";
        return wrong("section", name, why);
    }
    Ok(sections[place].bytes)
}
