//! Finds a program, and refuses one that does not load the library.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, FileType};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use elf::ElfStream;
use elf::abi::{EM_AARCH64, EM_RISCV, EM_X86_64, PT_INTERP};
use elf::endian::AnyEndian;
use elf::file::Class;
use rustix::fs::{Access, access, getxattr};

use crate::error::NotRun;

/// Most scripts that run one another, as in Linux.
const SCRIPTS_MAX: u32 = 5;

/// Most bytes of a script's first line that Linux reads.
const LINE_MAX: u64 = 256;

/// The machine for which this program, and so the library, was built.
const MACHINE: Option<u16> = if cfg!(target_arch = "x86_64") {
    Some(EM_X86_64)
} else if cfg!(target_arch = "aarch64") {
    Some(EM_AARCH64)
} else if cfg!(target_arch = "riscv64") {
    Some(EM_RISCV)
} else {
    None
};

/// Checks that there is such a program, that it may be run, and that it loads libraries. Of a
/// script, checks the interpreter.
pub(super) fn check(word: &OsStr) -> Result<()> {
    let (mut word, mut script) = (word.to_owned(), None::<PathBuf>);
    for _ in 0..SCRIPTS_MAX {
        let path = match (find(&word), script) {
            (Ok(path), _) => path,
            (Err(error), None) => return Err(anyhow!(error)),
            (Err(NotRun { code, why }), Some(script)) => {
                let script = script.display();
                let advice = match word.as_bytes() {
                    [.., b'\r'] => "remove the carriage return at its end",
                    _ => "correct it, or install the interpreter",
                };
                return Err(not_run(code, format!("the first line of {script}: {why}; {advice}")));
            }
        };
        let Some(interpreter) = interpreter(&path)? else { return look(&path) };
        (word, script) = (interpreter, Some(path));
    }
    // Linux refuses it, too, and says why.
    Ok(())
}

/// Returns the path of a program, as the shell finds it.
fn find(word: &OsStr) -> Result<PathBuf, NotRun> {
    let name = word.display();
    let not_run = |code, why| Err(NotRun { code, why });
    if word.is_empty() {
        return not_run(127, "the name of the program is empty: name a program after `--`".into());
    }
    if word.as_bytes().contains(&b'/') {
        let path = PathBuf::from(word);
        return match fs::metadata(&path).map(|about| other_kind(about.file_type())) {
            Ok(None) if may_run(&path) => Ok(path),
            Ok(None) => not_run(126, format!("{name} may not be run: chmod +x makes it runnable")),
            Ok(Some(kind)) => {
                not_run(126, format!("cannot run {name}, because it is {kind}: name a program"))
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                not_run(126, format!("cannot run {name}: {error}"))
            }
            Err(error) => not_run(127, format!("cannot run {name}: {error}")),
        };
    }
    let folders = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let paths = env::split_paths(&folders).map(|folder| folder.join(word));
    let files: Vec<_> = paths.filter(|path| path.is_file()).collect();
    match files.iter().find(|path| may_run(path)) {
        Some(path) => Ok(path.clone()),
        None if files.is_empty() => not_run(
            127,
            format!("there is no program {name} in the folders of PATH: name its path"),
        ),
        None => {
            let path = files[0].display();
            not_run(126, format!("{path} may not be run: chmod +x makes it runnable"))
        }
    }
}

/// Returns what a file is that has no bytes that could be run; `None` for a regular file.
fn other_kind(kind: FileType) -> Option<&'static str> {
    if kind.is_file() {
        None
    } else if kind.is_dir() {
        Some("a directory")
    } else if kind.is_fifo() {
        Some("a FIFO")
    } else if kind.is_socket() {
        Some("a socket")
    } else {
        Some("a device")
    }
}

fn may_run(path: &Path) -> bool {
    access(path, Access::EXEC_OK).is_ok()
}

