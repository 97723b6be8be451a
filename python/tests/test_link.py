"""Links: datagrams over the loopback, with and without asyncio."""

import asyncio
import errno
import os
import select
import socket
import subprocess
import sys
import threading
import time

import onramp
import pytest

HERE = ("127.0.0.1", 0)
# Far longer than anything here takes, also beside other programs.
LONG = 60
# The module ``socket`` has a name for this number of Linux only since Python 3.14.
IP_PKTINFO = 8


@pytest.fixture
def receiver():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        here.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        here.bind(HERE)
        here.settimeout(LONG)
        yield here


def run(main):
    return asyncio.run(asyncio.wait_for(main, LONG))


def test_datagrams_arrive_in_order_from_the_local_address(receiver):
    async def main():
        async with onramp.Link(HERE, qdisc="pfifo limit 1000") as link:
            for number in range(300):
                await link.send(receiver.getsockname(), b"%d" % number)
            await link.send_batch(receiver.getsockname(), [b"a", bytearray(b"b"), b"c"])
            await link.flush()
            return link.local_addr(), link.stats()

    local, stats = run(main())
    got = [receiver.recvfrom(100) for _ in range(303)]
    assert [data for data, _ in got] == [b"%d" % number for number in range(300)] + [
        b"a",
        b"b",
        b"c",
    ]
    assert {source for _, source in got} == {local}
    assert (stats["submitted"], stats["sent"], stats["dropped"], stats["held"]) == (303, 303, {}, 0)


def test_a_rate_takes_time_and_tasks_wait_for_room(receiver):
    """200 datagrams of 1,042 bytes on the wire take 0.2 s at 8 Mbit/s, wherever they wait."""

    async def main():
        lines = "tbf rate 8mbit burst 2kb limit 1mb"
        async with onramp.Link(HERE, qdisc=lines, credits=8) as link:
            began = time.monotonic()

            async def send(first):
                for number in range(50):
                    await link.send(receiver.getsockname(), bytes([first, number]) + bytes(998))

            await asyncio.gather(*map(send, range(4)))
            assert link.in_flight() <= 8
            await link.flush()
            return time.monotonic() - began, link.stats()

    took, stats = run(main())
    assert took > 0.18 and stats["sent"] == 200 and stats["dropped"] == {}
    got = [receiver.recv(2000)[:2] for _ in range(200)]
    for first in range(4):
        assert [data[1] for data in got if data[0] == first] == list(range(50))


def test_batches_of_two_tasks_do_not_mix(receiver):
    async def main():
        async with onramp.Link(HERE, qdisc="tbf rate 8mbit burst 2kb limit 1mb", credits=4) as link:
            batches = [[bytes([first]) + bytes(499)] * 20 for first in range(3)]
            dest = receiver.getsockname()
            await asyncio.gather(*(link.send_batch(dest, batch) for batch in batches))
            await link.flush()

    run(main())
    assert [receiver.recv(1000)[0] for _ in range(60)] == [0] * 20 + [1] * 20 + [2] * 20


async def fills(link, dest, count=300):
    """Has a task send a batch that fills the link, and returns it: it needs many more turns."""
    task = asyncio.ensure_future(link.send_batch(dest, [b"\0" + bytes(999)] * count))
    await asyncio.sleep(0)
    assert not task.done() and link.in_flight() > 0
    return task


def test_a_batch_to_a_slow_destination_lets_others_in(receiver):
    """The link accepts 96 payloads at a time, so the batch has several pieces."""

    async def main():
        link = onramp.Link(HERE, qdisc="fq maxrate 1mbit")
        batch = await fills(link, receiver.getsockname())
        # Another destination is another flow.
        await link.send(("127.0.0.1", 9), b"x")
        assert not batch.done(), "the other flow waited until the batch ended"
        link.close()
        with pytest.raises(OSError, match="closed"):
            await batch

    run(main())


