//! Arrays, texts and results in the memory of C.

use std::ffi::{CStr, c_char};
use std::slice;

use crate::error::{Error, Result};

/// Whether `n` values of `T` at `pointer` may be an array; `name` is the argument, for the error.
fn check<T>(pointer: *const T, n: usize, name: &str) -> Result<()> {
    if pointer.is_null() {
        return Err(Error::invalid(format!("{name} is NULL")));
    }
    if !pointer.is_aligned() {
        return Err(Error::invalid(format!("{name} is not aligned")));
    }
    if n > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Error::invalid(format!("{n} elements of {name} cannot be: there is no room")));
    }
    Ok(())
}

/// Returns the array of `n` values at `pointer`, which may be null if `n` is 0.
///
/// # Safety
///
/// The array may be read, and nobody changes it meanwhile.
pub(super) unsafe fn array<'a, T>(pointer: *const T, n: usize, name: &str) -> Result<&'a [T]> {
    if n == 0 {
        return Ok(&[]);
    }
    check(pointer, n, name)?;
    // SAFETY: as the caller promises; the pointer is not null and is aligned.
    Ok(unsafe { slice::from_raw_parts(pointer, n) })
}

/// Returns the value at `pointer`.
///
/// # Safety
///
/// As for [`array()`].
pub(super) unsafe fn value<'a, T>(pointer: *const T, name: &str) -> Result<&'a T> {
    check(pointer, 1, name)?;
    // SAFETY: as the caller promises; the pointer is not null and is aligned.
    Ok(unsafe { &*pointer })
}

/// An array of C to which results are written, one after another.
#[derive(Debug)]
pub(super) struct Places<T> {
    pointer: *mut T,
    /// Number of places.
    pub(super) most: usize,
    /// Number of places that were written.
    pub(super) count: usize,
}

impl<T> Places<T> {
    /// Takes the array of `most` places at `pointer`, which may be null if `most` is 0. What the
    /// places contain does not matter.
    ///
    /// # Safety
    ///
    /// The places may be written, and nobody else uses them until the result is dropped.
    pub(super) unsafe fn new(pointer: *mut T, most: usize, name: &str) -> Result<Self> {
        if most > 0 {
            check(pointer, most, name)?;
        }
        Ok(Self { pointer, most, count: 0 })
    }

    /// Writes a value to the next place. Does nothing if there is none.
    pub(super) fn put(&mut self, value: T) {
        if self.count < self.most {
            // SAFETY: the place lies in the array.
            let place = unsafe { self.pointer.add(self.count) };
            // SAFETY: as the caller of `new` has promised.
            unsafe { place.write(value) };
            self.count += 1;
        }
    }
}

/// Writes `value` to `place`, unless `place` is null: the caller does not want it.
///
/// # Safety
///
/// `place` is null, or may be written.
pub(super) unsafe fn put<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: as the caller promises. C may have a place that is not aligned in a packed
        // structure.
        unsafe { place.write_unaligned(value) };
    }
}

/// Checks that a place for a result is there.
pub(super) fn wanted<T>(place: *mut T, name: &str) -> Result<()> {
    if place.is_null() { Err(Error::invalid(format!("{name} is NULL"))) } else { Ok(()) }
}

/// Returns the text at `pointer`; `None` if it is null.
///
/// # Safety
///
/// `pointer` is null, or points to bytes of which one is 0, and nobody changes them meanwhile.
pub(super) unsafe fn optional_text<'a>(
    pointer: *const c_char,
    name: &str,
) -> Result<Option<&'a str>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    let text = unsafe { CStr::from_ptr(pointer) };
    let text = text.to_str();
    text.map(Some).map_err(|_| Error::invalid(format!("{name} is not UTF-8")))
}

/// Returns the text at `pointer`.
///
/// # Safety
///
/// As for [`optional_text`].
pub(super) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str> {
    // SAFETY: as the caller promises.
    let text = unsafe { optional_text(pointer, name) }?;
    text.ok_or_else(|| Error::invalid(format!("{name} is NULL")))
}

/// The bytes of C to which a text is written.
#[derive(Debug)]
pub(super) struct TextPlace(Places<u8>);

impl TextPlace {
    /// Takes the `n` bytes at `place`, which may be null if `n` is 0.
    ///
    /// # Safety
    ///
    /// The bytes may be written, and nobody else uses them until the result is dropped.
    pub(super) unsafe fn new(place: *mut c_char, n: usize) -> Result<Self> {
        // SAFETY: as the caller promises.
        unsafe { Places::new(place.cast(), n, "text") }.map(Self)
    }

    /// Writes as much of `text` as fits, and a zero byte, as `snprintf` does. Returns the length of
    /// the whole text.
    pub(super) fn print(mut self, text: &str) -> usize {
        let fits = text.floor_char_boundary(self.0.most.saturating_sub(1));
        text.as_bytes()[..fits].iter().for_each(|byte| self.0.put(*byte));
        self.0.put(0);
        text.len()
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn a_text_is_cut_where_it_does_not_fit() {
        for (n, right) in [(0, "xxxxxxx"), (1, "\0xxxxxx"), (3, "a\0xxxxx"), (4, "aä\0xxx")] {
            let mut bytes = *b"xxxxxxx";
            // SAFETY: the bytes are there.
            let place = unsafe { TextPlace::new(bytes.as_mut_ptr().cast(), n) };
            let len = place.expect("it is there").print("aäb");
            assert_eq!((len, &bytes), (4, right.as_bytes().as_array().unwrap()));
        }
        // SAFETY: nothing is written.
        let nowhere = unsafe { TextPlace::new(ptr::null_mut(), 0) };
        assert_eq!(nowhere.expect("it only counts").print("abc"), 3);
        // SAFETY: null is refused.
        unsafe { TextPlace::new(ptr::null_mut(), 1) }.expect_err("there is no place");
    }

    #[test]
    fn arrays_that_cannot_be_are_refused() {
        let word = 7_u64;
        let odd = ptr::from_ref(&word).cast::<u8>().wrapping_add(1).cast::<u64>();
        // SAFETY: nothing is read.
        assert!(unsafe { array::<u64>(ptr::null(), 0, "a") }.expect("an empty array").is_empty());
        for (pointer, n, right) in [
            (ptr::null(), 1, "a is NULL"),
            (odd, 1, "a is not aligned"),
            (&raw const word, usize::MAX, "18446744073709551615 elements of a cannot be"),
        ] {
            // SAFETY: what cannot be an array is not read.
            let error = unsafe { array(pointer, n, "a") }.expect_err(right);
            assert!(error.text.starts_with(right), "{}", error.text);
        }
        // SAFETY: the text is there.
        let error = unsafe { text(c"\xff".as_ptr(), "a") }.expect_err("no text");
        assert_eq!(error.text, "a is not UTF-8");
    }
}
