//! The only file with `unsafe`: the value behind a lock, and the list of packets that many threads
//! push to.