def test_batches_of_one_flow_do_not_mix_when_another_flow_takes_turns(receiver):
    async def main():
        async with onramp.Link(HERE, qdisc="tbf rate 8mbit burst 2kb limit 1mb", credits=4) as link:
            dest = receiver.getsockname()
            batches = [[bytes([first]) + bytes(499)] * 20 for first in range(4)]
            flows = [None, None, 7, 7]
            sends = (link.send_batch(dest, batch, flow=f) for batch, f in zip(batches, flows))
            await asyncio.gather(*sends)
            await link.flush()
            assert len(link._flows) == 0, "no task is left that needs a lock"

    run(main())
    got = [receiver.recv(1000)[0] for _ in range(80)]
    # On each flow, the first batch comes whole before the second.
    assert [first for first in got if first < 2] == [0] * 20 + [1] * 20
    assert [first for first in got if first > 1] == [2] * 20 + [3] * 20
    # The second flow gets its turn after a piece, and a piece has four payloads at the most.
    assert got.index(2) < 20, got


def test_a_task_that_is_cancelled_while_it_waits_for_a_turn_has_sent_nothing(receiver):
    async def main():
        link = onramp.Link(HERE, qdisc="tbf rate 8mbit burst 2kb limit 1mb", credits=2)
        dest = receiver.getsockname()
        batch = await fills(link, dest, 40)
        # The first two wait for the flow of the batch, the others for a turn.
        flows = [None, None, 7, 8, 9]
        tasks = [
            asyncio.ensure_future(link.send(dest, bytes([n]), flow=flow))
            for n, flow in enumerate(flows, 1)
        ]
        await asyncio.sleep(0)
        for number in (0, 2):
            tasks[number].cancel()
        done = await asyncio.gather(batch, *tasks, return_exceptions=True)
        await link.flush()
        assert link.close() == 0
        return [number for number, end in enumerate(done) if end is not None]

    assert run(main()) == [1, 3]
    got = [receiver.recv(1000)[0] for _ in range(43)]
    assert sorted(got) == [0] * 40 + [2, 4, 5] and got[-1] == 2, got


def test_a_cancelled_batch_lets_the_next_one_begin(receiver):
    async def main():
        link = onramp.Link(HERE, qdisc="netem delay 200s", credits=4)
        batch = await fills(link, receiver.getsockname())
        same = asyncio.ensure_future(link.send(receiver.getsockname(), b"1"))
        other = asyncio.ensure_future(link.send(receiver.getsockname(), b"2", flow=7))
        await asyncio.sleep(0)
        batch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await batch
        # Both are at work now, and find no room in the link.
        link.tc("qdisc replace root pfifo")
        link.run()
        await asyncio.gather(same, other)
        await link.aclose()

    run(main())
    assert {receiver.recv(9), receiver.recv(9)} == {b"1", b"2"}


@pytest.mark.parametrize("flow", [None, 7])
def test_a_task_that_waits_comes_before_one_that_calls_later(receiver, flow):
    """The link has room again, but the task that waits for it has not run yet."""

    async def main():
        async with onramp.Link(HERE, qdisc="netem delay 200s", credits=2) as link:
            dest = receiver.getsockname()
            batch = asyncio.ensure_future(link.send_batch(dest, [b"a", b"b", b"c", b"d"]))
            await asyncio.sleep(0)
            assert link.in_flight() == 2
            link.tc("qdisc replace root pfifo")
            link.run()
            assert link.in_flight() == 0 and not batch.done()
            await link.send(dest, b"late", flow=flow)
            await batch
            await link.flush()

    run(main())
    assert [receiver.recv(9) for _ in range(3)] == [b"c", b"d", b"late"]


def test_a_close_ends_the_waits_for_flows_and_turns(receiver):
    async def main():
        link = onramp.Link(HERE, qdisc="netem delay 200s", credits=4)
        dest = receiver.getsockname()
        tasks = [await fills(link, dest)]
        tasks += [asyncio.ensure_future(link.send(dest, b"x", flow=flow)) for flow in (None, 7, 7)]
        await asyncio.sleep(0)
        assert link.close() == 4
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(end, OSError) and end.errno == errno.ESHUTDOWN, end
        assert link.stats()["submitted"] == 4

    run(main())


