//! The objects to which C holds pointers: each knows what it is, whether it still exists, and
//! whether a call uses it at present.

use std::cell::UnsafeCell;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread;

use crate::error::{Error, Result};

/// The word of an object that was freed.
const GONE: u64 = 0x676f_6e65_676f_6e65;

/// A kind of object.
pub(super) trait Named {
    /// The word by which objects of the kind are recognised.
    const WORD: u64;
    /// The name of the kind in C.
    const NAME: &'static str;
}

/// An object to which C holds a pointer.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Object<T> {
    /// `malloc` writes links of its own over the first bytes of freed memory. The word behind them
    /// usually stays, so a call with a freed object is usually refused, and does no harm.
    _links: [usize; 4],
    word: AtomicU64,
    /// Whether a call uses the object.
    busy: AtomicBool,
    /// Whether a call has panicked while it used the object, whose state is then unknown.
    dead: AtomicBool,
    value: UnsafeCell<T>,
}

/// The right of a call to use an object alone.
struct Using<'a> {
    busy: &'a AtomicBool,
    dead: &'a AtomicBool,
}

impl Drop for Using<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            // Relaxed: the store to `busy` below publishes it.
            self.dead.store(true, Relaxed);
        }
        // Release: the next call that uses the object sees all that this one did.
        self.busy.store(false, Release);
    }
}

impl<T: Named> Object<T> {
    /// Moves `value` into a new object. [`free`] frees it.
    pub(super) fn new(value: T) -> *mut Self {
        let (busy, dead) = (AtomicBool::new(false), AtomicBool::new(false));
        let word = AtomicU64::new(T::WORD);
        let value = UnsafeCell::new(value);
        Box::into_raw(Box::new(Self { _links: [0; 4], word, busy, dead, value }))
    }

    /// Takes the right to use the object alone, unless another call has it.
    fn take(&self) -> Result<Using<'_>> {
        // Acquire: this call sees all that the call before it did.
        if self.busy.swap(true, Acquire) {
            let text = format!(
                "another call is using this {}: let one thread at a time use it, and do not call \
                 it from a callback of its own",
                T::NAME
            );
            return Err(Error::new(libc::EBUSY, text));
        }
        Ok(Using { busy: &self.busy, dead: &self.dead })
    }
}

/// Returns the object at a pointer that C has passed.
///
/// # Safety
///
/// `object` is null, or points to memory that may be read and that holds an [`Object`] of any kind.
/// (If the object was freed, this is already broken; then the word most likely shows it.)
unsafe fn checked<'a, T: Named>(object: *const Object<T>) -> Result<&'a Object<T>> {
    if object.is_null() {
        return Err(Error::invalid(format!("the {} is NULL", T::NAME)));
    }
    if !object.is_aligned() {
        return Err(Error::new(libc::EBADF, format!("this is no {}", T::NAME)));
    }
    // SAFETY: as the caller promises; objects of all kinds begin alike.
    let word = unsafe { &(*object).word };
    // Relaxed: the word only tells mistakes of the caller.
    match word.load(Relaxed) {
        // SAFETY: the word says that it is an object of this kind.
        found if found == T::WORD => Ok(unsafe { &*object }),
        GONE => Err(Error::new(libc::EBADF, format!("the {} was freed", T::NAME))),
        _ => Err(Error::new(libc::EBADF, format!("this is no {}", T::NAME))),
    }
}

/// Calls `f` with the value of an object, which no other call uses meanwhile.
///
/// # Safety
///
/// As for [`checked`]; and no other thread frees the object meanwhile.
pub(super) unsafe fn with<T: Named, R>(
    object: *const Object<T>,
    f: impl FnOnce(&mut T) -> Result<R>,
) -> Result<R> {
    // SAFETY: as the caller promises.
    let object = unsafe { checked(object) }?;
    let using = object.take()?;
    // Relaxed: `take` has ordered it.
    if using.dead.load(Relaxed) {
        let text = format!(
            "an earlier call with this {} panicked, so its state is unknown: free it",
            T::NAME
        );
        return Err(Error::new(libc::EOWNERDEAD, text));
    }
    // SAFETY: `using` gives this call the right to use the value alone, until it is dropped.
    let value = unsafe { &mut *object.value.get() };
    let done = f(value);
    drop(using);
    done
}

