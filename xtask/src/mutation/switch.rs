//! Tells which mutant is active in this process. This file was written by `cargo xtask mutants`.
//!
//! The environment variable `MUTANT=N` activates mutant N. `MUTANT_RECORD=FILE` activates no
//! mutant, but records which places are reached: each place writes a byte to the file, at the
//! offset that is the number of the place's first mutant. Without either variable, the program runs
//! the original code.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

const UNREAD: u32 = u32::MAX;
const RECORD: u32 = u32::MAX - 1;
const NONE: u32 = u32::MAX - 2;

static STATE: AtomicU32 = AtomicU32::new(UNREAD);
static FILE: OnceLock<Option<File>> = OnceLock::new();
static SEEN: [AtomicU64; 1 << 13] = [const { AtomicU64::new(0) }; 1 << 13];

/// If one of the mutants `base` to `base + count - 1` is active, returns its position among them,
/// counted from 1. Otherwise returns 0.
#[inline]
pub fn at(base: u32, count: u32) -> u32 {
    let state = STATE.load(Relaxed);
    let place = state.wrapping_sub(base);
    if place < count {
        return place + 1;
    }
    if state >= RECORD { slow(base, count) } else { 0 }
}

#[cold]
#[inline(never)]
fn slow(base: u32, count: u32) -> u32 {
    if STATE.load(Relaxed) == UNREAD {
        let mutant = std::env::var("MUTANT").ok().and_then(|id| id.parse().ok());
        let record = std::env::var_os("MUTANT_RECORD");
        let state = mutant.unwrap_or(if record.is_some() { RECORD } else { NONE });
        if let Some(path) = record {
            FILE.get_or_init(|| OpenOptions::new().write(true).open(path).ok());
        }
        STATE.store(state, Relaxed);
        return at(base, count);
    }
    let (word, bit) = (base as usize / 64, 1 << (base % 64));
    if SEEN[word].fetch_or(bit, Relaxed) & bit == 0
        && let Some(Some(file)) = FILE.get()
    {
        let _ = file.write_all_at(b"x", u64::from(base));
    }
    0
}