def test_the_work_of_a_batch_grows_with_its_length_only(receiver):
    given = []

    class Counted(onramp.Link):
        def try_send(self, dest, payloads, **options):
            given.append(len(payloads))
            return super().try_send(dest, payloads, **options)

    async def main():
        lines = "tbf rate 80mbit burst 1600 limit 1mb"
        async with Counted(HERE, qdisc=lines, credits=4) as link:
            await link.send_batch(receiver.getsockname(), [b"%d" % n for n in range(4_000)])
            await link.flush()
            return link.stats()["sent"]

    assert run(main()) == 4_000
    assert max(given) <= 256 and sum(given) < 20 * 4_000, sum(given)
    assert [receiver.recv(9) for _ in range(100)] == [b"%d" % n for n in range(100)]


def test_pacing_and_flows(receiver):
    async def main():
        async with onramp.Link(HERE, qdisc="fq low_rate_threshold 100mbit") as link:
            began = time.monotonic()
            for number in range(11):
                await link.send(
                    receiver.getsockname(), bytes(958), flow=number % 2, pacing_rate="400kbit"
                )
            await link.flush()
            return time.monotonic() - began

    # Each flow has a datagram in 20 ms.
    assert run(main()) > 0.09


def test_completions_say_what_became_of_each_payload(receiver):
    """Two packets wait behind a plug, which has no room for the third."""

    async def main():
        async with onramp.Link(HERE, qdisc="plug limit 3000", completions=True) as link:
            began = time.monotonic()
            for cookie in (5, 6, 7):
                await link.send(receiver.getsockname(), bytes(1400), cookie=cookie, flow=9)
            dropped = link.completions()
            pulled = time.monotonic()
            link.tc("qdisc change root plug release_indefinite")
            await link.flush()
            told = sorted(link.completions(), key=lambda completion: completion.cookie)
            assert link.completions() == []
            return began, pulled, time.monotonic(), dropped, told

    began, pulled, ended, dropped, told = run(main())
    assert [(one.cookie, one.drop_reason) for one in dropped] == [(7, "overlimit")]
    assert [(one.cookie, one.drop_reason) for one in told] == [(5, None), (6, None)]
    assert {(one.flow, one.length) for one in dropped + told} == {(9, 1442)}
    assert began <= dropped[0].accepted <= dropped[0].left <= pulled
    for one in told:
        assert began <= one.accepted <= pulled <= one.left <= ended
    assert repr(dropped[0]).startswith("<onramp.Completion cookie=7 flow=9 length=1442: overlimit")


def test_a_payload_of_segments_is_one_packet(receiver):
    link = onramp.Link(HERE, qdisc="pfifo", completions=True)
    dest = receiver.getsockname()
    payload = b"a" * 500 + b"b" * 500 + b"c" * 20
    assert link.try_send(dest, [payload, b"short"], segment=500, cookie=1) == 2
    while link.in_flight():
        link.run()
    assert [receiver.recv(2000) for _ in range(4)] == [
        b"a" * 500,
        b"b" * 500,
        b"c" * 20,
        b"short",
    ]
    assert sorted(completion.length for completion in link.completions()) == [
        5 + 42,
        1020 + 3 * 42,
    ]
    assert link.stats()["submitted"] == 2


@pytest.mark.parametrize("qdisc", ["pfifo", "tbf rate 1gbit burst 100kb limit 10mb"])
def test_large_payloads_arrive_as_they_were(receiver, qdisc):
    """The link sends a single one without a copy, if its qdisc is one that lets it pass."""
    link, dest = onramp.Link(HERE, qdisc=qdisc), receiver.getsockname()
    for size in (4_095, 4_096, 60_000, 65_507):
        data = bytes(n * 31 % 251 for n in range(size))
        for payloads in ([data], [bytearray(data)], [data, data[:9]]):
            assert link.try_send(dest, payloads) == len(payloads)
            while link.in_flight():
                link.run()
            for payload in payloads:
                assert receiver.recv(65_536) == payload
        assert link.try_send(dest, [data], segment=3_000) == 1
        while link.in_flight():
            link.run()
        for first in range(0, size, 3_000):
            assert receiver.recv(65_536) == data[first : first + 3_000]
    stats = link.stats()
    assert (stats["submitted"], stats["sent"], stats["dropped"]) == (20, 20, {})


