//! The atomic types of std, whose accesses are charged.

use std::fmt;
use std::sync::atomic::{self as std_atomic, Ordering};

use crate::hook;

macro_rules! atomic {
    ($name:ident $(<$param:ident>)?, $value:ty, $what:expr) => {
        #[doc = concat!("The atomic type of std for ", $what, ".")]
        ///
        /// Inside a simulation, each access is charged.
        #[repr(transparent)]
        pub struct $name $(<$param>)? (std_atomic::$name $(<$param>)?);

        impl $(<$param>)? $name $(<$param>)? {
            /// As in std.
            #[must_use]
            pub const fn new(value: $value) -> Self {
                Self(std_atomic::$name::new(value))
            }
            /// As in std.
            #[inline]
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                hook::load(self);
                self.0.load(order)
            }
            /// As in std. A store that is sequentially consistent is an exchange, as on x86.
            #[inline]
            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                // SeqCst: the caller explains its order; here it only decides what is charged.
                if order == Ordering::SeqCst { hook::update(self) } else { hook::store(self) }
                self.0.store(value, order);
            }
            /// As in std.
            #[inline]
            #[track_caller]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                hook::update(self);
                self.0.swap(value, order)
            }
            /// As in std.
            ///
            /// # Errors
            ///
            /// As in std.
            #[inline]
            #[track_caller]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                hook::update(self);
                self.0.compare_exchange(current, new, success, failure)
            }
            /// As in std. It never fails spuriously here.
            ///
            /// # Errors
            ///
            /// As in std.
            #[inline]
            #[track_caller]
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }
            /// As in std.
            #[inline]
            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }
            /// As in std.
            #[inline]
            #[must_use]
            pub fn into_inner(self) -> $value {
                self.0.into_inner()
            }
        }

        impl $(<$param>)? Default for $name $(<$param>)? {
            fn default() -> Self {
                Self(std_atomic::$name::default())
            }
        }

        impl $(<$param>)? fmt::Debug for $name $(<$param>)? {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

macro_rules! numbers {
    ($name:ident, $value:ty) => {
        atomic!($name, $value, concat!("`", stringify!($value), "`"));
        numbers!(impl $name, $value,
            fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min);

        impl $name {
            /// Flips the bits that `bits` has, as `fetch_xor` does, but is charged as a store. It
            /// is for code that stores a part of the value, such as one byte, by an ordinary store,
            /// and knows what that part held.
            #[inline]
            #[track_caller]
            pub fn flip_by_store(&self, bits: $value, order: Ordering) {
                hook::store(self);
                self.0.fetch_xor(bits, order);
            }
            /// Exchanges the part of the value that `mask` selects. Returns the whole value as it
            /// was before. It is for code that exchanges a part of the value, such as one half, by
            /// one atomic operation, and is charged as one.
            #[inline]
            #[track_caller]
            pub fn swap_part(&self, mask: $value, part: $value, order: Ordering) -> $value {
                hook::update(self);
                let new = |old: $value| Some(old & !mask | part & mask);
                // Relaxed: a failed exchange is repeated.
                let old = self.0.fetch_update(order, Ordering::Relaxed, new);
                old.unwrap_or_else(|old| old)
            }
        }
    };
    (impl $name:ident, $value:ty, $($method:ident)*) => {
        impl $name {
            $(
                /// As in std.
                #[inline]
                #[track_caller]
                pub fn $method(&self, value: $value, order: Ordering) -> $value {
                    hook::update(self);
                    self.0.$method(value, order)
                }
            )*
        }
    };
}

numbers!(AtomicU8, u8);
numbers!(AtomicU16, u16);
numbers!(AtomicU32, u32);
numbers!(AtomicU64, u64);
numbers!(AtomicI64, i64);
numbers!(AtomicUsize, usize);
atomic!(AtomicBool, bool, "`bool`");
atomic!(AtomicPtr<T>, *mut T, "pointers");

impl AtomicBool {
    /// As in std.
    #[inline]
    #[track_caller]
    pub fn fetch_or(&self, value: bool, order: Ordering) -> bool {
        hook::update(self);
        self.0.fetch_or(value, order)
    }
    /// As in std.
    #[inline]
    #[track_caller]
    pub fn fetch_and(&self, value: bool, order: Ordering) -> bool {
        hook::update(self);
        self.0.fetch_and(value, order)
    }
}

/// The fence of std. Inside a simulation, a sequentially consistent fence is charged; others cost
/// nothing, as on x86.
#[inline]
pub fn fence(order: Ordering) {
    // SeqCst: the caller explains its order; here it only decides what is charged.
    if order == Ordering::SeqCst {
        hook::fence();
    }
    std_atomic::fence(order);
}
