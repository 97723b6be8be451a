//! Programs that do what few programs do: nothing hangs, and nothing ends them that would not end
//! them without the library.

use super::refused::compile;
use super::{LONG, assert_conserved, exec, has, received, receiver, told};
use crate::stderr;

/// What all programs begin with: an address, from the last word.
const BEGIN: &str = "
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
static struct sockaddr_in to;
static int fresh(int count, char **words) {
    to.sin_family = AF_INET;
    to.sin_port = htons(atoi(words[count - 1]));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return socket(AF_INET, SOCK_DGRAM, 0);
}
static int give(int s) { return sendto(s, \"word\", 4, 0, (void *)&to, sizeof to); }
";

/// Runs a program in C for at most [`LONG`], without the library and with it, and returns what it
/// printed each time, and the number of datagrams that came. `None` if there is no compiler.
pub(super) fn both(name: &str, text: &str, qdisc: &str) -> Option<[(String, usize); 2]> {
    let folder = tempfile::tempdir().expect("a folder");
    let text = format!("{BEGIN}{text}");
    let program = compile(folder.path(), name, &text, &["-pthread"])?;
    let seconds = LONG.as_secs().to_string();
    let run = |shaped: bool| {
        let (socket, port) = receiver();
        // KILL, because a program that hangs may block all other signals.
        let words = ["timeout", "-s", "KILL", &seconds, &program, &port];
        let mut command = if shaped {
            exec(&["--qdisc", qdisc, "--drain", "60"], &words)
        } else {
            let mut command = std::process::Command::new(words[0]);
            command.args(&words[1..]);
            command
        };
        let output = command.output().expect("it runs");
        assert_eq!(output.status.code(), Some(0), "{name}: {}", stderr(&output));
        let printed = String::from_utf8(output.stdout).expect("UTF-8");
        (printed, received(&socket).len())
    };
    Some([run(false), run(true)])
}

/// A handler that interrupts a send, and sends several datagrams itself.
#[test]
fn a_signal_handler_sends() {
    const PROGRAM: &str = "
static int s;
static void handler(int number) { (void)number; for (int i = 0; i < 3; i++) give(s); }
int main(int count, char **words) {
    s = fresh(count, words);
    signal(SIGALRM, handler);
    struct itimerval often = {{0, 200}, {0, 200}};
    setitimer(ITIMER_REAL, &often, 0);
    for (int i = 0; i < 2000; i++) give(s);
    /* `printf` allocates memory, where a handler must not send: see docs/exec.md. */
    struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, 0);
    printf(\"ended\\n\");
}
";
    let Some([plain, shaped]) = both("handler", PROGRAM, "pfifo limit 100") else { return };
    assert_eq!((plain.0.as_str(), shaped.0.as_str()), ("ended\n", "ended\n"));
}

/// A handler that interrupts the program's own memory management sends through the qdisc, which
/// needs memory, too. The thread that sends what waits is there before.
#[test]
fn a_signal_handler_sends_within_malloc() {
    const PROGRAM: &str = "
static int s;
static volatile int sent;
static void handler(int number) { (void)number; give(s); sent++; }
int main(int count, char **words) {
    s = fresh(count, words);
    for (int i = 0; i < 200; i++) give(s);
    signal(SIGALRM, handler);
    struct itimerval often = {{0, 100}, {0, 100}};
    setitimer(ITIMER_REAL, &often, 0);
    /* The C library takes its lock for blocks of this size. */
    void *blocks[64] = {0};
    for (unsigned i = 0; sent < 3000; i++) {
        free(blocks[i % 64]);
        blocks[i % 64] = malloc(2000 + i * 37 % 9000);
    }
    struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, 0);
    printf(\"ended\\n\");
}
";
    let qdisc = "tbf rate 4mbit burst 2000 limit 1mb";
    let Some([plain, shaped]) = both("malloc", PROGRAM, qdisc) else { return };
    assert_eq!((plain.0.as_str(), shaped.0.as_str()), ("ended\n", "ended\n"));
}

/// A handler that forks while it interrupts a send.
#[test]
fn a_signal_handler_forks() {
    const PROGRAM: &str = "
static volatile int forks;
static void handler(int number) {
    (void)number;
    pid_t child = fork();
    if (!child) _exit(0);
    waitpid(child, 0, 0);
    forks++;
}
int main(int count, char **words) {
    int s = fresh(count, words);
    signal(SIGALRM, handler);
    struct itimerval often = {{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &often, 0);
    while (forks < 1000) give(s);
    struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, 0);
    printf(\"ended\\n\");
}
";
    let Some([plain, shaped]) = both("forks", PROGRAM, "pfifo limit 100") else { return };
    assert_eq!((plain.0.as_str(), shaped.0.as_str()), ("ended\n", "ended\n"));
}

/// An address may end at the end of the program's memory and say that it is longer: `sendmsg` reads
/// as much as an address can have, and `sendto` refuses it.
#[test]
fn an_address_says_that_it_is_longer() {
    const PROGRAM: &str = "
int main(int count, char **words) {
    int s = fresh(count, words), page = getpagesize();
    char *memory = mmap(0, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(memory + page, page, PROT_NONE);
    struct sockaddr *name = (void *)(memory + page - 128);
    memcpy(name, &to, sizeof to);
    struct iovec part = {\"word\", 4};
    for (socklen_t len = 128; len < 2000; len += 600) {
        struct msghdr header = {name, len, &part, 1, 0, 0, 0};
        int sent = sendmsg(s, &header, 0);
        printf(\"sendmsg %u: %d \", len, sent);
        errno = 0;
        sent = sendto(s, \"word\", 4, 0, name, len);
        printf(\"sendto: %d %d\\n\", sent, errno);
    }
}
";
    let Some([plain, shaped]) = both("longer", PROGRAM, "pfifo limit 100") else { return };
    assert!(plain.0.contains("sendmsg 728: 4 sendto: -1 22"), "{}", plain.0);
    assert_eq!((plain.0, plain.1), (shaped.0, shaped.1));
}

/// What programs leave in the padding of an address makes no flow: datagrams to one destination
/// leave in order.
#[test]
fn an_address_has_rubbish_in_its_padding() {
    const PROGRAM: &str = "
int main(int count, char **words) {
    int s = fresh(count, words);
    for (char i = 0; i < 12; i++) {
        to.sin_zero[3] = i < 6;
        sendto(s, &i, 1, 0, (void *)&to, sizeof to);
    }
}
";
    let folder = tempfile::tempdir().expect("a folder");
    let text = format!("{BEGIN}{PROGRAM}");
    let Some(program) = compile(folder.path(), "padding", &text, &[]) else { return };
    let (socket, port) = receiver();
    // Two flows would take turns.
    let options = ["--qdisc", "fq maxrate 400kbit", "--drain", "60"];
    let output = exec(&options, &[&program, &port]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(received(&socket).concat(), Vec::from_iter(0..12));
}

/// The functions of the C library are looked up when the library is loaded, and not in the midst of
/// a signal handler: also in a program that never sends. The dynamic linker tells of each lookup.
#[test]
fn functions_are_looked_up_at_the_start() {
    if cfg!(not(target_env = "gnu")) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = exec(&["--quiet"], &["true"]);
    command.env("LD_DEBUG", "bindings").env("LD_DEBUG_OUTPUT", folder.path().join("told"));
    let output = command.output().expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let files = std::fs::read_dir(folder.path()).expect("it is there");
    let told = files.map(|file| std::fs::read_to_string(file.expect("a file").path()));
    let told: String = told.collect::<Result<_, _>>().expect("text");
    for name in ["send", "sendmmsg", "sendmsg", "sendto", "write", "writev"] {
        let (end, from) = (format!("symbol `{name}'"), "libonramp_preload.so [0] to ");
        let found = told
            .lines()
            .any(|line| line.contains(from) && line.contains("/libc.so") && line.contains(&end));
        assert!(found, "{name}");
    }
}

/// `main` ends by `pthread_exit`; the process ends with its last thread, after what waits.
#[test]
fn a_main_thread_leaves() {
    const PROGRAM: &str = "
int main(int count, char **words) {
    int s = fresh(count, words);
    for (int i = 0; i < 5; i++) give(s);
    pthread_exit(0);
}
";
    let Some([plain, shaped]) = both("leaves", PROGRAM, "netem delay 20ms") else { return };
    assert_eq!((plain.1, shaped.1), (5, 5));
}

/// A child that the C library does not tell of (`_Fork`, `clone`) sends around the qdisc.
#[test]
fn a_hidden_child_sends() {
    const PROGRAM: &str = "
int main(int count, char **words) {
    int s = fresh(count, words);
    give(s);
    pid_t child = _Fork();
    if (child == 0) {
        for (int i = 0; i < 5; i++) give(s);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    printf(\"%d\\n\", status);
}
";
    let Some([plain, shaped]) = both("hidden", PROGRAM, "netem delay 20ms") else { return };
    assert_eq!((plain, shaped), (("0\n".to_owned(), 6), ("0\n".to_owned(), 6)));
}

/// Arguments that the kernel refuses, or from which it makes nothing.
#[test]
fn odd_arguments_give_what_the_kernel_gives() {
    const PROGRAM: &str = "
static void tell(const char *what, long done) {
    printf(\"%s %ld %s\\n\", what, done, done < 0 ? strerrorname_np(errno) : \"\");
}
int main(int count, char **words) {
    int s = fresh(count, words), six = socket(AF_INET6, SOCK_DGRAM, 0);
    tell(\"nowhere\", sendto(s, 0, 10, 0, (void *)&to, sizeof to));
    struct sockaddr_in6 far = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    far.sin6_port = to.sin_port;
    void *page = mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    tell(\"huge\", sendto(six, page, 500000000, 0, (void *)&far, sizeof far));
    connect(s, (void *)&to, sizeof to);
    struct iovec empty[2000] = {{\"\", 0}};
    tell(\"no part\", writev(s, empty, 0));
    tell(\"empty parts\", writev(s, empty, 2));
    tell(\"too many parts\", writev(s, empty, 2000));
    tell(\"a word\", write(s, \"word\", 4));
}
";
    let Some([plain, shaped]) = both("odd", PROGRAM, "pfifo limit 100") else { return };
    assert_eq!(shaped, plain);
    assert!(plain.0.contains("nowhere -1 EFAULT\nhuge -1 EMSGSIZE\n"), "{}", plain.0);
}

/// A signal does not interrupt a call that does not wait.
#[test]
fn a_nonblocking_call_is_not_interrupted() {
    const PROGRAM: &str = "
static void handler(int number) { (void)number; }
int main(int count, char **words) {
    int s = fresh(count, words), size = 2000, odd = 0;
    setsockopt(s, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGALRM, &action, 0);
    struct itimerval often = {{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &often, 0);
    for (int i = 0; i < 500; i++)
        if (sendto(s, \"word\", 4, MSG_DONTWAIT, (void *)&to, sizeof to) < 0)
            odd += errno != EAGAIN;
    printf(\"%d\\n\", odd);
}
";
    let qdisc = "tbf rate 1mbit burst 1100 limit 10000000";
    let Some([plain, shaped]) = both("nonblocking", PROGRAM, qdisc) else { return };
    assert_eq!((plain.0.as_str(), shaped.0.as_str()), ("0\n", "0\n"));
}

/// Where the library cannot count, it says so if anybody reads that, and the program goes on
/// without a qdisc.
#[test]
fn a_library_without_room_ends_no_program() {
    const SCRIPT: &str = "
import resource, signal, socket, subprocess, sys
to = ('127.0.0.1', int(sys.argv[1]))
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
socket.socket(type=socket.SOCK_DGRAM).sendto(b'word', to)
";
    if !has("python3") {
        return;
    }
    for redirection in ["2>/dev/full", "2>&1 | :", "2>&-", ""] {
        let (socket, port) = receiver();
        // The pipe's reader has gone before the program sends, or goes meanwhile.
        let line =
            format!("exec 3>&1; (sleep 0.2; python3 -c \"$0\" \"$1\"; echo $? >&3) {redirection}");
        let (document, output) =
            told(&["--qdisc", "netem delay 1ms"], &["sh", "-c", &line, SCRIPT, &port]);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n", "{redirection}");
        assert_eq!(received(&socket), [b"word"], "{redirection}");
        assert_conserved(&document);
        let why = "the limit on the size of files (ulimit -f) is 0 KiB, and the file needs";
        let said = stderr(&output);
        let told = said.contains("pass no qdisc") && said.contains(why) && said.contains("2 MiB");
        assert_eq!(told, redirection.is_empty(), "{}", stderr(&output));
    }
}

/// A program that may have few descriptors gets them with the numbers that it would have without
/// the library, although datagrams of all its sockets wait. The library says once that it can keep
/// some of the sockets open only.
#[test]
fn a_low_limit_leaves_descriptors_to_the_program() {
    const SCRIPT: &str = "
import resource, socket, sys
to = ('127.0.0.1', int(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
all = []
for n in range(40):
    s = socket.socket(type=socket.SOCK_DGRAM)
    assert s.sendto(b'word', to) == 4
    all.append(s)
print([s.fileno() for s in all])
";
    if !has("python3") {
        return;
    }
    let (_socket, port) = receiver();
    let plain = std::process::Command::new("python3").args(["-c", SCRIPT, &port]).output();
    let plain = String::from_utf8(plain.expect("it runs").stdout).expect("text");
    // The plug lets no datagram leave.
    let options = ["--qdisc", "plug", "--drain", "0"];
    let (document, output) = told(&options, &["python3", "-c", SCRIPT, &port]);
    assert!(plain.ends_with("]\n"), "{plain}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), plain, "{}", stderr(&output));
    assert_eq!((&document["sent"], &document["queued"]), (&0.into(), &40.into()), "{document}");
    let said = stderr(&output);
    let lines = said.lines().filter(|line| line.contains("may have 64 descriptors (ulimit -n)"));
    assert_eq!(lines.count(), 1, "{said}");
}

/// A process that has one descriptor left has a name in the report.
#[test]
fn a_process_with_few_descriptors_has_its_name() {
    const SCRIPT: &str = "
import resource, socket, sys
s = socket.socket(type=socket.SOCK_DGRAM)
resource.setrlimit(resource.RLIMIT_NOFILE, (s.fileno() + 2, s.fileno() + 2))
assert s.sendto(b'word', ('127.0.0.1', int(sys.argv[1]))) == 4
";
    if !has("python3") {
        return;
    }
    let (_socket, port) = receiver();
    let (document, output) = told(&[], &["python3", "-c", SCRIPT, &port]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let process = &document["processes"][0];
    assert_eq!(process["sent"], 1, "{document}");
    assert!(process["name"].as_str().is_some_and(|name| name.starts_with("python")), "{document}");
}

/// The kernel cuts a message into at most 64 or 128 datagrams (`UDP_SEGMENT`), and refuses one that
/// asks for more. A program sees the same with the library as without it.
#[test]
fn a_message_of_too_many_segments_is_refused_as_by_the_kernel() {
    const SCRIPT: &str = "
import errno, socket, struct
to = socket.socket(type=socket.SOCK_DGRAM)
to.bind(('127.0.0.1', 0))
def send(size, length, by_option):
    s = socket.socket(type=socket.SOCK_DGRAM)
    if by_option:
        s.setsockopt(17, 103, size)
    wish = [] if by_option else [(17, 103, struct.pack('H', size))]
    try:
        return s.sendmsg([bytes(length)], wish, 0, to.getsockname())
    except OSError as error:
        return errno.errorcode[error.errno]
for count in 1, 2, 64, 65, 128, 129, 500:
    # The last datagram is shorter than the others.
    print(count, [send(100, 100 * count - 50, by_option) for by_option in (False, True)])
print(send(2000, 100, False), send(2000, 100, True), send(2000, 65507, False))
";
    if !has("python3") {
        return;
    }
    let plain = std::process::Command::new("python3").args(["-c", SCRIPT]).output();
    let plain = String::from_utf8(plain.expect("it runs").stdout).expect("text");
    assert!(plain.contains("64 [6350, 6350]\n") && plain.contains("EINVAL"), "{plain}");
    let (document, output) = told(&["--qdisc", "pfifo"], &["python3", "-c", SCRIPT]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), plain, "{}", stderr(&output));
    assert_conserved(&document);
}

/// Datagrams of more sockets wait than the library may have duplicates. All leave, from the
/// program's own descriptors, and the program still gets descriptors. The receiver's buffer has
/// room for all, in case that they come at once.
#[test]
fn more_sockets_than_duplicates() {
    const SCRIPT: &str = "
import resource, socket, sys, time
to = ('127.0.0.1', int(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
all = [socket.socket(type=socket.SOCK_DGRAM) for _ in range(120)]
for s in all:
    assert s.sendto(b'word', to) == 4
open('/dev/null')
while len(open(sys.argv[2]).read()) < 120:
    time.sleep(0.02)
";
    if !has("python3") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let seen = folder.path().join("seen").display().to_string();
    std::fs::write(&seen, "").expect("room");
    let (socket, port) = receiver();
    let program = ["python3", "-c", SCRIPT, &port, &seen];
    let (document, output) = std::thread::scope(|scope| {
        // The program ends only when all have arrived, so each left while its socket was open.
        scope.spawn(|| {
            socket.set_read_timeout(Some(LONG)).expect("it is open");
            for count in 1..=120 {
                socket.recv(&mut [0; 100]).expect("it comes");
                std::fs::write(&seen, "x".repeat(count)).expect("room");
            }
        });
        told(&["--qdisc", "netem delay 500ms 400ms"], &program)
    });
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!((&document["sent"], &document["drops"]), (&120.into(), &serde_json::json!({})));
    assert_conserved(&document);
}