def test_large_payloads_wait_for_room_and_for_their_turn(receiver):
    link, dest = onramp.Link(HERE, qdisc="netem delay 200s", credits=2), receiver.getsockname()
    assert [link.try_send(dest, [bytes([n]) * 5_000]) for n in range(3)] == [1, 1, 0]
    link.tc("qdisc replace root plug")
    assert link.stats()["dropped"] == {"purged": 2} and link.in_flight() == 0
    assert [link.try_send(dest, [bytes([n]) * 5_000]) for n in range(2)] == [1, 1]
    link.tc("qdisc change root plug release_indefinite")
    while link.in_flight():
        link.run()
    assert [receiver.recv(9_000)[:1] for _ in range(2)] == [b"\0", b"\1"]


def test_a_datagram_leaves_at_its_time(receiver):
    link = onramp.Link(HERE, qdisc="fq", completions=True)
    due = time.monotonic() + 0.05
    assert link.try_send(receiver.getsockname(), [b"later"], txtime=due) == 1
    while link.in_flight():
        assert select.select([link.fileno()], [], [], LONG)[0]
        link.run()
    assert [completion.left >= due for completion in link.completions()] == [True]
    assert receiver.recv(9) == b"later"


def test_credits_are_payloads_however_large(receiver):
    """The default bounds the bytes, too: 17 payloads of 60,000 bytes are in 1 MiB."""
    held = []
    for credits in (None, 64, 32_768):
        link = onramp.Link(HERE, qdisc="netem delay 200s", credits=credits)
        held.append(link.try_send(receiver.getsockname(), [bytes(60_000)] * 80))
    assert held == [17, 64, 80]


def test_credits_in_time_bound_the_queue(receiver):
    """Two packets may be in flight until the link knows its rate, and never more than credits."""
    held = []
    for credit_time in (None, 0.001):
        link = onramp.Link(HERE, qdisc="netem delay 200s", credits=8, credit_time=credit_time)
        held.append(link.try_send(receiver.getsockname(), [b"x"] * 20))
    assert held == [8, 2]


def test_completions_that_nobody_takes_end_the_sending(receiver):
    link = onramp.Link(HERE, qdisc="blackhole", completions=True)
    dest, sent = receiver.getsockname(), 0
    with pytest.raises(OSError, match="65536 completions wait") as full:
        for _ in range(2000):
            sent += link.try_send(dest, [b"x"] * 64)
            link.in_flight()
    assert full.value.errno == errno.ENOBUFS and sent >= 65_536
    told = link.completions()
    assert {completion.drop_reason for completion in told} == {"blackhole"}
    assert len(told) + link.in_flight() == sent
    assert link.try_send(dest, [b"x"]) == 1
    with pytest.raises(ValueError, match="completions=True"):
        onramp.Link(HERE).completions()


def test_a_cancelled_task_leaves_the_others_their_turns(receiver):
    async def main():
        link = onramp.Link(HERE, qdisc="tbf rate 80kbit burst 1600 limit 1mb", credits=2)
        dest = receiver.getsockname()
        tasks = [asyncio.ensure_future(link.send(dest, bytes([n]) + bytes(199))) for n in range(20)]
        await asyncio.sleep(0)
        for number in (10, 15):
            tasks[number].cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        await link.flush()
        assert link.close() == 0
        return [number for number, end in enumerate(done) if end is not None]

    assert run(main()) == [10, 15]
    assert [receiver.recv(500)[0] for _ in range(18)] == [
        n for n in range(20) if n not in (10, 15)
    ]


def test_a_task_that_sends_without_end_lets_others_run(receiver):
    """The link accepts everything, so that no send waits."""
    dest = receiver.getsockname()

    async def main(batch):
        async with onramp.Link(HERE, qdisc="blackhole") as link:

            async def pump():
                ends = time.monotonic() + 10
                while time.monotonic() < ends:
                    await link.send_batch(dest, [b"x"] * batch)

            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(pump(), 0.1)

    for batch in (1, 64, 1_000):
        run(main(batch))


