//! The C interface of Onramp: trees of qdiscs in the caller's time, links over the caller's sockets
//! and devices, and lines of `tc`, for programs in C and C++.
//!
//! Programs in Rust use the crate `onramp`. Programs in C and C++ include `onramp.h` and link the
//! library that this crate builds, as `docs/c.md` shows. The functions of [`ffi`] are the whole
//! interface; `include/onramp.h` is made from them and from [`abi`].
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | [`abi`] | the structures and constants that cross the border |
//! | [`ffi`] | the functions, and all `unsafe` code: pointers become slices, texts and objects |
//! | `error` | errors as negative errno with a text for each thread; panics become errors |
//! | `shaper` | a tree, and the packets that it uses again and again |
//! | `sending` | a sender with what C adds: flows by value, completions in a list |
//! | `bell` | a descriptor that becomes readable when a sender has room |
//! | `control` | control messages of `sendmmsg`, and socket addresses |
//! | `end` | the destinations to which the sockets of a link can send |
//! | `source` | the local addresses from which datagrams leave |
//! | `stats` | the counters of a link as JSON |

pub mod abi;
mod bell;
mod control;
mod end;
mod error;
pub mod ffi;
mod sending;
mod shaper;
mod source;
mod stats;
