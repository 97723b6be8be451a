//! Runs the shell blocks of the documents, so that the lines that a reader copies work.
//!
//! A block begins with the line ```` ```sh ````. Each page has a folder of its own, with a copy of
//! the repository's files, as after `git clone`. Each block runs in a shell of its own, which reads
//! the block from its standard input, as a terminal does if a reader pastes the block. Each line
//! must exit with status 0, and no program may read the lines that follow it. A command whose
//! output becomes part of a line (`export X=$(command)`) must exit with 0 too, and so must a job in
//! the background, unless it still runs at the end of the block, or a signal ended it, or the block
//! itself has waited for it (`wait`, `jobs`).
//!
//! `onramp` is the program that the tests use. Each page has a home folder of its own, in which the
//! program is where `cargo install` puts it. The library that `onramp exec` needs is where its
//! build leaves it, and the blocks install it.
//!
//! As root, a block runs in namespaces of its own (network, mounts, processes): nothing that it
//! sends leaves the machine, and nothing that it starts or mounts stays behind.
//!
//! A comment on the line above a block says what differs for this block:
//!
//! ```text
//! <!-- readme: not run: REASON -->
//! <!-- readme: needs root -->
//! ```

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::shell::{output, root, timed};
use crate::{Failure, Outcome, programs, suite};

const HELP: &str = "\
usage: cargo xtask readme [PAGE...]

Runs every `sh` block of README.md and of the pages below docs, and prints how long each takes.
PAGE: only pages whose path contains PAGE.
";

const FENCE: &str = "```";
const COMMENT: &str = "<!-- readme:";
/// A block that runs for longer has failed.
const LONGEST: Duration = Duration::from_secs(120);
/// The library that `onramp exec` loads into programs, and the folders, below that of a page, of
/// its build and of the installed program.
const LIBRARY: &str = "libonramp_preload.so";
const BUILT: &str = "clone/target/release";
const INSTALLED: &str = "home/.cargo/bin";
/// The exit status of a shell that has read its block to the end.
const ENDED: i32 = 77;

/// The shell runs this line before a block. Then it ends at the first line that fails, and names
/// it: the line's number on the page is `$AT` plus its number in the shell. It also names a command
/// that fails in a subshell, such as in `export X=$(false)`, writes it into the file `$FAULTS`, and
/// goes on.
const STRICT: &str = "set -Eeuo pipefail; set -m; trap 'status=$?; \
                      echo \"line $((AT + LINENO)): exit status $status: $BASH_COMMAND\" | \
                      tee -a \"$FAULTS\" >&2' ERR";
/// The shell runs this line after a block. It fails if a command failed in a subshell, or a job in
/// the background ended with a status from 1 to 127. A greater status says that a signal ended it.
const JUDGE: &str = "if jobs | grep -E '  Exit ([1-9]|[1-9][0-9]|1[01][0-9]|12[0-7])  ' >&2 || \
                     [ -s \"$FAULTS\" ]; then exit 1; fi";

/// The options with which `unshare` runs a block of root's in namespaces of its own.
const NAMESPACES: [&str; 6] =
    ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];

/// Prepares fresh namespaces: switches the loopback device on, and makes an empty place for the
/// names of further networks. Then it runs its arguments.
const CONFINED: &str = "ip link set lo up && mkdir -p /run/netns && \
                        mount -t tmpfs none /run/netns && exec \"$@\"";

/// A block of shell commands on a page.
#[derive(Debug, PartialEq)]
struct Block<'t> {
    /// The number of the page's line on which the block begins.
    line: usize,
    text: String,
    mark: Mark<'t>,
}

/// What the comment above a block says.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mark<'t> {
    None,
    NotRun(&'t str),
    Root,
}

/// Where and how the blocks of a page run.
#[derive(Debug)]
struct Place {
    folder: PathBuf,
    /// Whether this is root, and may make namespaces.
    is_root: bool,
    longest: Duration,
}