def test_a_task_that_is_cancelled_while_others_run_has_sent_nothing(receiver):
    async def main():
        async with onramp.Link(HERE, qdisc="blackhole") as link:
            dest = receiver.getsockname()
            await link.send_batch(dest, [b"x"] * 64)
            task = asyncio.ensure_future(link.send(dest, b"y"))
            await asyncio.sleep(0)
            assert not task.done()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await link.send(dest, b"z")
            return link.stats()["submitted"]

    assert run(main()) == 65


def test_a_close_drops_what_is_left_and_ends_waits(receiver):
    async def main():
        link = onramp.Link(HERE, qdisc="netem delay 200s", credits=4)
        dest = receiver.getsockname()
        await link.send_batch(dest, [b"x"] * 4)
        descriptor = link.fileno()
        waits = [asyncio.ensure_future(link.send(dest, b"y")), asyncio.ensure_future(link.flush())]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in waits)
        assert await link.aclose(0.05) == 4
        assert not asyncio.get_running_loop().remove_reader(descriptor), "the loop has forgotten it"
        sent, flushed = await asyncio.gather(*waits, return_exceptions=True)
        assert isinstance(sent, OSError) and sent.errno == errno.ESHUTDOWN and flushed is None
        assert link.stats()["dropped"] == {"purged": 4} and link.in_flight() == 0
        with pytest.raises(OSError, match="the link is closed"):
            await link.send(dest, b"z")
        with pytest.raises(OSError, match="the link is closed"):
            link.tc("qdisc replace root fq")
        assert link.close() == await link.aclose() == 4
        await link.flush()

    run(main())


def test_a_cancelled_close_closes(receiver):
    async def main():
        link = onramp.Link(HERE, qdisc="netem delay 200s", credits=4)
        await link.send(receiver.getsockname(), b"x")
        descriptor = link.fileno()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(link.aclose(None), 0.05)
        assert not asyncio.get_running_loop().remove_reader(descriptor), "the loop has forgotten it"
        assert link.stats()["dropped"] == {"purged": 1}
        with pytest.raises(OSError, match="the link is closed"):
            await link.send(receiver.getsockname(), b"z")

    run(main())


def test_without_asyncio_the_program_runs_the_link(receiver):
    link = onramp.Link(HERE, qdisc="tbf rate 1mbit burst 1600 limit 100kb")
    assert link.run() is None
    assert link.try_send(receiver.getsockname(), [bytes(1000)] * 5) == 5
    waited = 0
    while link.in_flight():
        assert select.select([link.fileno()], [], [], LONG)[0]
        later = link.run()
        assert later is None or 0 <= later < 1
        waited += 1
    assert waited >= 3 and link.stats()["sent"] == 5
    assert link.shut() == 0


async def waits(link, dest):
    """Has a task wait in ``flush`` and one in ``send``, behind a datagram that falls due."""
    while True:
        due = time.monotonic() + 0.05
        await link.send(dest, b"due", txtime=due)
        flush, send = link.flush(), link.send(dest, b"next")
        tasks = [asyncio.ensure_future(flush), asyncio.ensure_future(send)]
        # The event loop makes the round that the sending asks for.
        await asyncio.sleep(0.01)
        if time.monotonic() < due:
            break
        # The loop came so late that the datagram may have left: once more.
        await asyncio.wait_for(asyncio.gather(*tasks), LONG)
    time.sleep(0.1)
    assert not any(task.done() for task in tasks) and link.in_flight() == 1
    return tasks


def test_a_run_by_the_program_wakes_the_tasks_that_wait(receiver):
    """The datagram leaves in ``run``, and the descriptor is not readable afterwards."""

    async def main():
        async with onramp.Link(HERE, qdisc="fq", credits=1) as link:
            tasks = await waits(link, receiver.getsockname())
            assert link.run() is None and link.in_flight() == 0
            await asyncio.wait_for(asyncio.gather(*tasks), LONG)

    run(main())
    assert [receiver.recv(9), receiver.recv(9)] == [b"due", b"next"]


