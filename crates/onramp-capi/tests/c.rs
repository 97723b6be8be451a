//! Programs in C and C++ that use the library as it is installed: with the shared library, with the
//! static one, under valgrind, and with the sanitizers of the compiler.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{env, fs};

const C: &[&str] = &["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g"];
const CPP: &[&str] = &["-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g"];

/// What valgrind reports: any error, and any memory to which no pointer is left.
const VALGRIND: &[&str] = &[
    "--quiet",
    "--error-exitcode=99",
    "--leak-check=full",
    "--errors-for-leak-kinds=definite,indirect",
    "--show-leak-kinds=definite,indirect",
];

/// Returns the path of a file of this crate.
fn here(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

/// Reports a skipped test directly on standard error, because the test harness hides what passing
/// tests print.
fn skip(why: &str) {
    writeln!(std::io::stderr(), "SKIP: {why}").expect("it is open");
}

/// Whether these programs are there. If one is not, the test says so and is skipped; in CI, it
/// fails.
fn have(tools: &[&str]) -> bool {
    for tool in tools {
        let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output();
        if !found.is_ok_and(|found| found.status.success()) {
            let why =
                format!("no program `{tool}`: install its package, such as `apt install {tool}`");
            assert!(env::var_os("CI").is_none(), "{why}");
            skip(&why);
            return false;
        }
    }
    true
}

/// Runs a command, which must succeed. Returns what it has printed.
fn run(command: &mut Command) -> String {
    let shown = format!("{command:?}");
    let output = command.output().expect("the program starts");
    let texts =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{shown}: {}\n{}{}", output.status, texts[0], texts[1]);
    let [out, err] = texts;
    err.lines().filter_map(|line| line.strip_prefix("SKIP: ")).for_each(skip);
    out
}

/// The library, installed in the folder that cargo has for the files of tests.
struct Installed {
    prefix: PathBuf,
}

/// Installs the libraries that cargo has built for the tests. They lie beside the tests' programs.
fn installed() -> &'static Installed {
    static INSTALLED: OnceLock<Installed> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("onramp-capi");
        let program = env::current_exe().expect("the test's own path");
        let mut make = Command::new("make");
        make.arg("-C").arg(here("")).arg("install");
        make.arg(format!("PREFIX={}", prefix.display()));
        make.arg(format!("BUILT={}", program.parent().expect("a folder").display()));
        make.arg(format!("CARGO={}", env!("CARGO"))).env_remove("MAKEFLAGS");
        run(&mut make);
        Installed { prefix }
    })
}

impl Installed {
    fn lib(&self) -> PathBuf {
        self.prefix.join("lib")
    }

    /// Returns the words by which the compiler finds and links the library.
    fn flags(&self, is_static: bool) -> Vec<String> {
        let mut flags = vec![format!("-I{}", self.prefix.join("include").display())];
        if is_static {
            flags.push(self.lib().join("libonramp.a").display().to_string());
            flags.extend(["-lgcc_s", "-lpthread", "-lm", "-ldl"].map(str::to_owned));
        } else {
            flags.push(format!("-L{}", self.lib().display()));
            flags.push("-lonramp".to_owned());
        }
        flags
    }

    /// Compiles a program, with the words of `more` besides. Returns its path.
    fn compile(&self, source: &Path, is_static: bool, more: &[&str]) -> PathBuf {
        let is_cpp = source.extension() == Some(OsStr::new("cpp"));
        let (compiler, flags) = if is_cpp { ("c++", CPP) } else { ("cc", C) };
        let name = source.file_stem().and_then(OsStr::to_str).expect("a name");
        // Each compilation writes a file of its own, because another test may be running what an
        // earlier one wrote.
        static COMPILED: AtomicUsize = AtomicUsize::new(0);
        let number = COMPILED.fetch_add(1, Ordering::Relaxed);
        let program = self.prefix.join(format!("{name}-{number}"));
        let mut command = Command::new(compiler);
        command.args(flags).args(more).arg(source).arg("-o").arg(&program);
        run(command.args(self.flags(is_static)).arg("-pthread"));
        program
    }

    /// Returns the command that runs a program with the shared library.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.lib());
        command
    }
}

/// Returns the programs that are tested.
fn programs() -> [PathBuf; 5] {
    ["tree.c", "link.c", "manual.c", "source.c", "plus.cpp"].map(|name| here("tests/c").join(name))
}

#[test]
fn programs_run_with_the_shared_and_the_static_library() {
    if !have(&["cc", "c++", "make"]) {
        return;
    }
    let freed = here("tests/c/freed.c");
    for source in programs().iter().chain([&freed]) {
        for is_static in [false, true] {
            let program = installed().compile(source, is_static, &[]);
            run(&mut installed().command(&program));
        }
    }
}

#[test]
fn valgrind_finds_no_error_and_no_leak() {
    if !have(&["cc", "c++", "make", "valgrind"]) {
        return;
    }
    for source in programs() {
        let program = installed().compile(&source, false, &["-O1"]);
        let mut command = installed().command(Path::new("valgrind"));
        run(command.args(VALGRIND).arg(program));
    }
}

#[test]
fn the_sanitizers_find_nothing() {
    if !have(&["cc", "c++", "make"]) {
        return;
    }
    let sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    for source in programs() {
        let program = installed().compile(&source, true, &sanitize);
        run(Command::new(program).env("ASAN_OPTIONS", "detect_leaks=1"));
    }
}

