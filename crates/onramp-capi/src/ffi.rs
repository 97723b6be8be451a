//! The functions of the interface. All `unsafe` code of the crate is here: the functions turn
//! pointers of C into slices, texts and objects, and call the safe code of the other modules.
//!
//! Every function ends a panic, checks pointers for NULL, and returns a negative errno if it fails;
//! `onramp_error` has the text. No function may be called with a pointer to memory that the caller
//! does not own, or does not own any more: each `# Safety` section says what is meant.

pub mod device;
pub mod frame;
pub mod link;
mod memory;
mod object;
pub mod sender;
pub mod tree;

use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::OnceLock;

use onramp::DropReason;

use crate::abi::ONRAMP_ABI;
use crate::{error, shaper};

/// Returns the version of the interface of the library that was loaded: compare it with
/// `ONRAMP_ABI`.
#[unsafe(no_mangle)]
pub extern "C" fn onramp_abi() -> u32 {
    ONRAMP_ABI
}

/// Returns the version of the library as a text, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn onramp_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Returns why the last failed call of this thread failed: a text that names what was wrong. It
/// stays until the next failed call of this thread, and is empty before the first.
#[unsafe(no_mangle)]
pub extern "C" fn onramp_error() -> *const c_char {
    error::text()
}

/// Returns the name of a drop reason (`ONRAMP_DROP_...`), such as "overlimit"; NULL if no reason
/// has this number.
#[unsafe(no_mangle)]
pub extern "C" fn onramp_drop_name(reason: u8) -> *const c_char {
    static NAMES: OnceLock<Vec<CString>> = OnceLock::new();
    text_of(&NAMES, reason, DropReason::name)
}

/// Returns a sentence that says when a packet is dropped for this reason (`ONRAMP_DROP_...`); NULL
/// if no reason has this number.
#[unsafe(no_mangle)]
pub extern "C" fn onramp_drop_about(reason: u8) -> *const c_char {
    static SENTENCES: OnceLock<Vec<CString>> = OnceLock::new();
    text_of(&SENTENCES, reason, DropReason::about)
}

/// Returns the text that `of` has for the reason with this number. `texts` keeps the texts of all
/// reasons, each with the zero byte that C needs.
fn text_of(
    texts: &'static OnceLock<Vec<CString>>,
    reason: u8,
    of: fn(DropReason) -> &'static str,
) -> *const c_char {
    let make = || DropReason::ALL.iter().map(|reason| CString::new(of(*reason)));
    let texts = texts.get_or_init(|| make().map(Result::unwrap_or_default).collect());
    let text = shaper::reason(reason).and_then(|reason| texts.get(reason as usize));
    text.map_or(ptr::null(), |text| text.as_ptr())
}
