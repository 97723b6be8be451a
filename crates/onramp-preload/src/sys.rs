//! The functions that take the place of the C library's, and the system calls of this library. The
//! crate's only `unsafe` code is here.
//!
//! The library sends by raw system calls: a call of `sendmsg` would end in the library again.
#![allow(unsafe_code)]

mod exports;
mod kept;
mod next;
mod process;
mod socket;

pub(crate) use kept::Kept;
pub(crate) use socket::{
    LASTING, is_nonblocking, name_of_peer, name_of_socket, option, reports_errors, send,
    send_timeout,
};