def test_lines_of_tc_change_a_link(receiver):
    link = onramp.Link(HERE, qdisc="netem delay 200s")
    link.try_send(receiver.getsockname(), [b"x"] * 3)
    with pytest.raises(ValueError, match="fqq"):
        link.tc("qdisc replace root fqq")
    with pytest.raises(ValueError, match="nothing comes in"):
        link.tc("qdisc add ingress")
        link.tc("filter add ingress matchall action drop")
    link.tc("qdisc replace root pfifo")
    assert link.stats()["dropped"] == {"purged": 3}


def test_errors_are_those_of_the_system_or_of_values(receiver):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(HERE)
        with pytest.raises(OSError) as raised:
            onramp.Link(taken.getsockname())
    assert raised.value.errno == errno.EADDRINUSE and "choose another port" in str(raised.value)
    with pytest.raises(OSError) as raised:
        onramp.Link(("192.0.2.1", 0))
    assert raised.value.errno == errno.EADDRNOTAVAIL
    for arguments, text in [
        ({"local": ("localhost", 0)}, "local: \"localhost\" is no IP address"),
        ({"local": 7}, "local: expected (host, port)"),
        ({"qdisc": "fqq"}, 'qdisc: unexpected "fqq": expected a qdisc kind: pfifo, '),
        ({"rate": "fast"}, "such as 10mbit"),
        ({"credits": 0}, "credits is 0; expected 1 to 32768 packets"),
        ({"ports": 0}, "ports"),
        ({"credit_time": -1}, "credit_time: -1.0: expected seconds"),
        ({"credit_time": float("nan")}, "credit_time: NaN: expected seconds"),
        ({"local": ("127.0.0.1", 70_000)}, "local: the port number is 70000; expected 0 to 65535"),
        ({"qdisc": ""}, "qdisc: a qdisc is missing"),
    ]:
        with pytest.raises(ValueError) as wrong:
            onramp.Link(**arguments)
        assert text in str(wrong.value), wrong.value
    link = onramp.Link(HERE)
    dest = receiver.getsockname()
    with pytest.raises(OSError) as raised:
        link.try_send(dest, [bytes(65_508)])
    assert raised.value.errno == errno.EMSGSIZE
    assert "larger than a UDP datagram" in str(raised.value)
    for arguments, text in [
        ((("example.org", 1), [b""]), "dest: \"example.org\" is no IP address"),
        ((dest, [b""], {"ecn": 4}), "ecn: 4"),
        ((dest, [b""], {"pacing_rate": "x"}), "such as 10mbit"),
        ((dest, [b""], {"txtime": float("inf")}), "txtime: inf: expected seconds"),
        ((dest, [b""], {"txtime": 1e300}), "txtime: 1e300: expected seconds"),
        ((dest, [b""], {"pacing_rate": "x"}), "pacing_rate: "),
        ((("127.0.0.1", 70_000), [b""]), "dest: the port number is 70000; expected 1 to 65535"),
        ((("127.0.0.1", 0), [b""]), "dest: the port number is 0; expected 1 to 65535"),
        ((("::1", 9), [b""]), "dest: ::1 is an address of IPv6, but the link is bound to one of "),
    ]:
        *arguments, options = (*arguments, {}) if len(arguments) == 2 else arguments
        with pytest.raises(ValueError) as wrong:
            link.try_send(*arguments, **options)
        assert text in str(wrong.value)
    with pytest.raises(TypeError):
        link.try_send(dest, ["text"])
    assert link.stats()["submitted"] == 0


def test_ipv6_addresses_have_four_parts():
    try:
        link = onramp.Link(("::1", 0))
    except OSError as error:
        pytest.skip(f"no IPv6: {error}")
    local = link.local_addr()
    assert len(local) == 4 and local[0] == "::1"
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as here:
        here.bind(("::1", 0))
        here.settimeout(LONG)
        assert link.try_send(here.getsockname(), [b"six"]) == 1
        while link.in_flight():
            link.run()
        assert here.recvfrom(9) == (b"six", local)


