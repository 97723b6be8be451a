"""Replays of arrays: against the program's own replay of the same capture, and by hand."""

import csv
import pathlib
import signal
import sys
import threading

import numpy as np
import onramp
import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
MS = 1_000_000


def rows(program, capture, qdisc, rate):
    """Returns what ``onramp replay`` says about each packet: rows in the order of the capture, and
    the copies in the order in which they left."""
    rates = ["--rate", rate] if rate else []
    text = program("replay", capture, "--qdisc", qdisc, "--csv", "-", *rates)
    table = list(csv.DictReader(text.splitlines()))
    packets = {int(row["packet"]) - 1: row for row in table if row["copy"] == "0"}
    copies = [row for row in table if row["copy"] == "1"]
    return packets, copies


def check(replay, packets, copies, ecn):
    """Compares a replay with the rows of the program, packet by packet."""
    count = len(replay.departures)
    assert len(packets) + replay.held >= count > 0
    for at in range(count):
        row = packets.get(at)
        departure, sojourn = replay.departures[at], replay.sojourn_ns[at]
        reason = onramp.DROP_REASONS[replay.drop_reasons[at]]
        if row is None:
            assert (departure, sojourn, reason) == (-1, -1, ""), at
            continue
        ours = (departure, sojourn, reason, replay.queue_packets[at], replay.queue_bytes[at])
        out = int(row["out_ns"] or -1)
        queue = int(row["queue_packets"]), int(row["queue_bytes"])
        assert ours == (out, int(row["sojourn_ns"]), row["drop"], *queue), at
        assert replay.marks[at] == (row["ecn_out"] == "3" != row["ecn_in"]), at
        assert int(row["ecn_in"]) == ecn[at]
    ours = zip(replay.copy_of, replay.copy_departures, replay.copy_drop_reasons)
    ours = [(of, left, onramp.DROP_REASONS[reason]) for of, left, reason in ours]
    theirs = [(int(row["packet"]) - 1, int(row["out_ns"] or -1), row["drop"]) for row in copies]
    assert ours == theirs


CASES = [
    ("fq_codel", "10mbit"),
    ("fq_codel limit 100 target 1ms", "8mbit"),
    ("codel ecn", "9mbit"),
    ("fq", "10mbit"),
    ("pie ecn", "8mbit"),
    ("sfq perturb 1", "9mbit"),
    ("tbf rate 8mbit burst 10kb latency 30ms", None),
    ("netem delay 10ms 5ms loss 3% duplicate 2%", "10mbit"),
    ("prio", "9mbit"),
    ("plug", None),
]


@pytest.mark.parametrize(("qdisc", "rate"), CASES)
def test_arrays_are_replayed_as_the_program_does(program, pcap, qdisc, rate):
    packets, copies = rows(program, pcap, qdisc, rate)
    capture = onramp.read_pcap(pcap)
    tree = onramp.Tree(qdisc, seed=1)
    columns = (capture.times_ns, capture.lengths, capture.flows, capture.ecn, capture.priority)
    check(tree.replay(*columns, rate=rate), packets, copies, capture.ecn)


@pytest.mark.parametrize(("qdisc", "rate"), [*CASES, ("cake bandwidth 8mbit", None)])
def test_captures_are_replayed_as_the_program_does(program, pcap, qdisc, rate):
    packets, copies = rows(program, pcap, qdisc, rate)
    ecn = onramp.read_pcap(pcap).ecn
    replay = onramp.Tree(qdisc, seed=1).replay_pcap(pcap, rate=rate)
    check(replay, packets, copies, ecn)


@pytest.mark.parametrize("name", ["uplink.pcap", "voice.pcapng"])
def test_example_captures_are_replayed_as_the_program_does(program, name):
    packets, copies = rows(program, EXAMPLES / name, "fq_codel", "1mbit")
    capture = onramp.read_pcap(EXAMPLES / name)
    for row in packets.values():
        at = int(row["packet"]) - 1
        assert (capture.times_ns[at], capture.lengths[at]) == (int(row["in_ns"]), int(row["bytes"]))
        assert capture.priority[at] == int(row["priority"])
    replay = onramp.Tree("fq_codel", seed=1).replay_pcap(EXAMPLES / name, rate="1mbit")
    check(replay, packets, copies, capture.ecn)


