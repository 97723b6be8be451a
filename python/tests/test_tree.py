"""Trees step by step: packets in and out, changes, listings and errors."""

import threading

import onramp
import pytest

MS = 1_000_000


def drain(tree, now):
    """Takes packets until none is left. Returns their times and cookies."""
    left = []
    while (now := tree.next(now)) is not None:
        packet = tree.dequeue(now)
        if packet is not None:
            left.append((now, packet.cookie))
    return left


def test_packets_keep_what_they_were_given():
    tree = onramp.Tree("pfifo")
    assert tree.enqueue(5, 900, flow=2**64 - 1, cookie=7, priority=3, mark=9, ecn=1)
    assert len(tree) == 1 and tree.next(5) == 5
    packet = tree.dequeue(6)
    fields = (packet.flow, packet.cookie, packet.length, packet.priority, packet.mark, packet.ecn)
    assert fields == (2**64 - 1, 7, 900, 3, 9, 1)
    assert packet.drop_reason is None and tree.dequeue(6) is None and tree.next(6) is None
    assert repr(packet) == f"<Packet 7 of flow {2**64 - 1}, 900 bytes, ecn 1>"


def test_next_says_when_a_packet_may_leave():
    tree = onramp.Tree("netem delay 3ms")
    tree.enqueue(0, 100, cookie=1)
    tree.enqueue(2 * MS, 100, cookie=2)
    assert tree.next(2 * MS) == 2 * MS, "nobody has asked the tree yet"
    assert tree.dequeue(2 * MS) is None
    assert tree.next(2 * MS) == 3 * MS
    assert tree.enqueue(2 * MS, 100, cookie=3)
    assert tree.next(2 * MS) == 2 * MS, "the new packet may leave earlier"
    assert drain(tree, 2 * MS) == [(3 * MS, 1), (5 * MS, 2), (5 * MS, 3)]


def test_next_is_none_while_nothing_will_leave():
    tree = onramp.Tree("plug")
    tree.enqueue(0, 100, cookie=1)
    assert tree.dequeue(0) is None and len(tree) == 1
    assert tree.next(0) is None
    tree.tc("qdisc change root plug release_indefinite")
    assert drain(tree, 0) == [(0, 1)]


def test_departure_times_are_obeyed():
    tree = onramp.Tree("fq")
    tree.enqueue(0, 100, cookie=1, txtime_ns=4 * MS)
    tree.enqueue(0, 100, cookie=2, flow=1)
    (first, one), (second, two) = drain(tree, 0)
    assert (first, one, two) == (0, 2, 1)
    assert 4 * MS <= second <= 4 * MS + 100_000


def test_filters_and_classes_choose_by_mark():
    lines = """
        # Packets with the mark 1 go first.
        qdisc add dev eth0 root handle 1: prio
        tc filter add dev eth0 parent 1: pref 1 handle 1 fw classid 1:1
        filter add dev eth0 parent 1: pref 2 matchall classid 1:2
    """
    for tree in (onramp.Tree(lines), onramp.Tree(lines.splitlines())):
        for cookie, mark in ((1, 0), (2, 1), (3, 0), (4, 1)):
            tree.enqueue(0, 100, cookie=cookie, mark=mark)
        assert [cookie for _, cookie in drain(tree, 0)] == [2, 4, 1, 3]


def test_changes_keep_packets_and_replacements_drop_them():
    tree = onramp.Tree("pfifo limit 5")
    for cookie in range(5):
        tree.enqueue(0, 100, cookie=cookie)
    tree.tc("qdisc change root pfifo limit 9", 10)
    assert len(tree) == 5 and tree.now == 10 and tree.drops() == []
    tree.tc("tc qdisc replace dev link root handle 2: pfifo  # without a time")
    assert len(tree) == 0 and tree.now == 10
    assert [(packet.cookie, packet.drop_reason) for packet in tree.drops()] == [
        (cookie, "purged") for cookie in range(5)
    ]
    assert tree.lines == ["qdisc add dev link root handle 2: pfifo"]
    stats = tree.stats()
    assert (stats["enqueued"], stats["sent"], stats["dropped"]) == (5, 0, {"purged": 5})
    assert (stats["held"], stats["held_bytes"]) == (0, 0)


