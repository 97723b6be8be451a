//! Limits of the machine, checked before the first thread starts.

use std::fs;

use anyhow::{Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Number of memory mappings that one thread of this program takes: a stack, a signal stack, and a
/// guard for each.
const MAPS_PER_THREAD: u64 = 4;
/// Number of memory mappings that the rest of the program takes at most, with a margin.
const MAPS_ELSEWHERE: u64 = 2_000;
/// Address space that one thread of this program takes, in bytes: its stack, its histograms, and
/// its share of the allocator's space.
const SPACE_PER_THREAD: u64 = 512 << 10;
/// Address space that the rest of the program takes, in bytes; most of it is for the allocator's
/// arenas.
const SPACE_ELSEWHERE: u64 = 1 << 30;
/// Number of file descriptors that the rest of the program may open.
const FILES_ELSEWHERE: u64 = 64;

/// Checks that `threads` threads can start and that `files` descriptors can be open. Raises the
/// soft limit of descriptors if the hard limit allows it.
pub(crate) fn check(threads: usize, files: usize) -> Result<()> {
    check_files(files as u64 + FILES_ELSEWHERE)?;
    check_threads(threads as u64)
}

/// Raises the soft limit of descriptors to 65,536, or to the hard limit if that is less.
pub(crate) fn open_many_files() {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map_or(65_536, |hard| hard.min(65_536));
    if limit.current.is_some_and(|soft| soft < most) {
        // If it fails, fewer files can be open, which whoever opens them will say.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit });
    }
}

fn check_files(needed: u64) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|soft| soft >= needed) {
        return Ok(());
    }
    if limit.maximum.is_some_and(|hard| hard < needed) {
        let hard = limit.maximum.unwrap_or(u64::MAX);
        bail!(
            "{needed} open files are needed, and the hard limit is {hard}: use fewer threads or \
             flows, or raise it (`ulimit -Hn`, or LimitNOFILE= of a service)"
        );
    }
    let raised = Rlimit { current: Some(needed), maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        bail!(
            "cannot raise the limit of open files to {needed}: {error}; try `ulimit -n {needed}`"
        );
    }
    Ok(())
}

fn check_threads(threads: u64) -> Result<()> {
    let privileged = rustix::process::geteuid().is_root();
    if let Some(limit) = getrlimit(Resource::Nproc).current
        && limit < threads
        && !privileged
    {
        bail!(
            "{threads} threads exceed this user's limit of {limit} processes: lower --threads, or \
             raise `ulimit -u`"
        );
    }
    if let Some(limit) = sysctl("kernel/threads-max")
        && limit < threads
    {
        bail!(
            "{threads} threads exceed kernel.threads-max = {limit}: lower --threads, or raise it"
        );
    }
    let space = threads * SPACE_PER_THREAD + SPACE_ELSEWHERE;
    if let Some(limit) = getrlimit(Resource::As).current
        && limit < space
    {
        bail!(
            "{threads} threads may need {} MiB of address space, and the limit is {} MiB: lower \
             --threads, or raise `ulimit -v`",
            space >> 20,
            limit >> 20
        );
    }
    let maps = threads * MAPS_PER_THREAD + MAPS_ELSEWHERE;
    if let Some(limit) = sysctl("vm/max_map_count")
        && limit < maps
    {
        bail!(
            "{threads} threads need {maps} memory mappings, and vm.max_map_count = {limit}: lower \
             --threads, or raise it"
        );
    }
    Ok(())
}

/// Checks that `bytes` bytes of datagrams, which are prepared before sending, leave half of the
/// memory free.
pub(crate) fn check_memory(bytes: u64) -> Result<()> {
    let memory = crate::machine::memory_bytes();
    if memory > 0 && bytes > memory / 2 {
        bail!(
            "{} MiB of datagrams would have to be prepared, and the machine has {} MiB of memory: \
             use fewer threads or flows, or a smaller --size or --batch",
            bytes >> 20,
            memory >> 20
        );
    }
    Ok(())
}

fn sysctl(name: &str) -> Option<u64> {
    fs::read_to_string(format!("/proc/sys/{name}")).ok()?.trim().parse().ok()
}