def test_results_by_hand():
    tree = onramp.Tree("pfifo limit 2")
    replay = tree.replay([0, 0, 0, 0, 5 * MS], [1250] * 5, rate="10mbit")
    assert replay.departures.tolist() == [0, MS, 2 * MS, -1, 5 * MS]
    assert replay.sojourn_ns.tolist() == [0, MS, 2 * MS, 0, 0]
    reasons = [onramp.DROP_REASONS[reason] for reason in replay.drop_reasons]
    assert reasons == ["", "", "", "overlimit", ""]
    assert replay.queue_packets.tolist() == [0, 0, 1, 2, 0]
    assert replay.queue_bytes.tolist() == [0, 0, 1250, 2500, 0]
    assert replay.marks.tolist() == [False] * 5 and replay.held == 0
    types = [replay.departures, replay.drop_reasons, replay.marks, replay.queue_packets]
    assert [str(array.dtype) for array in types] == ["int64", "uint8", "bool", "uint32"]
    stats = tree.stats()
    assert (stats["sent"], stats["dropped"], tree.now) == (4, {"overlimit": 1}, 6 * MS), "the link is free then"


def test_arrays_may_be_at_any_address():
    file = b"head" + np.array([0, 0, 0], np.int64).tobytes()
    times = np.frombuffer(file, np.int64, offset=4)
    lengths = np.array([[1250, 0]] * 3)[:, 0]
    assert not lengths.flags.c_contiguous
    replay = onramp.Tree("pfifo").replay(times, lengths, rate="10mbit")
    assert replay.departures.tolist() == [0, MS, 2 * MS]


def test_the_tree_goes_on_after_a_replay():
    tree = onramp.Tree("netem delay 1s limit 2")
    tree.enqueue(0, 60)
    for _ in range(2):
        replay = tree.replay([0, 1, 2], [60] * 3)
        assert replay.departures.tolist() == [1_000_000_000, 1_000_000_001, -1]
    assert len(tree) == 0 and tree.drops() == []
    tree.enqueue(tree.now, 60)
    with pytest.raises(ValueError, match="before 1000000001"):
        tree.dequeue(0)


def test_packets_that_never_leave_are_held():
    lines = ["qdisc add root handle 1: plug"]
    replay = onramp.Tree(lines).replay([0, 1], [60, 60])
    assert replay.departures.tolist() == [-1, -1] and replay.sojourn_ns.tolist() == [-1, -1]
    assert replay.drop_reasons.tolist() == [0, 0] and replay.held == 2


def test_marks_and_priorities():
    tree = onramp.Tree("red limit 60000 min 1500 max 1501 avpkt 1000 burst 2 ecn")
    replay = tree.replay([0] * 99, [1000] * 99, ecn=[2, 0] * 49 + [2], rate="1mbit")
    assert replay.marks.any() and not replay.marks[1::2].any()
    tree = onramp.Tree("prio")
    times, lengths = [0, 0, 0], [1250] * 3
    replay = tree.replay(times, lengths, priority=[0, 0, 6], rate="10mbit")
    assert replay.departures.tolist() == [0, 2 * MS, MS]


def test_departure_times_are_obeyed():
    replay = onramp.Tree("fq").replay([0, 0], [60, 60], [1, 2], txtime_ns=[4 * MS, -1])
    first, second = replay.departures.tolist()
    assert second == 0 and 4 * MS <= first <= 4 * MS + 100_000


def test_copies_have_rows_of_their_own():
    tree = onramp.Tree("netem duplicate 100%")
    replay = tree.replay([0, 10], [60, 60])
    assert replay.departures.tolist() == [0, 10]
    assert replay.copy_of.tolist() == [0, 1] and replay.copy_departures.tolist() == [0, 10]
    assert replay.copy_drop_reasons.tolist() == [0, 0] and tree.stats()["made"] == 2


