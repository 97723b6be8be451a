//! `onramp top` on a terminal. It runs in its own process: this test program, started with the name
//! of one of its tests.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use onramp_daemon::feed::{Feed, FeedError};
use onramp_daemon::http::Source as _;
use onramp_daemon::snapshot::{RateMeter, Snapshot, Sort, Stats};
use onramp_daemon::top;
use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

use super::made_up::MadeUp;
use super::tool::Running;

const ROLE: &str = "ONRAMP_TEST_TERMINAL";
/// Names a file that ends the table when it is there.
const ENDS: &str = "ONRAMP_TEST_ENDS";

/// A source of statistics (a `Feed`) that first returns nothing for a while, then returns one set
/// of statistics, and then nothing more.
struct Late {
    polls: u32,
    look: Option<Stats>,
}

impl Feed for Late {
    fn poll(&mut self) -> Result<Option<Stats>, FeedError> {
        self.polls += 1;
        Ok(self.look.take_if(|_| self.polls > 5))
    }

    fn wait(&mut self) -> Result<Stats, FeedError> {
        Err(FeedError::Gone)
    }
}

/// The code that the second process runs, not a test of its own: the tests of this file start this
/// test program again and let it run only this function. Unless the environment variable in `ROLE`
/// is set, the function does nothing.
#[test]
fn the_process() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let devices = MadeUp::default();
    let mut meter = RateMeter::default();
    meter.update(&Snapshot::of(devices.devices(), 0, 0));
    let look = Some(meter.update(&Snapshot::of(devices.devices(), 1_000_000_000, 0)));
    let ends = || std::env::var_os(ENDS).is_some_and(|file| Path::new(&file).exists());
    top::run(&mut Late { polls: 0, look }, Sort::Tree, "", ends).expect("there is a terminal");
}

/// Starts the process on a terminal, and returns it with our end, and the modes that the terminal
/// had before.
fn start(ends: &Path) -> (Running, OwnedFd, Termios) {
    let (ours, theirs) = terminal();
    let end = || Stdio::from(theirs.try_clone().expect("a copy"));
    let mut command = Command::new(std::env::current_exe().expect("it runs"));
    command.args(["--exact", "terminal::the_process", "--nocapture"]);
    command.env(ROLE, "top").env(ENDS, ends).stdin(end()).stdout(end()).stderr(end());
    let before = tcgetattr(&ours).expect("a terminal");
    (Running(command.spawn().expect("it starts")), ours, before)
}

/// Opens a pseudo-terminal of 100 by 30 cells. Returns the end that the test holds and the end that
/// the process gets.
fn terminal() -> (OwnedFd, OwnedFd) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&ours).expect("it is ours");
    unlockpt(&ours).expect("it is free");
    let name = ptsname(&ours, Vec::new()).expect("a name");
    let theirs = open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("it opens");
    let size = Winsize { ws_row: 30, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&theirs, size).expect("a size");
    (ours, theirs)
}

/// The text that the process has written to the terminal, without escape sequences and blanks.
struct Screen {
    written: Receiver<Vec<u8>>,
    bytes: Vec<u8>,
    /// Number of bytes of the text that the test has already waited for.
    seen: usize,
}

impl Screen {
    fn of(mut terminal: File) -> Self {
        let (tell, written) = channel();
        let reader = std::thread::Builder::new();
        let read = move || {
            let mut some = [0; 4096];
            // Reading fails when the process has ended.
            while let Ok(count @ 1..) = terminal.read(&mut some) {
                if tell.send(some[..count].to_vec()).is_err() {
                    return;
                }
            }
        };
        reader.spawn(read).expect("a thread");
        Self { written, bytes: Vec::new(), seen: 0 }
    }

    /// Waits until the process has written `words`, after the words of the previous call.
    fn until(&mut self, words: &str) {
        loop {
            let text = plain(&String::from_utf8_lossy(&self.bytes));
            if let Some(at) = text[self.seen..].find(words) {
                self.seen += at + words.len();
                return;
            }
            let more = self.written.recv_timeout(Duration::from_secs(120));
            self.bytes.extend(more.unwrap_or_else(|_| panic!("no {words:?} in {text:?}")));
        }
    }
}

/// Returns the text without escape sequences and blanks.
fn plain(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // An escape sequence consists of the escape character, `[`, numbers and a letter.
        let end = part.find(|c: char| c.is_ascii_alphabetic()).map_or(part.len(), |at| at + 1);
        plain.push_str(&part[end..]);
    }
    plain.retain(|c| !c.is_whitespace());
    plain
}

#[test]
fn keys_and_looks_change_the_screen() {
    let (mut process, ours, _) = start(Path::new("/nosuch"));
    let mut keys = File::from(ours.try_clone().expect("a copy"));
    let mut screen = Screen::of(File::from(ours));
    let mut press = |key: &str| keys.write_all(key.as_bytes()).expect("it reads");
    // Before the first statistics arrive, the screen says that it waits for the daemon. The
    // statistics then appear without any key press.
    screen.until("Waitingforthedaemon.");
    screen.until("▾uplinkudp");
    press("p");
    screen.until("packets");
    press("?");
    screen.until("pressanykeytoreturn");
    // Any key closes the help, even `q`. Releasing a key does not count as pressing it.
    press("q");
    screen.until("Mbit");
    press("\u{1b}[113;1:3u");
    press("/");
    press("spa");
    screen.until("spa");
    press("\r");
    screen.until("filter:");
    press("q");
    assert!(process.0.wait().expect("it ends").success());
}

/// The program that shows the table can end it. The terminal is then as it was before.
#[test]
fn the_program_ends_the_table() {
    let folder = tempfile::tempdir().expect("a folder");
    let ends = folder.path().join("ends");
    let (mut process, ours, before) = start(&ends);
    let mut screen = Screen::of(File::from(ours.try_clone().expect("a copy")));
    screen.until("▾uplinkudp");
    assert_ne!(tcgetattr(&ours).expect("a terminal").local_modes, before.local_modes);
    File::create(&ends).expect("a file");
    assert!(process.0.wait().expect("it ends").success());
    assert_eq!(tcgetattr(&ours).expect("a terminal").local_modes, before.local_modes);
}