/// How a block ended.
#[derive(Debug, PartialEq)]
enum End {
    Well,
    NotRun(String),
    NeedsRoot,
    Badly(String),
}

/// Runs the blocks of all pages, or only of those whose path contains one of the arguments.
pub(crate) fn run(args: &[String]) -> Outcome {
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        print!("{HELP}");
        return Ok(());
    }
    if let Some(option) = args.iter().find(|arg| arg.starts_with('-')) {
        return Err(Failure::Failed(format!("readme: unknown option {option}\n\n{HELP}")));
    }
    let mut lacks = suite::set_up();
    programs::make_program()?;
    let program = program().map_err(unable)?;
    let files = files()?;
    let asked = |page: &&String| args.is_empty() || args.iter().any(|arg| page.contains(&**arg));
    let (mut wrong, mut pages) = (Vec::new(), 0);
    for page in files.iter().filter(|file| is_page(file)).filter(asked) {
        let text = fs::read_to_string(root().join(page)).map_err(unable)?;
        let blocks = blocks(&text).map_err(|why| Failure::Failed(format!("{page}:{why}")))?;
        if blocks.is_empty() {
            continue;
        }
        pages += 1;
        let scratch = tempfile::tempdir().map_err(unable)?;
        let place = Place::make(scratch.path(), &files, &program).map_err(unable)?;
        for block in &blocks {
            let (end, took) = timed(|| place.run(block));
            let at = format!("{page}:{}", block.line);
            println!("{at:<34} {:>6.1} s  {end}", took.as_secs_f64());
            match end {
                End::Badly(_) => wrong.push(at),
                End::NeedsRoot => lacks.push(format!("{at} needs root")),
                End::Well | End::NotRun(_) => {}
            }
        }
    }
    match (pages, wrong.is_empty(), lacks.is_empty()) {
        (0, ..) => Err(Failure::Failed("no page with an `sh` block is called PAGE".into())),
        (_, false, _) => Err(Failure::Failed(format!("blocks that fail: {}", wrong.join(", ")))),
        (_, _, false) => Err(Failure::Unable(lacks.join("; "))),
        _ => Ok(()),
    }
}

fn unable(error: impl std::fmt::Display) -> Failure {
    Failure::Unable(format!("readme: {error}"))
}

/// Returns the path of the program `onramp`. Cargo has put it beside this program, xtask.
pub(crate) fn program() -> std::io::Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("onramp"))
}

/// Lists the files of the repository, and new files that git would add.
fn files() -> Result<Vec<String>, Failure> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root());
    Ok(output(&mut git)?.split_terminator('\0').map(str::to_owned).collect())
}

fn is_page(file: &str) -> bool {
    file == "README.md" || (file.starts_with("docs/") && file.ends_with(".md"))
}

/// Returns the `sh` blocks of a page.
fn blocks(page: &str) -> Result<Vec<Block<'_>>, String> {
    let mut blocks = Vec::new();
    let mut mark = Mark::None;
    let mut lines = page.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        // A block in a list is indented.
        let indent = line.len() - line.trim_start().len();
        let line = line.trim_start();
        let wrong = |why: &str| format!("{}: {why}", at + 1);
        if let Some(said) = line.strip_prefix(COMMENT) {
            mark = Mark::read(said).map_err(|why| wrong(&why))?;
            continue;
        }
        if line.starts_with(FENCE) {
            if line == FENCE {
                return Err(wrong("say what the block is: sh, text, json, ..."));
            }
            let inside = lines.by_ref().map(|(_, line)| line.get(indent..).unwrap_or_default());
            let text: Vec<&str> = inside.take_while(|line| *line != FENCE).collect();
            if line == "```sh" {
                let text = text.iter().map(|line| format!("{line}\n")).collect();
                blocks.push(Block {
                    line: at + 1,
                    text,
                    mark: std::mem::replace(&mut mark, Mark::None),
                });
            }
        }
        if mark != Mark::None {
            return Err(wrong("the comment above is not followed by an `sh` block"));
        }
    }
    if mark == Mark::None { Ok(blocks) } else { Err("the page ends with a comment".into()) }
}