def test_seeds_choose():
    lost = [
        onramp.Tree("netem loss 50%", seed=seed).replay(range(64), [60] * 64).drop_reasons.tolist()
        for seed in (1, 1, 2)
    ]
    assert lost[0] == lost[1] != lost[2]
    assert {onramp.DROP_REASONS[reason] for reason in lost[0]} == {"", "impaired"}


def test_arrays_of_any_whole_type_and_of_strides():
    want = onramp.Tree("pfifo").replay([0, 1000], [100, 200], rate="1mbit").departures.tolist()
    for kind in (np.int16, np.uint16, np.int32, np.uint64, np.int64):
        times = np.array([0, 9, 1000, 9], kind)[::2]
        replay = onramp.Tree("pfifo").replay(times, np.array([100, 200], kind), rate="1mbit")
        assert replay.departures.tolist() == want, kind
    none = onramp.Tree("pfifo").replay([], [])
    assert none.departures.tolist() == [] and none.departures.dtype == np.int64
    times = np.arange(3)
    times.flags.writeable = False
    assert onramp.Tree("pfifo").replay(times, np.full(3, 60, np.uint32)).held == 0


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (([0.5], [60]), TypeError, "times_ns: it has the type float64; expected whole numbers"),
        (([0, 1], [60]), ValueError, "lengths: it has 1 numbers; expected 2"),
        (([[0]], [60]), ValueError, "times_ns: it has 2 dimensions"),
        (([1, 0], [60, 60]), ValueError, "times_ns[1] is 0, before 1"),
        (([-1], [60]), ValueError, "times_ns[0] is -1, before 0"),
        (([0], [-1]), ValueError, "lengths: a number does not fit into uint32"),
        (([0], [2**32]), ValueError, "lengths: a number does not fit into uint32"),
        (([0], [0]), ValueError, "lengths[0] is 0"),
        (([0], [60], [-1]), ValueError, "flows: a number does not fit into uint64"),
        (([0], [60], [1], [4]), ValueError, "ecn[0] is 4"),
        (([2**63], [60]), ValueError, "times_ns: a number does not fit into int64"),
        (([0], ["x"]), TypeError, "lengths: it has the type"),
    ],
)
def test_wrong_columns_say_what_is_wrong(arguments, error, text):
    tree = onramp.Tree("pfifo")
    with pytest.raises(error) as raised:
        tree.replay(*arguments)
    assert text in str(raised.value)


def test_wrong_rates_say_what_is_right():
    for rate in ("10", "0mbit", "fast", ""):
        with pytest.raises(ValueError, match="such as 10mbit"):
            onramp.Tree("pfifo").replay([0], [60], rate=rate)


class Hooked:
    """Arrival times that call ``hook`` when a replay has begun and asks for them."""

    def __init__(self, times, hook):
        self.times, self.hook = times, hook

    def __array__(self, dtype=None, copy=None):
        self.hook()
        return self.times


def test_other_threads_run_during_a_replay():
    begun, done, ran = threading.Event(), threading.Event(), []
    # Python takes the interpreter from no thread, so that another runs only if the replay lets it.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1_000)

    def run():
        begun.wait()
        ran.append(done.is_set())

    other = threading.Thread(target=run)
    other.start()
    count = 1_000_000
    times = Hooked(np.arange(count) * 1_000, begun.set)
    onramp.Tree("fq_codel").replay(times, np.full(count, 100, np.uint32))
    done.set()
    sys.setswitchinterval(interval)
    other.join()
    assert ran == [False]


def test_an_interrupt_ends_a_replay_and_keeps_the_tree():
    tree = onramp.Tree("pfifo")
    tree.enqueue(3, 60)
    count = 3_000_000
    times = Hooked(np.zeros(count, np.int64), lambda: signal.setitimer(signal.ITIMER_REAL, 0.01))

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            tree.replay(times, np.full(count, 60, np.uint32))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(tree) == 1 and tree.now == 3
