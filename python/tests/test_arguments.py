"""Arguments of links: what is accepted, and what errors say."""

import array
import socket

import onramp
import pytest

HERE = ("127.0.0.1", 0)


@pytest.fixture
def receiver():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        here.bind(HERE)
        here.settimeout(60)
        yield here


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (OverflowError, {"priority": -1}),
        (OverflowError, {"mark": 2**32}),
        (OverflowError, {"ecn": 300}),
        (OverflowError, {"segment": 70_000}),
        (OverflowError, {"flow": -1}),
        (OverflowError, {"cookie": -1}),
        (OverflowError, {"cookie": 10**5000}),
        (TypeError, {"cookie": 1.5}),
        (TypeError, {"source": 5}),
        (TypeError, {"source": ("127.0.0.1", 0)}),
        (TypeError, {"pacing_rate": 5}),
        (TypeError, {"txtime": "now"}),
        (TypeError, {"payloads": 5}),
        (TypeError, {"payloads": b"one"}),
        (TypeError, {"payloads": "one"}),
        (TypeError, {"payloads": [b"one", "two"]}),
    ],
)
def test_errors_name_the_argument_of_a_call(receiver, error, options):
    link, (name,) = onramp.Link(HERE), options
    with pytest.raises(error, match=f"^{name}: .*expected ") as raised:
        link.try_send(receiver.getsockname(), **{"payloads": [b"x"], **options})
    assert len(str(raised.value)) < 120
    assert link.stats()["submitted"] == 0


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (OverflowError, {"credits": -1}),
        (OverflowError, {"mtu": 2**32}),
        (OverflowError, {"ports": -1}),
        (OverflowError, {"seed": -1}),
        (TypeError, {"rate": -1}),
        (TypeError, {"credit_time": "1"}),
        (TypeError, {"qdisc": 5}),
        (TypeError, {"qdisc": ["qdisc add root fq", 5]}),
    ],
)
def test_errors_name_the_argument_of_a_link(error, options):
    (name,) = options
    with pytest.raises(error, match=f"^{name}: .*expected "):
        onramp.Link(HERE, **options)


def test_payloads_are_bytes_like(receiver):
    link = onramp.Link(HERE)
    data = bytes(range(200)) * 30
    views = [memoryview(data), memoryview(data)[1::2], array.array("H", [1, 2, 3])]
    for payloads in (views, views[:1]):
        assert link.try_send(receiver.getsockname(), payloads) == len(payloads)
        while link.in_flight():
            link.run()
        for payload in payloads:
            assert receiver.recv(65_536) == bytes(payload)


def test_a_link_of_ipv6_sends_to_both_families(receiver):
    try:
        link = onramp.Link(("::", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    host, port = receiver.getsockname()
    assert link.try_send((host, port), [b"four"]) == 1
    assert link.try_send((f"::ffff:{host}", port), [b"mapped"]) == 1
    # A link of IPv4 knows that address, too.
    assert onramp.Link(HERE).try_send((f"::ffff:{host}", port), [b"other"]) == 1
    while link.in_flight():
        link.run()
    assert {receiver.recv(9) for _ in range(3)} == {b"four", b"mapped", b"other"}
