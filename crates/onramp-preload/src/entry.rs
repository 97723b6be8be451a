//! Where the program comes in: the functions that take the place of the C library's, and what
//! belongs to the whole process.
#![allow(unsafe_code)]

mod exports;
mod memory;
mod next;
mod process;
