//! The scenarios of the laboratory for active queue management.

use std::cell::RefCell;
use std::num::NonZeroU64;

use numpy::{IntoPyArray as _, PyArray1};
use onramp::{Kinds, Rate};
use onramp_sim::aqm::{self, PARTS, Plan, Scenario, Subject};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::{errors, lines};

/// The rates of the link that the scenarios allow, in bytes per second.
const RATES: std::ops::RangeInclusive<u64> = 12_500..=1_250_000_000;
/// The quantiles of the queueing delay that a measurement has, in thousandths.
const SHARES: [(f64, u32); 5] = [(0.5, 500), (0.9, 900), (0.95, 950), (0.99, 990), (1.0, 1000)];

/// Returns the names of the scenarios, each with a short description.
pub(crate) fn scenarios(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let all = PyDict::new(py);
    for scenario in Scenario::ALL {
        all.set_item(scenario.name(), scenario.about())?;
    }
    Ok(all)
}

/// What one qdisc did in one scenario.
///
/// The arrays cover the whole run, the warm-up included, in 120 parts of equal length. All other
/// figures are those of the time after the warm-up. Unless stated otherwise, figures are those of
/// the flows that react to congestion.
#[pyclass(module = "onramp.aqm", frozen, get_all)]
pub(crate) struct Measurement {
    /// The name of the scenario.
    scenario: &'static str,
    /// The qdisc with its parameters, as tc writes it.
    qdisc: String,
    /// When each part begins, in seconds (float64).
    times: Py<PyArray1<f64>>,
    /// The mean queueing delay in each part in nanoseconds; NaN where no packet left (float64).
    delay_ns: Py<PyArray1<f64>>,
    /// The rate at which packets left in each part, in bits per second (float64).
    goodput: Py<PyArray1<f64>>,
    /// Seconds of warm-up at the beginning of the arrays.
    warm_up_seconds: u64,
    /// The rate at which packets left, in bits per second.
    goodput_mean: f64,
    /// The share of the link's rate that all flows together used, from 0 to 1.
    utilisation: f64,
    /// The share of packets that were dropped.
    dropped_share: f64,
    /// The share of packets that were marked with CE.
    marked_share: f64,
    /// Jain's index of fairness of the rates of the bulk flows; None for fewer than two.
    jain: Option<f64>,
    /// Quantiles of the queueing delay in nanoseconds: 0.5, 0.9, 0.95, 0.99 and 1.0.
    delay_quantiles_ns: Py<PyDict>,
    /// The rate of each bulk flow in bits per second.
    flow_rates: Py<PyTuple>,
}

impl Measurement {
    fn new(py: Python<'_>, plan: &Plan, cell: &aqm::Measurement) -> PyResult<Self> {
        let starts: Vec<f64> =
            (0_u32..).take(PARTS).map(|n| f64::from(n) * cell.part_seconds()).collect();
        let delays: Vec<f64> = cell.parts().map(|mean| mean.unwrap_or(f64::NAN)).collect();
        let goodput: Vec<f64> = cell.goodput_parts().collect();
        let quantiles = PyDict::new(py);
        for (share, per_mille) in SHARES {
            quantiles.set_item(share, cell.delays().per_mille(per_mille))?;
        }
        let bulk = cell.flows().iter().filter(|flow| flow.role == aqm::Role::Bulk);
        let rates: Vec<f64> = bulk.map(|flow| cell.bits_per_second(flow)).collect();
        Ok(Self {
            scenario: cell.scenario.name(),
            qdisc: cell.line.clone(),
            times: starts.into_pyarray(py).unbind(),
            delay_ns: delays.into_pyarray(py).unbind(),
            goodput: goodput.into_pyarray(py).unbind(),
            warm_up_seconds: plan.warm_up_seconds(),
            goodput_mean: cell.goodput(),
            utilisation: cell.utilisation(),
            dropped_share: cell.dropped_share(),
            marked_share: cell.marked_share(),
            jain: cell.jain(),
            delay_quantiles_ns: quantiles.unbind(),
            flow_rates: PyTuple::new(py, rates)?.unbind(),
        })
    }
}

#[pymethods]
impl Measurement {
    fn __repr__(&self) -> String {
        let megabits = self.goodput_mean / 1e6;
        format!("<Measurement of {:?} in {}: {megabits:.3} Mbit/s>", self.qdisc, self.scenario)
    }
}

fn rate(text: &str) -> PyResult<Rate> {
    let rate = text.parse::<Rate>().ok().filter(|rate| RATES.contains(&rate.as_bytes_per_second()));
    rate.filter(|_| text.parse::<f64>().is_err()).ok_or_else(|| {
        errors::value(format!(
            "rate: {text:?}: expected a rate with its unit, such as 10mbit, 100kbit to 10gbit"
        ))
    })
}

/// Returns what to measure: one qdisc, whose kind alone has the parameters of the laboratory, or a
/// tree of lines of tc.
fn subject(qdisc: &Bound<'_, PyAny>) -> PyResult<Subject> {
    if let Ok(text) = qdisc.extract::<String>() {
        let kind = text.split_ascii_whitespace().next().unwrap_or_default();
        if Kinds::default().find(kind).is_some() {
            return Subject::new(&text).map_err(errors::config);
        }
    }
    let setup = lines::setup(qdisc, "qdisc")?;
    let text = setup.lines().join("; ");
    Ok(Subject::tree("tree", setup, text).unwrap_or_else(|| unreachable!("it has a root")))
}

/// Runs one scenario of RFC 7928 through one qdisc: see ``onramp.aqm.run``.
#[pyfunction]
pub(crate) fn run_scenario(
    py: Python<'_>,
    name: &str,
    qdisc: &Bound<'_, PyAny>,
    seed: u64,
    rate_text: &str,
    seconds: u64,
) -> PyResult<Measurement> {
    let Some(scenario) = Scenario::ALL.into_iter().find(|scenario| scenario.name() == name) else {
        let known = Scenario::ALL.map(Scenario::name).join(", ");
        return Err(errors::value(format!("{name}: unknown scenario; expected {known}")));
    };
    let seconds = NonZeroU64::new(seconds).filter(|seconds| seconds.get() <= 3_600);
    let Some(seconds) = seconds else {
        return Err(errors::value("seconds: expected 1 to 3600"));
    };
    let plan = Plan { rate: rate(rate_text)?, seconds, seed };
    let subject = subject(qdisc)?;
    let cell = py.detach(|| {
        let interrupted = RefCell::new(None);
        let stopped = || {
            let error = Python::attach(|py| py.check_signals()).err();
            let stops = error.is_some();
            interrupted.replace(error);
            stops
        };
        let measured = aqm::run_unless(&plan, scenario, &subject, &stopped);
        match interrupted.into_inner() {
            Some(error) => Err(error),
            None => measured.map_err(errors::config),
        }
    })?;
    let cell = cell.unwrap_or_else(|| unreachable!("nothing stopped it"));
    Measurement::new(py, &plan, &cell)
}