/// Returns the value of an object of a kind that several threads may use at once. Values of such a
/// kind are never passed to [`with`].
///
/// # Safety
///
/// As for [`with`], for as long as the caller uses the value.
pub(super) unsafe fn share<'a, T: Named + Sync>(object: *const Object<T>) -> Result<&'a T> {
    // SAFETY: as the caller promises.
    let object = unsafe { checked(object) }?;
    // SAFETY: nobody borrows the value exclusively, as said above.
    Ok(unsafe { &*object.value.get() })
}

/// Frees an object. Does nothing if `object` is null.
///
/// # Safety
///
/// As for [`with`]; the caller does not use the object again.
pub(super) unsafe fn free<T: Named>(object: *mut Object<T>) -> Result<usize> {
    if object.is_null() {
        return Ok(0);
    }
    // SAFETY: as the caller promises.
    let used = unsafe { checked(object) }?;
    let using = used.take()?;
    std::mem::forget(using);
    // Relaxed: the word only tells mistakes of the caller.
    used.word.store(GONE, Relaxed);
    // SAFETY: `new` made the pointer from a box, and no call uses the object.
    drop(unsafe { Box::from_raw(object) });
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::entry;

    #[derive(Debug)]
    struct One(u32);
    impl Named for One {
        const WORD: u64 = 1;
        const NAME: &'static str = "one";
    }

    #[derive(Debug)]
    struct Other;
    impl Named for Other {
        const WORD: u64 = 2;
        const NAME: &'static str = "other";
    }

    #[test]
    fn an_object_is_used_by_one_call_at_a_time() {
        let one = Object::new(One(7));
        // SAFETY: the object exists until the end of the test.
        let read = |one| unsafe { with(one, |one: &mut One| Ok(one.0)) };
        // SAFETY: as above.
        let inner = unsafe { with(one, |_| Ok(read(one))) }.expect("nobody uses it");
        assert_eq!(inner.expect_err("the outer call uses it").errno, libc::EBUSY);
        // SAFETY: as above; `free` refuses while a call of `with` uses the object.
        let end = |one| unsafe { free(one) };
        // SAFETY: as above.
        let freed = unsafe { with(one, |_| Ok(end(one))) }.expect("nobody uses it");
        assert_eq!(freed.expect_err("the outer call uses it").errno, libc::EBUSY);
        assert_eq!(read(one).expect("nobody uses it"), 7);
        // SAFETY: the object is not used again.
        unsafe { free(one) }.expect("nobody uses it");
    }

    #[test]
    fn a_panic_ends_an_object() {
        let one = Object::new(One(7));
        // SAFETY: the object exists until the end of the test.
        let fails =
            || unsafe { with(one, |one: &mut One| -> Result<usize> { panic!("{}", one.0) }) };
        assert_eq!(entry(fails), -libc::EOWNERDEAD);
        // SAFETY: as above.
        let next = unsafe { with(one, |one: &mut One| Ok(one.0)) };
        assert_eq!(next.expect_err("its state is unknown").errno, libc::EOWNERDEAD);
        // SAFETY: the object is not used again.
        unsafe { free(one) }.expect("it can be freed");
    }

    #[test]
    fn other_objects_and_nothing_are_refused() {
        let other = Object::new(Other);
        // SAFETY: the object exists, though it is of another kind.
        let error = unsafe { with(other.cast(), |_: &mut One| Ok(())) }.expect_err("it is no one");
        assert_eq!((error.errno, &*error.text), (libc::EBADF, "this is no one"));
        // SAFETY: null is allowed.
        let error = unsafe { with(std::ptr::null(), |_: &mut One| Ok(())) }.expect_err("null");
        assert_eq!((error.errno, &*error.text), (libc::EINVAL, "the one is NULL"));
        // SAFETY: null is allowed.
        assert_eq!(unsafe { free(std::ptr::null_mut::<Object<One>>()) }.expect("nothing"), 0);
        // SAFETY: the object is not used again.
        unsafe { free(other) }.expect("nobody uses it");
    }
}