/// The programs of the page for users compile, run, and print what the page says. `pkg-config` says
/// how to link them.
#[test]
fn the_programs_of_the_page_run() {
    let page = here("../../docs/c.md");
    if !page.exists() {
        skip("reference: this is the packed crate, without docs/c.md");
        return;
    }
    if !have(&["cc", "make", "pkg-config"]) {
        return;
    }
    let page = fs::read_to_string(page).expect("the page is text");
    let blocks: Vec<_> =
        page.split("```c\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(!blocks.is_empty(), "the page has a program");
    let config = installed().lib().join("pkgconfig");
    let mut ask = Command::new("pkg-config");
    let flags = run(ask.args(["--cflags", "--libs", "onramp"]).env("PKG_CONFIG_PATH", config));
    for (number, block) in blocks.iter().enumerate() {
        let source = installed().prefix.join(format!("page{number}.c"));
        fs::write(&source, block).expect("a file in the test's folder");
        let program = source.with_extension("");
        let mut command = Command::new("cc");
        command.args(C).arg(&source).arg("-o").arg(&program).args(flags.split_whitespace());
        run(&mut command);
        let out = run(&mut installed().command(&program));
        assert!(page.contains(&format!("```text\n{out}```")), "program {number} prints:\n{out}");
    }
}

/// Starts the server of the examples with these lines of tc. Returns it, and a client of it.
fn echo(lines: &str) -> (Ended, UdpSocket) {
    let program = installed().compile(&here("examples/echo.c"), false, &[]);
    let mut command = installed().command(&program);
    let server = command.args(["0", lines]).stdout(Stdio::piped()).spawn();
    let mut server = Ended(server.expect("the server starts"));
    let mut line = String::new();
    let out = server.0.stdout.take().expect("its output is a pipe");
    BufReader::new(out).read_line(&mut line).expect("the server says its port");
    let port = line.trim().strip_prefix("port ").expect(&line).parse::<u16>().expect(&line);
    let client = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    client.connect(("127.0.0.1", port)).expect("loopback");
    client.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket has a timeout");
    (server, client)
}

/// The server of the examples sends back what it gets, though its qdisc lets little through.
#[test]
fn the_server_of_the_examples_answers() {
    if !have(&["cc", "make"]) {
        return;
    }
    const COUNT: usize = 150;
    let (_server, client) = echo("qdisc add root tbf rate 8mbit burst 2000 limit 1000000");
    // More than the credits of a sender, so that the server has to wait for room; and few enough
    // that they fit into the buffer of a socket.
    for number in 0..COUNT {
        client.send(&[&number.to_ne_bytes()[..], &[7; 192]].concat()).expect("the server is there");
    }
    for number in 0..COUNT {
        let mut answer = [0; 300];
        let len = client.recv(&mut answer).expect("an answer comes");
        assert_eq!((len, &answer[..8]), (200, &number.to_ne_bytes()[..]));
    }
}

/// The server has one thread, and answers from the address on which it was asked, in turn and also
/// if the answers have to wait.
#[test]
fn the_server_of_the_examples_answers_from_where_it_was_asked() {
    if !have(&["cc", "make"]) {
        return;
    }
    let (server, client) = echo("qdisc add root tbf rate 8mbit burst 2000 limit 1000000");
    let port = client.peer_addr().expect("it is connected").port();
    let client = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    client.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket has a timeout");
    for number in 0..30 {
        let asked = SocketAddr::from(([127, 0, 0, 1 + number % 3 * 4], port));
        client.send_to(&[number; 1_000], asked).expect("the server is there");
    }
    for number in 0..30 {
        let mut answer = [0; 1_001];
        let (len, from) = client.recv_from(&mut answer).expect("an answer comes");
        let asked = SocketAddr::from(([127, 0, 0, 1 + number % 3 * 4], port));
        assert_eq!((len, from), (1_000, asked), "answer {number}");
        assert_eq!(answer[..len], [number; 1_000], "answer {number}");
    }
    let tasks = format!("/proc/{}/task", server.0.id());
    assert_eq!(fs::read_dir(tasks).expect("the server runs").count(), 1, "one thread");
}

/// Datagrams of all sizes come back whole. From 4,096 bytes on, and behind a qdisc that lets them
/// through at once, the link sends them without a copy (the tests of `sending` show that it does).
#[test]
fn the_server_of_the_examples_answers_large_datagrams() {
    if !have(&["cc", "make"]) {
        return;
    }
    for lines in ["qdisc add root pfifo", "qdisc add root netem delay 1ms"] {
        let (_server, client) = echo(lines);
        let mut answer = vec![0; 65_536];
        for size in [0, 1, 4_095, 4_096, 9_000, 65_507] {
            let byte = |at: usize| at.to_le_bytes()[at % 2];
            let datagram: Vec<u8> = (0..size).map(byte).collect();
            client.send(&datagram).expect("the server is there");
            let len = client.recv(&mut answer).expect("an answer comes");
            assert!(answer[..len] == datagram, "{lines}: {len} of {size} bytes came back");
        }
    }
}

/// A program that is ended when the test ends, however it ends.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The shared library has the name that its interface says, and exports nothing but the interface.
#[test]
fn the_shared_library_exports_the_interface_alone() {
    if !have(&["make", "nm"]) {
        return;
    }
    let lib = installed().lib();
    let mut nm = Command::new("nm");
    let listed = run(nm.args(["-D", "--defined-only"]).arg(lib.join("libonramp.so")));
    let mut exported: Vec<_> =
        listed.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    let header = fs::read_to_string(here("include/onramp.h")).expect("the header is text");
    let mut declared: Vec<_> = header
        .split(['\n', ' ', '*'])
        .filter_map(|word| word.split_once('(').map(|(name, _)| name))
        .filter(|name| name.starts_with("onramp_") && !name.contains(')'))
        .collect();
    exported.sort_unstable();
    declared.sort_unstable();
    declared.dedup();
    assert_eq!(exported, declared);
    assert!(lib.join("libonramp.so.1").exists(), "the name that programs load");
}
