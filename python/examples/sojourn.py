"""Plots how long packets wait in different qdiscs in front of a slow link.

Without arguments, the traffic is made here: a steady call beside bursts of bulk data. With a
capture (pcap or pcapng), its packets are played. If matplotlib is installed, a window shows the
plot; otherwise, or with --text, the terminal does.
"""

import argparse

import numpy as np

import onramp

QDISCS = ["pfifo limit 1000", "codel", "fq_codel"]
MS = 1_000_000


def traffic():
    """Returns 10 s of packets: a call of 50 packets a second, and a burst of 400 every second."""
    call = np.arange(500) * 20 * MS
    bursts = np.repeat(np.arange(10) * 1000 * MS + 3 * MS, 400)
    times = np.concatenate([call, bursts])
    lengths = np.concatenate([np.full(500, 200), np.full(4000, 1514)])
    flows = np.concatenate([np.full(500, 1), np.full(4000, 2)])
    order = np.argsort(times, kind="stable")
    return times[order], lengths[order], flows[order]


def columns(capture):
    if capture is None:
        return (*traffic(), None, None)
    packets = onramp.read_pcap(capture)
    return packets.times_ns, packets.lengths, packets.flows, packets.ecn, packets.priority


def sketch(times, sojourn_ms, width=72, height=8):
    """Returns the longest sojourn time in each of ``width`` parts of the time, as lines of text."""
    place = np.minimum((times - times[0]) * width // (np.ptp(times) + 1), width - 1)
    highest = np.zeros(width)
    np.maximum.at(highest, place, sojourn_ms)
    top = max(highest.max(), 1e-6)
    lines = []
    for level in range(height, 0, -1):
        bar = "".join("#" if part > top * (level - 0.5) / height else " " for part in highest)
        lines.append(f"{top * level / height:8.1f} ms |{bar}".rstrip())
    return "\n".join([*lines, " " * 12 + "+" + "-" * width])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("capture", nargs="?", help="a pcap or pcapng file")
    parser.add_argument("--rate", default="8mbit", help="rate of the link [default: 8mbit]")
    parser.add_argument("--text", action="store_true", help="plot in the terminal")
    arguments = parser.parse_args()
    arrivals = columns(arguments.capture)
    found = {}
    for qdisc in QDISCS:
        replay = onramp.Tree(qdisc, seed=1).replay(*arrivals, rate=arguments.rate)
        left = replay.departures >= 0
        found[qdisc] = (arrivals[0][left], replay.sojourn_ns[left] / 1e6)
        p50, p99 = np.percentile(found[qdisc][1], [50, 99])
        print(f"{qdisc}: median {p50:.1f} ms, p99 {p99:.1f} ms, {np.sum(~left)} dropped")
        keys, counts = np.unique(arrivals[2], return_counts=True)
        for key in keys[np.argsort(-counts)][:3]:
            own = found[qdisc][1][arrivals[2][left] == key]
            if len(own) > 0:
                print(f"  flow {key}: {len(own)} packets, median {np.median(own):.1f} ms")
        if arguments.text:
            print(sketch(*found[qdisc]))
    if arguments.text:
        return
    try:
        from matplotlib import pyplot
    except ImportError:
        for qdisc, points in found.items():
            print(f"\n{qdisc}\n{sketch(*points)}")
        return
    for qdisc, (times, sojourn_ms) in found.items():
        pyplot.plot(times / 1e9, sojourn_ms, ".", markersize=2, label=qdisc)
    pyplot.xlabel("time of arrival (s)")
    pyplot.ylabel("sojourn time (ms)")
    pyplot.legend()
    pyplot.show()


if __name__ == "__main__":
    main()
