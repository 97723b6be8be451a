//! Values that each thread has for itself: each simulated thread, too.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use crate::locals::Locals;
use crate::world::inside;

std::thread_local! {
    /// The values of a thread outside simulations.
    static OUTSIDE: RefCell<Locals> = RefCell::new(Locals::default());
}

/// The key of a value that each thread has for itself: see [`thread_local!`](crate::thread_local).
pub struct LocalKey<T: 'static> {
    init: fn() -> T,
}

/// The thread has ended, and its values are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessError;

impl<T: 'static> LocalKey<T> {
    #[doc(hidden)]
    pub const fn new(init: fn() -> T) -> Self {
        Self { init }
    }

    fn value(&'static self) -> Option<Rc<T>> {
        let key = std::ptr::from_ref(self).addr();
        let with = |f: &mut dyn FnMut(&mut Locals) -> Option<Rc<dyn Any>>| match inside(|world| {
            f(world.locals())
        }) {
            Some(value) => Some(value),
            None => OUTSIDE.try_with(|locals| f(&mut locals.borrow_mut())).ok(),
        };
        let mut value = with(&mut |locals| locals.get(&key).cloned())?;
        if value.is_none() {
            let new: Rc<dyn Any> = Rc::new((self.init)());
            value = with(&mut |locals| {
                locals.insert(key, new.clone());
                Some(new.clone())
            })?;
        }
        value?.downcast().ok()
    }

    /// As in std.
    ///
    /// # Panics
    ///
    /// As in std.
    pub fn with<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        self.try_with(f).expect("the thread has not ended")
    }

    /// As in std.
    ///
    /// # Errors
    ///
    /// As in std.
    pub fn try_with<R>(&'static self, f: impl FnOnce(&T) -> R) -> Result<R, AccessError> {
        self.value().map(|value| f(&value)).ok_or(AccessError)
    }
}

impl<T: Copy + 'static> LocalKey<Cell<T>> {
    /// As in std.
    pub fn get(&'static self) -> T {
        self.with(Cell::get)
    }
}

impl<T: 'static> LocalKey<Cell<T>> {
    /// As in std.
    pub fn set(&'static self, value: T) {
        self.with(|cell| cell.set(value));
    }

    /// As in std.
    pub fn replace(&'static self, value: T) -> T {
        self.with(|cell| cell.replace(value))
    }
}

impl<T: 'static> fmt::Debug for LocalKey<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalKey").finish_non_exhaustive()
    }
}

/// Declares values that each thread has for itself, as the macro of std does: each simulated thread
/// has its own, too.
#[macro_export]
macro_rules! thread_local {
    ($($(#[$attr:meta])* $vis:vis static $name:ident: $type:ty = const $init:block;)*) => {
        $(
            $(#[$attr])*
            $vis static $name: $crate::sync::LocalKey<$type> =
                $crate::sync::LocalKey::new(|| const $init);
        )*
    };
    ($($(#[$attr:meta])* $vis:vis static $name:ident: $type:ty = $init:expr;)*) => {
        $(
            $(#[$attr])*
            $vis static $name: $crate::sync::LocalKey<$type> =
                $crate::sync::LocalKey::new(|| $init);
        )*
    };
}
