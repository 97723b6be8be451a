//! Many threads in front of one queue: one design of the transmit path after another.
