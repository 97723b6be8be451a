//! The native part of the Python package `onramp`: the module `onramp._native`.
//!
//! Everything here translates between Python and Onramp's libraries, and decides nothing itself.
//! The folder `package` has the part that is written in Python, and the types of both parts.
#![forbid(unsafe_code)]

mod aqm;
mod args;
mod capture;
mod columns;
mod completion;
mod errors;
mod lines;
mod link;
mod replay;
mod tree;

use onramp::DropReason;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// Returns the number of a drop reason in arrays: its index in `DROP_REASONS`.
fn number(reason: Option<DropReason>) -> u8 {
    reason.map_or(0, |reason| reason as u8 + 1)
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let names = [""].into_iter().chain(DropReason::ALL.iter().map(|reason| reason.name()));
    let texts = ["The packet was not dropped."].into_iter();
    let texts = texts.chain(DropReason::ALL.iter().map(|reason| reason.about()));
    let py = module.py();
    module.add("DROP_REASONS", PyTuple::new(py, names.collect::<Vec<_>>())?)?;
    module.add("DROP_REASON_TEXTS", PyTuple::new(py, texts.collect::<Vec<_>>())?)?;
    module.add("SCENARIOS", aqm::scenarios(py)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<tree::Tree>()?;
    module.add_class::<tree::Packet>()?;
    module.add_class::<replay::Replay>()?;
    module.add_class::<capture::Capture>()?;
    module.add_class::<link::Link>()?;
    module.add_class::<completion::Completion>()?;
    module.add_class::<aqm::Measurement>()?;
    module.add_function(wrap_pyfunction!(capture::read_pcap, module)?)?;
    module.add_function(wrap_pyfunction!(aqm::run_scenario, module)?)
}
