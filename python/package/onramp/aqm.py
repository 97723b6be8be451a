"""Scenarios that show what active queue management does to flows that share a link (RFC 7928).

>>> from onramp import aqm
>>> sorted(aqm.SCENARIOS)
['bursts', 'ecn', 'heavy', 'mild', 'rtt-mix', 'unresponsive']
"""

from __future__ import annotations

from typing import Sequence, Union

from ._native import SCENARIOS, Measurement, run_scenario

__all__ = ["SCENARIOS", "Measurement", "run"]


def run(
    name: str,
    qdisc: Union[str, Sequence[str]],
    *,
    seed: int = 1,
    rate: str = "10mbit",
    seconds: int = 30,
) -> Measurement:
    """Runs the scenario ``name`` of ``SCENARIOS`` through ``qdisc``, in virtual time.

    ``qdisc`` is a kind, which gets the parameters that ``onramp lab aqm`` gives it; a kind with
    parameters of its own in the syntax of tc; or lines of tc that describe a tree. ``rate`` is that
    of the link, 100kbit to 10gbit; ``seconds`` of virtual time are measured after a warm-up of half
    as long. The same arguments always have the same result. Other Python threads run meanwhile, and
    Ctrl-C ends the run.

    Raises ``ValueError`` for an unknown scenario and for a wrong qdisc, rate or number of seconds,
    and ``OverflowError`` for a negative number of seconds.

    >>> from onramp import aqm
    >>> deep = aqm.run("mild", "pfifo", seconds=4)
    >>> short = aqm.run("mild", "fq_codel", seconds=4)
    >>> deep.delay_quantiles_ns[0.5] > 10 * short.delay_quantiles_ns[0.5]
    True
    >>> len(short.times), len(short.delay_ns), len(short.goodput)
    (120, 120, 120)
    """
    return run_scenario(name, qdisc, seed, rate, seconds)