def test_a_socket_receives_what_comes_to_the_link(receiver):
    async def main():
        loop = asyncio.get_running_loop()
        async with onramp.Link(HERE, ports=2) as server, onramp.Link(HERE) as client:
            with server.socket(1) as questions, client.socket() as answers:

                def answer():
                    data, source = questions.recvfrom(100)
                    server.try_send(source, [b"re: " + data])

                loop.add_reader(questions, answer)
                await client.send(server.local_addr(1), b"one")
                assert await loop.sock_recv(answers, 100) == b"re: one"
                loop.remove_reader(questions)
            # The sockets of the link are still open.
            await server.send(receiver.getsockname(), b"two")
            await server.flush()

    run(main())
    assert receiver.recv(9) == b"two"


def test_a_socket_is_a_duplicate_that_the_caller_closes():
    link = onramp.Link(HERE, ports=2)
    for port in (0, 1):
        with link.socket(port) as first, link.socket(port=port) as second:
            assert type(first) is socket.socket
            assert first.getsockname() == second.getsockname() == link.local_addr(port)
            assert (first.family, first.type) == (socket.AF_INET, socket.SOCK_DGRAM)
            assert first.fileno() != second.fileno()
            assert first.gettimeout() == 0 and not first.get_inheritable()
            with pytest.raises(BlockingIOError):
                first.recv(9)
    for port in (2, 1 << 40):
        with pytest.raises(ValueError, match=f"port: {port}: the link has no socket for it"):
            link.socket(port)
    with pytest.raises(OverflowError):
        link.socket(-1)
    with link.socket() as kept:
        address = link.local_addr()
        link.close()
        with pytest.raises(OSError, match="the link is closed") as raised:
            link.socket()
        assert raised.value.errno == errno.ESHUTDOWN
        del link
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            with pytest.raises(OSError) as raised:
                other.bind(address)
            assert raised.value.errno == errno.EADDRINUSE
            other.sendto(b"still", address)
        kept.settimeout(LONG)
        assert kept.recv(9) == b"still"


@pytest.mark.parametrize("size", [6, 5_000])
def test_a_server_answers_from_the_address_on_which_it_was_asked(receiver, size):
    async def main():
        loop = asyncio.get_running_loop()
        async with onramp.Link(("0.0.0.0", 0)) as link:
            with link.socket() as questions:
                questions.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
                port = link.local_addr()[1]
                # From anywhere else, the client gets no answer.
                receiver.connect(("127.0.0.9", port))
                receiver.send(b"a question")
                asked = loop.create_future()
                loop.add_reader(questions, lambda: asked.set_result(questions.recvmsg(100, 100)))
                data, control, _, client = await asked
                loop.remove_reader(questions)
            ((level, kind, told),) = control
            assert (data, level, kind) == (b"a question", socket.IPPROTO_IP, IP_PKTINFO)
            # The index of the interface, the local address, and the one in the header.
            source = socket.inet_ntoa(told[4:8])
            await link.send(client, bytes(size), source=source)
            await link.send_batch(client, [b"second", b"third"], source=source)
            await link.flush()
            return source

    assert run(main()) == "127.0.0.9"
    assert [receiver.recv(9_000) for _ in range(3)] == [bytes(size), b"second", b"third"]


def test_the_source_of_datagrams_of_ipv6(receiver):
    try:
        link = onramp.Link(("::", 0))
    except OSError as error:
        pytest.skip(f"no IPv6: {error}")
    port = receiver.getsockname()[1]
    for source in ("127.0.0.9", "::ffff:127.0.0.9"):
        assert link.try_send(("::ffff:127.0.0.1", port), [b"four"], source=source) == 1
        assert receiver.recvfrom(9) == (b"four", ("127.0.0.9", link.local_addr()[1]))
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as here:
        here.bind(("::1", 0))
        here.settimeout(LONG)
        assert link.try_send(here.getsockname(), [b"six"], source="::1") == 1
        assert here.recvfrom(9)[1][:2] == ("::1", link.local_addr()[1])