impl<'t> Mark<'t> {
    /// Reads what follows the beginning of a comment.
    fn read(said: &'t str) -> Result<Self, String> {
        let said = said.strip_suffix("-->").ok_or("the comment must end on its line")?.trim();
        match said.split_once("not run:").map(|(before, why)| (before, why.trim())) {
            Some(("", "")) => Err("a block that is not run needs a reason".into()),
            Some(("", why)) => Ok(Mark::NotRun(why)),
            _ if said == "needs root" => Ok(Mark::Root),
            _ => Err(format!("unknown comment: {said}")),
        }
    }
}

/// Puts the file `from` at the path `to` as well: as a second name of the same file or, on another
/// file system, as a copy.
fn place(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::hard_link(from, to).or_else(|_| fs::copy(from, to).map(drop))
}

impl Place {
    /// Copies `files` of the repository to a fresh folder, and installs `program`, which is on the
    /// path. Puts the library beside the program, if there is one, where its build leaves it.
    fn make(folder: &Path, files: &[String], program: &Path) -> std::io::Result<Self> {
        for file in files {
            let (from, to) = (root().join(file), folder.join("clone").join(file));
            // A file that was removed, but not yet from git's index, is not there.
            if from.exists() {
                fs::create_dir_all(to.parent().unwrap_or(folder))?;
                match fs::read_link(&from) {
                    Ok(leads_to) => symlink(leads_to, to)?,
                    Err(_) => drop(fs::copy(from, to)?),
                }
            }
        }
        for name in ["tmp", BUILT, INSTALLED] {
            fs::create_dir_all(folder.join(name))?;
        }
        // No symbolic link: the program must not find what lies beside the one that it leads to.
        place(program, &folder.join(INSTALLED).join("onramp"))?;
        let library = program.with_file_name(LIBRARY);
        if library.exists() {
            place(&library, &folder.join(BUILT).join(LIBRARY))?;
        }
        // In many containers, root may not make the namespaces in which blocks run.
        let mut namespaces = Command::new("unshare");
        namespaces.args(NAMESPACES).arg("true").stderr(Stdio::null());
        let is_root = rustix::process::geteuid().is_root() && namespaces.status()?.success();
        Ok(Self { folder: folder.to_owned(), is_root, longest: LONGEST })
    }

    fn run(&self, block: &Block<'_>) -> End {
        match block.mark {
            Mark::NotRun(why) => End::NotRun(why.to_owned()),
            Mark::Root if !self.is_root => End::NeedsRoot,
            Mark::Root | Mark::None => {
                self.judge(block).unwrap_or_else(|error| End::Badly(error.to_string()))
            }
        }
    }

    fn judge(&self, block: &Block<'_>) -> std::io::Result<End> {
        let said = self.folder.join("said");
        let file = File::create(&said)?;
        fs::write(self.folder.join("faults"), "")?;
        let mut child = self
            .shell(block.line)
            .stdin(Stdio::piped())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()?;
        let stdin = child.stdin.take();
        let fed = format!("{STRICT}\n{}{JUDGE}\nexit {ENDED}\n", block.text);
        // If the shell ends early, it does not read the rest. Its exit status says why.
        let _ = stdin.map(|mut stdin| stdin.write_all(fed.as_bytes()));
        let why = match child.wait()?.code() {
            Some(ENDED) => return Ok(End::Well),
            Some(0) => "a program of the block read the lines that follow it".to_owned(),
            Some(_) => "a command failed".to_owned(),
            None => format!("it still ran after {} s", self.longest.as_secs()),
        };
        let said = String::from_utf8_lossy(&fs::read(said)?).into_owned();
        Ok(End::Badly(format!("{why}; the block said:\n{said}")))
    }

