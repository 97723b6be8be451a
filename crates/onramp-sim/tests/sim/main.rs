//! Tests of the simulator: by hand, against recordings of Linux, and against kept cases. They are
//! one program, because a build links each program anew.

mod aqm;
mod counters;
mod golden;
mod kernel_cases;
mod kernel_draws;
mod listings;
mod recording;
mod shared;
mod sim;
mod sim_golden;
mod window;
