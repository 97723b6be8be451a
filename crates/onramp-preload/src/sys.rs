//! The system calls of this library, behind safe functions. The crate's `unsafe` code is here and
//! in [`entry`](crate::entry).
//!
//! The library sends by raw system calls: a call of `sendmsg` would end in the library again.
#![allow(unsafe_code)]

mod kept;
mod segments;
mod socket;

pub(crate) use kept::{Kept, close_all, descriptors_max, is_of};
pub(crate) use segments::cuts;
pub(crate) use socket::{
    LASTING, MSG_PROBE, SavedErrno, exit_now, holds, is_corked, is_nonblocking, name_of_peer,
    name_of_socket, no_message, option, probe, reports_errors, send, send_timeout, set_errno,
    takes, udp,
};