    /// Makes the command that runs the lines on its standard input, with a limit of time.
    fn shell(&self, line: usize) -> Command {
        let limit = format!("{}", self.longest.as_secs());
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", &limit]);
        if self.is_root {
            command.arg("unshare").args(NAMESPACES).args(["sh", "-c", CONFINED, "sh"]);
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let paths = [self.folder.join(INSTALLED)].into_iter().chain(std::env::split_paths(&path));
        let path = std::env::join_paths(paths).unwrap_or_else(|_| path.clone());
        command.args(["bash", "--norc", "-s"]).current_dir(self.folder.join("clone"));
        command.env("AT", (line - 1).to_string()).env("TMPDIR", self.folder.join("tmp"));
        command.env("FAULTS", self.folder.join("faults")).env("HOME", self.folder.join("home"));
        command.env("PATH", path).env_remove("ONRAMP_SOCKET");
        command
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Well => f.write_str("ok"),
            Self::NotRun(why) => write!(f, "not run: {why}"),
            Self::NeedsRoot => f.write_str("not run: it needs root that may make namespaces"),
            Self::Badly(why) => write!(f, "FAILED: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Runs the first block of a page. Returns how it ended.
    fn ran(page: &str) -> End {
        let scratch = tempfile::tempdir().expect("there is room");
        let place = Place::make(scratch.path(), &[], Path::new("/bin/true")).expect("a place");
        place.run(&blocks(page).expect("a page")[0])
    }

    /// Asserts that the first block of a page ends badly, and that the report contains `why`.
    #[track_caller]
    fn fails(page: &str, why: &str) {
        match ran(page) {
            End::Badly(said) => assert!(said.contains(why), "{why} is missing in: {said}"),
            end => panic!("{end:?}"),
        }
    }

    #[test]
    fn a_block_in_a_list_is_a_block() {
        let page = "1. one\n\n   ```sh\n   echo one\n     echo two\n   ```\n";
        let blocks = blocks(page).expect("a page");
        assert_eq!(blocks.len(), 1);
        assert_eq!((blocks[0].line, blocks[0].text.as_str()), (3, "echo one\n  echo two\n"));
    }

    #[test]
    fn a_block_runs_to_its_end() {
        assert_eq!(
            ran("```sh\nonramp && echo 'two\nlines' | cat\nsleep 60 &\nkill %%\n```\n"),
            End::Well
        );
    }

    /// A program finds nothing beside it but what a block has installed.
    #[test]
    fn a_block_installs_what_the_program_needs() {
        let folder = tempfile::tempdir().expect("there is room");
        let program = folder.path().join("onramp");
        let looks = "#!/bin/sh\nls $(dirname $0)/libonramp_preload.so || \\
                     ls $(dirname $0)/../lib/onramp/libonramp_preload.so";
        fs::write(&program, looks).expect("a file");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("its mode");
        fs::write(program.with_file_name(LIBRARY), "the library").expect("a file");
        let scratch = tempfile::tempdir().expect("there is room");
        let place = Place::make(scratch.path(), &[], &program).expect("a place");
        let readme = fs::read_to_string(root().join("README.md")).expect("a page");
        let all = blocks(&readme).expect("a page");
        let install = all.iter().find(|block| block.text.contains("install -D")).expect("a block");
        let exec = Block { line: 1, text: "onramp exec -- true\n".into(), mark: Mark::None };
        assert!(matches!(place.run(&exec), End::Badly(_)), "nothing is installed yet");
        assert_eq!(place.run(install), End::Well);
        assert_eq!(place.run(&exec), End::Well);
    }

    #[test]
    fn a_line_that_fails_is_found_and_named() {
        fails(
            "# Page\n\n```sh\ntrue\nls /nowhere\ntrue\n```\n",
            "line 5: exit status 2: ls /nowhere",
        );
        fails("```sh\nfalse | cat\n```\n", "line 2: exit status 1");
        fails("```sh\necho \"$UNSET\"\n```\n", "UNSET: unbound variable");
        fails("```sh\nnosuchprogram\n```\n", "line 2: exit status 127: nosuchprogram");
        fails("```sh\ncat\necho eaten\n```\n", "read the lines that follow it");
    }

    /// A job that fails in the background is found. One that a signal ended, or that still runs, is
    /// not at fault.
    #[test]
    fn a_job_that_fails_is_found() {
        const GONE: &str = "while kill -0 $! 2>/dev/null; do sleep 0.01; done";
        fails(&format!("```sh\n(exit 3) &\n{GONE}\n```\n"), "Exit 3");
        fails(&format!("```sh\nnosuchprogram &\n{GONE}\ntrue\n```\n"), "Exit 127");
        for job in ["true", "(exit 143)", "sh -c 'kill $$'"] {
            assert_eq!(ran(&format!("```sh\n{job} &\n{GONE}\n```\n")), End::Well, "{job}");
        }
        assert_eq!(ran("```sh\nsleep 60 &\n```\n"), End::Well);
    }

    #[test]
    fn a_command_that_fails_inside_a_line_is_found_and_named() {
        for line in ["export X=$(false)", "echo \"a $(false) b\"", "cat <(false)"] {
            fails(&format!("```sh\ntrue\n{line}\ntrue\n```\n"), "line 3: exit status 1: false");
        }
        for line in [
            "export X=$(mktemp -d)/onramp.sock",
            "export X=$(false) || true",
            "if [ -z \"$(grep x /dev/null)\" ]; then echo none; fi",
        ] {
            assert_eq!(ran(&format!("```sh\n{line}\n```\n")), End::Well, "{line}");
        }
    }

    #[test]
    fn a_block_that_does_not_end_is_ended() {
        let scratch = tempfile::tempdir().expect("there is room");
        let mut place = Place::make(scratch.path(), &[], Path::new("/bin/true")).expect("a place");
        place.longest = Duration::from_secs(1);
        let End::Badly(why) = place.run(&blocks("```sh\nsleep 600\n```").expect("a page")[0])
        else {
            panic!("it ended");
        };
        assert!(why.starts_with("it still ran after 1 s"), "{why}");
    }

    #[test]
    fn comments_say_which_blocks_are_not_run() {
        let reason = "<!-- readme: not run: takes an hour -->\n```sh\nfalse\n```\n";
        assert_eq!(ran(reason), End::NotRun("takes an hour".into()));
        let page = format!("```text\n```sh\n```\n{reason}```sh\na\nb\n```\n");
        let blocks = blocks(&page).expect("a page");
        let found: Vec<_> =
            blocks.iter().map(|block| (block.line, &*block.text, block.mark)).collect();
        let expected = [(5, "false\n", Mark::NotRun("takes an hour")), (8, "a\nb\n", Mark::None)];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_wrong_with_a_comment_is_said() {
        for (page, why) in [
            (
                "x\n<!-- readme: not run: -->\n```sh\n```",
                "2: a block that is not run needs a reason",
            ),
            ("<!-- readme: not run\n-->", "1: the comment must end on its line"),
            ("<!-- readme: skip -->\n```sh\n```", "1: unknown comment: skip"),
            ("a\n\n```\nls\n```\n", "3: say what the block is"),
            ("<!-- readme: needs root -->\n\n```sh\n```", "2: the comment above is not followed"),
            ("<!-- readme: needs root -->\n", "the page ends with a comment"),
        ] {
            let error = blocks(page).expect_err(why);
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn the_comments_of_all_pages_are_understood() {
        for page in files().expect("git lists them").iter().filter(|file| is_page(file)) {
            blocks(&fs::read_to_string(root().join(page)).expect("a page")).expect(page);
        }
    }
}