def test_listings_are_those_of_tc():
    tree = onramp.Tree("fq_codel limit 20 target 2ms")
    tree.enqueue(0, 100)
    text = tree.show()
    assert text.startswith("qdisc fq_codel 1: dev link root") and "target 2ms" in text, text
    assert "backlog 100b 1p" in text, text
    (listed,) = tree.show(json=True)
    assert (listed["kind"], listed["options"]["limit"], listed["qlen"]) == ("fq_codel", 20, 1)


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("fq_codel targt 2ms", 'qdisc fq_codel: unexpected "targt": fq_codel takes '),
        ("tbf rate 1mbit", "qdisc tbf: "),
        ("nothing", 'qdisc: unexpected "nothing": expected a qdisc kind: pfifo, '),
        ("fq_codle limit 5", 'qdisc: unexpected "fq_codle": expected a qdisc kind: '),
        (["fqq # a comment"], 'qdisc: unexpected "fqq": expected a qdisc kind: '),
        (["fq"], 'tc: unexpected "fq": expected qdisc, class or filter'),
        ("tc fqq", 'tc: unexpected "fqq": expected qdisc, class or filter'),
        ("fqq\nqdisc add root fq", 'line 1: tc: unexpected "fqq"'),
        ("", "tc_lines: a qdisc is missing"),
        ([], "tc_lines: a qdisc is missing"),
        (" # a comment\n\n", "tc_lines: a qdisc is missing"),
        (["qdisc add root prio", "qdisc add parent 9:1 fq"], "line 2: "),
        (["qdisc add root clsact"], ""),
        (["qdisc add root fq", "qdisc add ingress", "filter add ingress matchall action drop"],
         "line 3: filter: nothing comes in"),
    ],
)
def test_wrong_lines_say_what_is_wrong(lines, text):
    with pytest.raises(ValueError) as raised:
        onramp.Tree(lines)
    assert text in str(raised.value), raised.value


def test_wrong_arguments_say_what_is_wrong():
    tree = onramp.Tree("pfifo")
    tree.enqueue(10, 100)
    for wrong, text in [
        (lambda: tree.enqueue(9, 100), "now is 9, before 10"),
        (lambda: tree.dequeue(9), "now is 9, before 10"),
        (lambda: tree.tc("qdisc replace root fq", 9), "now is 9, before 10"),
        (lambda: tree.tc("qdisc replace root fqq"), "fqq"),
        (lambda: tree.enqueue(10, 0), "length: 0"),
        (lambda: tree.enqueue(10, 1, ecn=4), "ecn: 4"),
        (lambda: onramp.Tree("pfifo", mtu=0), "mtu: 0"),
    ]:
        with pytest.raises(ValueError) as raised:
            wrong()
        assert text in str(raised.value)
    for wrong, error, text in [
        (lambda: tree.enqueue(-1, 100), OverflowError, "now: -1: expected "),
        (lambda: tree.enqueue(10, -1), OverflowError, "length: -1: expected "),
        (lambda: tree.enqueue(10, 1, mark=2**32), OverflowError, "mark: 4294967296: expected "),
        (lambda: tree.dequeue("x"), TypeError, "now: expected a whole number"),
        (lambda: tree.replay([0], [100], rate=5), TypeError, "rate: expected a text"),
        (lambda: onramp.Tree("pfifo", seed=-1), OverflowError, "seed: -1: expected "),
        (lambda: onramp.Tree(7), TypeError, "tc_lines: expected a qdisc"),
    ]:
        with pytest.raises(error) as raised:
            wrong()
        assert str(raised.value).startswith(text), raised.value
    assert len(tree) == 1 and tree.lines == ["qdisc add dev link root handle 1: pfifo"]


def test_two_threads_cannot_use_a_tree_at_once():
    tree = onramp.Tree("fq_codel")
    refused, done = [], threading.Event()

    def meddle():
        while not done.is_set():
            try:
                tree.stats()
            except RuntimeError as error:
                refused.append(str(error))

    meddler = threading.Thread(target=meddle)
    meddler.start()
    try:
        for _ in range(1_000):
            if refused:
                break
            try:
                tree.replay(range(0, 50_000_000, 1_000), [100] * 50_000)
            except RuntimeError as error:
                refused.append(str(error))
    finally:
        done.set()
        meddler.join()
    assert refused and "orrowed" in refused[0]


def test_drop_reasons_have_names_and_texts():
    assert len(onramp.DROP_REASONS) == len(onramp.DROP_REASON_TEXTS)
    assert onramp.DROP_REASONS[:2] == ("", "overlimit")