/// Returns the program that runs a script; `None` if the file is no script, or one that the shell
/// runs because it names no interpreter.
fn interpreter(path: &Path) -> Result<Option<OsString>> {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LINE_MAX).read_to_end(&mut head));
    if let Err(error) = read {
        // A program that may be run but not read.
        return match error.kind() {
            io::ErrorKind::PermissionDenied => Err(refused(path, "it cannot be read")),
            _ => Err(not_run(126, format!("cannot read {}: {error}", path.display()))),
        };
    }
    let Some(line) = head.strip_prefix(b"#!") else { return Ok(None) };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let words = line.split(|byte| b" \t".contains(byte)).filter(|word| !word.is_empty());
    let mut words = words.map(|word| OsStr::from_bytes(word).to_owned());
    let Some(first) = words.next() else { return Ok(None) };
    if Path::new(&first).file_name() != Some(OsStr::new("env")) {
        return Ok(Some(first));
    }
    // `env` runs the first word that is neither an option nor a variable.
    let is_program = |word: &OsString| {
        let bytes = word.as_bytes();
        !bytes.starts_with(b"-") && !bytes.contains(&b'=')
    };
    Ok(Some(words.find(is_program).unwrap_or(first)))
}

/// Refuses a program that would not load the library, or not use it.
fn look(path: &Path) -> Result<()> {
    if let Some(why) = gains_rights(path) {
        return Err(refused(path, why));
    }
    let file = File::open(path)
        .map_err(|error| not_run(126, format!("cannot read {}: {error}", path.display())))?;
    // What is no ELF file is for the shell, or for Linux to refuse.
    let Ok(mut file) = ElfStream::<AnyEndian, _>::open_stream(file) else { return Ok(()) };
    if file.ehdr.class == Class::ELF32 && cfg!(target_pointer_width = "64") {
        return Err(refused(path, "it is a 32-bit program, and the library has 64 bits"));
    }
    if MACHINE.is_some_and(|machine| machine != file.ehdr.e_machine) {
        return Err(refused(path, "it was built for another kind of processor"));
    }
    if matches!(file.section_header_by_name(".go.buildinfo"), Ok(Some(_))) {
        let why = "programs in Go make their system calls themselves, without the C library";
        return Err(refused(path, why));
    }
    let linker = file.segments().iter().find(|segment| segment.p_type == PT_INTERP).copied();
    let Some(linker) = linker else {
        return Err(refused(path, "it is linked statically, and loads no libraries"));
    };
    let linker = file.segment_data(&linker).map(<[u8]>::to_vec).unwrap_or_default();
    let is_musl = String::from_utf8_lossy(&linker).contains("ld-musl");
    if is_musl != cfg!(target_env = "musl") {
        let [its, ours] = if is_musl { ["musl", "glibc"] } else { ["glibc", "musl"] };
        return Err(refused(path, &format!("its C library is {its}, and the library's is {ours}")));
    }
    let linker = Path::new(OsStr::from_bytes(linker.strip_suffix(b"\0").unwrap_or(&linker)));
    if !linker.exists() {
        let why = format!(
            "cannot run {}: its dynamic linker {} is not there; install the C library for which \
             the program was built",
            path.display(),
            linker.display()
        );
        return Err(not_run(127, why));
    }
    Ok(())
}

/// Returns why the dynamic linker ignores `LD_PRELOAD` for a program, if it does: the program gains
/// rights that its user does not have.
fn gains_rights(path: &Path) -> Option<&'static str> {
    const SETUID: u32 = 0o4000;
    /// setgid, and the group may run it.
    const SETGID: u32 = 0o2010;
    let about = fs::metadata(path).ok()?;
    let user = rustix::process::getuid();
    if about.mode() & SETUID != 0 && about.uid() != user.as_raw() {
        return Some("it is a setuid program, into which no library can be loaded");
    }
    if about.mode() & SETGID == SETGID && about.gid() != rustix::process::getgid().as_raw() {
        return Some("it is a setgid program, into which no library can be loaded");
    }
    let gains = getxattr(path, "security.capability", &mut [0_u8; 64]).is_ok();
    (gains && !user.is_root())
        .then_some("it gains rights (file capabilities), and so no library can be loaded into it")
}

fn refused(path: &Path, why: &str) -> anyhow::Error {
    let path = path.display();
    not_run(
        1,
        format!(
            "its datagrams cannot be led through a qdisc: {path}: {why}; `onramp wire` runs any \
             program behind a qdisc"
        ),
    )
}

fn not_run(code: u8, why: String) -> anyhow::Error {
    anyhow!(NotRun { code, why })
}
