//! Credits: packets come home from other threads, and wake who waits for them.
