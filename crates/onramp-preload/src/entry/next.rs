//! The functions whose place the library has taken: those of the C library, or of a further
//! library that is preloaded.

use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Relaxed;

use libc::c_void;

/// A function of the next library, looked up at its first call.
pub(super) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(super) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the address of the function; null if there is none.
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

/// Calls the next library's function of this name, type and arguments. If there is none, returns -1
/// and sets `errno` to `ENOSYS`.
macro_rules! call_next {
    ($name:literal, fn($($kind:ty),*) -> $result:ty, $($argument:expr),*) => {{
        static NEXT: $crate::entry::next::Next = $crate::entry::next::Next::new($name);
        let found = NEXT.find();
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
