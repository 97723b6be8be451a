//! The values that one thread has for itself.

use std::any::Any;
use std::rc::Rc;

use crate::numbers::NumberMap;

/// The values of one thread, by the address of the key.
pub(crate) type Locals = NumberMap<usize, Rc<dyn Any>>;
