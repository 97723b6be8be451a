//! The functions whose place the library has taken: those of the C library, or of a further
//! library that is preloaded.

use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Relaxed;

use libc::c_void;

use super::memory::allow_forks;

pub(super) static SEND: Next = Next::new(c"send");
pub(super) static SENDMMSG: Next = Next::new(c"sendmmsg");
pub(super) static SENDMSG: Next = Next::new(c"sendmsg");
pub(super) static SENDTO: Next = Next::new(c"sendto");
pub(super) static WRITE: Next = Next::new(c"write");
pub(super) static WRITEV: Next = Next::new(c"writev");

/// Looks all functions up. The lookup takes locks of the dynamic linker, and memory; a signal
/// handler of the program, which may call these functions, must not wait for them.
extern "C" fn find_all() {
    allow_forks();
    for next in [&SEND, &SENDMMSG, &SENDMSG, &SENDTO, &WRITE, &WRITEV] {
        next.find();
    }
}

/// The dynamic linker calls the functions in this section when it has loaded the library.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = find_all;

/// A function of the next library.
pub(super) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the address of the function; null if there is none. The first call looks it up: that
    /// of `find_all`, or of another library that sends while it is loaded.
    pub(super) fn find(&self) -> *mut c_void {
        // Relaxed: all threads find the same address, and the code at it was always there.
        let mut found = self.found.load(Relaxed);
        if found.is_null() {
            // SAFETY: the name is a string that ends with zero.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.found.store(found, Relaxed); // Relaxed: see above.
        }
        found
    }
}

/// Calls a function of the next library with this type and these arguments. If there is none,
/// returns -1 and sets `errno` to `ENOSYS`.
macro_rules! call_next {
    ($next:ident, fn($($kind:ty),*) -> $result:ty, $($argument:expr),*) => {{
        let found = $crate::entry::next::$next.find();
        type Function = unsafe extern "C" fn($($kind),*) -> $result;
        // SAFETY: the C library declares the function so, and an `Option` of a function is a
        // pointer that may be null.
        let function = unsafe {
            std::mem::transmute::<*mut libc::c_void, Option<Function>>(found)
        };
        match function {
            // SAFETY: the caller's arguments are those of the function.
            Some(function) => unsafe { function($($argument),*) },
            None => {
                $crate::sys::set_errno(libc::ENOSYS);
                -1
            }
        }
    }};
}

pub(super) use call_next;