def test_wrong_sources(receiver):
    link, dest = onramp.Link(("0.0.0.0", 0)), receiver.getsockname()
    for given, to, text in [
        ("localhost", dest, 'source: "localhost" is no IP address; expected one of this machine'),
        ("127.0.0.1:9", dest, 'source: "127.0.0.1:9" is no IP address'),
        ("", dest, 'source: "" is no IP address'),
        ("::1", dest, f"source: ::1 is an address of IPv6, but 127.0.0.1:{dest[1]} is one of IPv4"),
    ]:
        with pytest.raises(ValueError) as wrong:
            link.try_send(to, [b"x"], source=given)
        assert text in str(wrong.value), wrong.value
    # Only the kernel knows that this address is not of this machine (RFC 5737).
    assert link.try_send(dest, [b"x"], source="192.0.2.1") == 1
    while link.in_flight():
        link.run()
    ((reason, count),) = link.stats()["dropped"].items()
    assert reason in ("device_error", "unreachable") and count == 1
    assert link.try_send(dest, [b"y"], source="127.0.0.1") == 1
    assert receiver.recv(9) == b"y"


SOURCES = """
import errno, onramp
link = onramp.Link(qdisc="blackhole")
def send(number):
    source = f"127.1.{number // 256}.{number % 256}"
    assert link.try_send(("127.0.0.1", 9), [b"x"], source=source) == 1
for number in range(32_767):
    send(number)
send(7)
try:
    send(32_767)
except OSError as error:
    assert error.errno == errno.EDQUOT and "32767 sources" in str(error), error
else:
    raise AssertionError("one source too many")
"""


def test_a_process_may_name_so_many_sources():
    """It is another process, because this one would have none left."""
    command = [sys.executable, "-c", SOURCES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, done.stderr


def test_another_thread_is_refused(receiver):
    link = onramp.Link(HERE)
    found = []

    def use():
        calls = (link.run, link.stats, link.in_flight, link.fileno, link.shut, link.completions)
        for call in (*calls, link.socket):
            with pytest.raises(RuntimeError, match="belongs to the thread"):
                call()
            found.append(call)

    other = threading.Thread(target=use)
    other.start()
    other.join()
    assert len(found) == 7 and link.stats()["sent"] == 0


def test_a_close_by_another_thread_changes_nothing(receiver):
    async def main():
        link = onramp.Link(HERE)
        loop = asyncio.get_running_loop()
        for data in (b"1", b"2"):
            # The first time, no loop does the work of the link yet.
            with pytest.raises(RuntimeError, match="belongs to the thread"):
                await loop.run_in_executor(None, link.close)
            await link.send(receiver.getsockname(), data)
            await link.flush()
        assert link.close() == 0

    run(main())
    assert [receiver.recv(9), receiver.recv(9)] == [b"1", b"2"]


def test_another_loop_is_refused_while_the_first_exists(receiver):
    link = onramp.Link(HERE)
    dest = receiver.getsockname()
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    first.run_until_complete(link.send(dest, b"1"))
    with pytest.raises(RuntimeError, match="another event loop"):
        second.run_until_complete(link.send(dest, b"2"))
    first.close()
    second.run_until_complete(link.send(dest, b"3"))
    second.run_until_complete(link.aclose())
    second.close()
    assert [receiver.recv(9), receiver.recv(9)] == [b"1", b"3"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused(receiver):
    link = onramp.Link(HERE)
    child = os.fork()
    if child == 0:
        try:
            link.run()
        except RuntimeError as error:
            os._exit(0 if "before a fork" in str(error) else 2)
        finally:
            os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert link.try_send(receiver.getsockname(), [b"x"]) == 1


END = """
import asyncio, onramp
link = onramp.Link(("127.0.0.1", 0), qdisc="netem delay 200s")
async def main():
    await link.send(("127.0.0.1", 9), b"x")
    {rest}
{start}
"""


@pytest.mark.parametrize(
    ("start", "rest"),
    [
        ("asyncio.run(main())", "pass"),
        ("asyncio.run(main()); link.fileno()", "pass"),
        ("loop = asyncio.new_event_loop(); loop.run_until_complete(main())", "pass"),
        ("link.try_send(('127.0.0.1', 9), [b'x'])", "pass"),
        ("asyncio.run(main())", "asyncio.ensure_future(link.flush())"),
    ],
)
def test_programs_end_with_a_live_link(start, rest):
    code = END.format(start=start, rest=rest)
    command = [sys.executable, "-X", "faulthandler", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0 and "rror" not in done.stderr, done.stderr
