"""The scenarios of the laboratory: against the program, and wrong arguments."""

import json
import math

import numpy as np
import pytest
from onramp import aqm


@pytest.mark.parametrize("scenario", ["mild", "bursts"])
def test_measurements_are_those_of_the_program(program, scenario, tmp_path):
    report = tmp_path / "aqm.json"
    words = ["--kinds", "fq_codel,pfifo", "--scenarios", scenario, "--seconds", 4, "--seed", 5]
    program("lab", "aqm", *words, "--json", report)
    rows = json.loads(report.read_text())["rows"]
    assert {row["design"] for row in rows} == {"fq_codel", "pfifo"}
    for row in rows:
        ours = aqm.run(scenario, row["design"], seed=5, seconds=4)
        parts = row["sojourn_parts"]
        assert math.isclose(ours.times[1], parts["width_seconds"], rel_tol=1e-6)
        theirs = np.array([mean if mean is not None else math.nan for mean in parts["mean_ns"]])
        np.testing.assert_allclose(ours.delay_ns, theirs, rtol=1e-5)
        figures = [
            (ours.goodput_mean, row["goodput_bits_per_second"]),
            (ours.utilisation, row["utilisation"]),
            (ours.dropped_share, row["dropped_share"]),
            (ours.marked_share, row["marked_share"]),
            (ours.jain, row["jain"]),
            (ours.delay_quantiles_ns[0.99], row["sojourn_ns"]["p99"]),
            *zip(ours.flow_rates, (flow["bits_per_second"] for flow in row["bulk_flows"])),
        ]
        for one, other in figures:
            assert (one is None) == (other is None)
            assert one is None or math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-9), figures
        assert ours.scenario == scenario and ours.warm_up_seconds == 2


def test_goodput_over_time_adds_up():
    found = aqm.run("mild", "codel", seconds=4, rate="8mbit")
    assert [len(found.times), len(found.delay_ns), len(found.goodput)] == [120] * 3
    measured = found.goodput[found.times >= found.warm_up_seconds]
    assert abs(measured.mean() / found.goodput_mean - 1) < 0.02
    assert found.goodput.max() < 9e6
    assert repr(found).startswith("<Measurement of 'codel' in mild: ") or '"codel"' in repr(found)


def test_trees_are_measured_too():
    lines = ["qdisc add root handle 1: tbf rate 4mbit burst 10kb latency 50ms"]
    tree = aqm.run("mild", lines, seconds=2)
    assert 3e6 < tree.goodput_mean <= 4.1e6 and "tbf" in tree.qdisc
    own = aqm.run("mild", "tbf rate 4mbit burst 10kb latency 50ms", seconds=2)
    assert own.goodput_mean == tree.goodput_mean


def test_wrong_arguments_say_what_is_wrong():
    for arguments, text in [
        ({"name": "calm"}, "calm: unknown scenario; expected mild"),
        ({"qdisc": "fq_codel targt 1ms"}, "targt"),
        ({"rate": "10"}, "such as 10mbit"),
        ({"rate": "1kbit"}, "100kbit to 10gbit"),
        ({"seconds": 0}, "seconds: expected 1 to 3600"),
    ]:
        with pytest.raises(ValueError) as raised:
            aqm.run(**{"name": "mild", "qdisc": "codel", "seconds": 1, **arguments})
        assert text in str(raised.value)
    assert set(aqm.SCENARIOS) == {"mild", "heavy", "unresponsive", "bursts", "rtt-mix", "ecn"}
