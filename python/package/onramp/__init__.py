"""Linux traffic control as a library: qdiscs, classes and filters of ``tc``.

``Tree`` plays packets of numpy arrays through a tree of qdiscs in virtual time, ``read_pcap`` reads
such arrays from a capture, ``aqm`` has the scenarios of RFC 7928, and ``Link`` sends UDP datagrams
of an asyncio program through a tree of qdiscs.

>>> import numpy as np
>>> import onramp
>>> times = np.arange(1000) * 500_000
>>> tree = onramp.Tree("fq_codel")
>>> replay = tree.replay(times, np.full(1000, 1250), rate="10mbit")
>>> int(replay.sojourn_ns.max()) > 100_000_000, int((replay.drop_reasons > 0).sum())
(True, 27)
"""

from . import aqm
from ._link import Link
from ._native import (
    DROP_REASON_TEXTS,
    DROP_REASONS,
    Capture,
    Completion,
    Packet,
    Replay,
    Tree,
    __version__,
    read_pcap,
)

__all__ = [
    "DROP_REASONS",
    "DROP_REASON_TEXTS",
    "Capture",
    "Completion",
    "Link",
    "Packet",
    "Replay",
    "Tree",
    "__version__",
    "aqm",
    "read_pcap",
]
