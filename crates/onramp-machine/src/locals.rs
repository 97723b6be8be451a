//! The values that one thread has for itself.

use std::any::Any;
use std::rc::Rc;

use rustc_hash::FxHashMap;

/// The values of one thread, by the address of the key.
pub(crate) type Locals = FxHashMap<usize, Rc<dyn Any>>;
