//! Measures the machine on which the program runs, so that it can be simulated, too.

mod chase;
mod games;
mod rounds;
mod shape;
mod steps;
mod system;
mod table;
mod work;

pub use rounds::NotMeasured;
pub use table::{Check, calibrate, checks};
pub use work::{LocalWork, local_work};
