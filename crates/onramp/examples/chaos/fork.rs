//! Forks children of the process. A child has copies of the link and of a sender, but no runner,
//! and its calls have to return at once.

use std::ffi::CStr;
use std::fs;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use onramp::dev::Null;
use onramp::{Flow, Link, Packet, Sender};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::counts::Met;
use crate::watch::{Watch, nanos, now};

/// Whether this process is a forked child. A panic in a child prints nothing, because the locks
/// needed for printing may stay locked forever there.
pub(crate) static IN_CHILD: AtomicBool = AtomicBool::new(false);

/// Exit statuses with which a child tells the parent what went wrong.
const SENT: i32 = 10;
const PANICS: i32 = 11;
const CORKED: i32 = 12;

/// Gives the child's thread the name of the step that the child is about to make. If the child
/// hangs, the parent reads this name from the kernel, and reports the step.
fn step(name: &CStr) {
    let _ = rustix::thread::set_name(name);
}

/// In the child: makes all calls of a sender. Each call must return at once, and none may accept a
/// packet. Returns an exit status if one did.
fn calls(sender: &mut Sender, flow: &Flow) -> Option<i32> {
    step(c"flush");
    sender.flush(Duration::from_secs(3_600));
    step(c"wait_room");
    sender.wait_room(flow, 10);
    step(c"poll_ready");
    let mut cx = Context::from_waker(Waker::noop());
    let _ = sender.poll_ready(&mut cx, flow, 10);
    step(c"poll_flush");
    let _ = sender.poll_flush(&mut cx);
    step(c"cork");
    sender.cork();
    let corked = sender.try_send(flow, b"from a child, corked").is_ok();
    let mut packet = Packet::with_payload(b"from a child, of the heap");
    packet.flow = flow.key();
    let heap = sender.submit(flow, packet).is_ok();
    step(c"uncork");
    let _ = sender.uncork();
    (corked || heap).then_some(CORKED)
}

/// In the child: makes all calls of a link. Each call must return at once, and none may accept a
/// packet or a port. Returns an exit status if one did.
fn controls(link: &Link) -> Option<i32> {
    step(c"stats");
    let stats = link.stats();
    step(c"views");
    drop((link.all_views(), stats));
    step(c"add_port");
    let added = link.add_port(Null::default()).is_ok();
    step(c"new sender");
    let mut sender = link.sender();
    let flow = sender.flow(None);
    let sent = sender.try_send(&flow, b"from a new sender of a child").is_ok();
    step(c"drop new sender");
    drop(sender);
    (added || sent).then_some(SENT)
}

/// Runs in the child: makes all calls of the sender and of the link, which must send nothing, and
/// then drops both.
fn child(link: &mut Option<Link>, sender: &mut Option<Sender>, flow: &Flow, closes: bool) -> i32 {
    IN_CHILD.store(true, SeqCst);
    let steps = AssertUnwindSafe(|| {
        let mut status = 0;
        step(c"try_send");
        if let Some(sender) = sender
            && sender.try_send(flow, b"from a child").is_ok()
        {
            status = SENT;
        }
        if let Some(sender) = sender {
            status = calls(sender, flow).unwrap_or(status);
        }
        if let Some(link) = &*link {
            status = controls(link).unwrap_or(status);
        }
        step(c"drop sender");
        drop(sender.take());
        if closes && let Some(link) = &*link {
            step(c"close");
            link.close(Duration::ZERO);
            step(c"closing");
            let _ =
                pin!(link.closing(Duration::ZERO)).poll(&mut Context::from_waker(Waker::noop()));
        }
        step(c"drop link");
        drop(link.take());
        status
    });
    catch_unwind(steps).unwrap_or(PANICS)
}

/// Forks a child that uses its copies of the link and of the sender, and reports to the watchdog
/// what went wrong in the child. The child has to end within `bound`.
pub(crate) fn fork(
    watch: &Watch,
    link: &mut Option<Link>,
    sender: &mut Option<Sender>,
    flow: &Flow,
    closes: bool,
    bound: Duration,
) {
    let last = link.as_ref().map_or("none", |_| if closes { "closed there" } else { "dropped" });
    let pid = match onramp::dev::run_in_child(|| child(link, sender, flow, closes)) {
        Ok(pid) => {
            Met::Forks.note();
            pid
        }
        Err(error) => {
            eprintln!("chaos: no fork: {error}");
            return;
        }
    };
    let Some(child) = Pid::from_raw(pid) else { return };
    let end = now() + nanos(bound);
    loop {
        match waitpid(Some(child), WaitOptions::NOHANG) {
            Ok(Some((_, status))) if status.exit_status() == Some(0) => return,
            Ok(Some((_, status))) => {
                let why = match status.exit_status() {
                    Some(SENT) => "the link accepted a packet or a port in the child",
                    Some(CORKED) => "a cork accepted a packet in the child",
                    Some(PANICS) => "it panicked",
                    _ => "see the exit status",
                };
                watch.failed(&format!("a forked child (link {last}) FAILED: {why}; {status:?}"));
                return;
            }
            Ok(None) if now() < end => thread::sleep(Duration::from_millis(2)),
            Ok(None) => break,
            Err(error) => {
                watch.failed(&format!("cannot wait for a forked child: {error}"));
                return;
            }
        }
    }
    let of = |what: &str| fs::read_to_string(format!("/proc/{pid}/{what}")).unwrap_or_default();
    let (name, at, call) = (of("comm"), of("wchan"), of("syscall"));
    let _ = kill_process(child, Signal::KILL);
    let _ = waitpid(Some(child), WaitOptions::empty());
    watch.failed(&format!(
        "a forked child (link {last}) HANGS in `{}`, more than {} ms; wchan {at}; syscall {}",
        name.trim(),
        bound.as_millis(),
        call.trim()
    ));
}
