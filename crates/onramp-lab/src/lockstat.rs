//! What happened at a lock, in the columns of `perf lock contention` and of lockmeter (2004).
