"""A link for asyncio."""

from __future__ import annotations

import asyncio
import errno
from typing import Callable, Dict, Optional, Sequence, Tuple, Union

from . import _native

__all__ = ["Link"]

Address = Union[Tuple[str, int], Tuple[str, int, int, int]]
Data = Union[bytes, bytearray, memoryview]

# How many payloads one native call gets at least and at most, as long as there are so many. The
# call converts all that it gets, also those for which the link has no room.
FEWEST, MOST = 16, 256

# After how many payloads other tasks run, also if the link has room for all.
UNBROKEN = 64


class _Flow(asyncio.Lock):
    """The lock that a task holds for as long as it sends a batch on a flow."""

    # How many tasks hold the lock or wait for it.
    users = 0


class Link(_native.Link):
    """A link over UDP sockets, whose datagrams leave through a tree of qdiscs.

    ``local`` is the address to which the sockets are bound (None: any), ``qdisc`` one qdisc or
    lines of tc, as ``Tree`` takes them (None: ``fq``), ``ports`` the number of sockets, each with a
    tree of its own, ``rate`` a rate that all ports together may not exceed, ``mtu`` the size of the
    largest packet in bytes, ``credits`` how many payloads, of any size, may be in the link at a
    time (None: 96, and of these no more than have 1 MiB together), ``credit_time`` for how many
    seconds they may wait there, about, at any rate (None: for as long as they need; 0.001 to 0.01
    are good values), ``completions`` whether the program wants to know what became of each of them
    (``link.completions()``), ``seed`` that of random choices.

    The link has no thread. In an asyncio program, the event loop in which the first datagram was
    sent does its work. Any other program calls ``run`` whenever ``fileno()`` is readable, and sends
    by ``try_send``. A link belongs to the thread and to the process that made it: elsewhere its
    methods raise ``RuntimeError``. When the program ends, the datagrams in the link are lost, so
    end with ``await link.aclose()``, or use ``async with``.

    Errors of the system are ``OSError``, with the number in ``errno``; wrong arguments are
    ``ValueError``, or ``OverflowError`` for numbers that do not fit at all, such as negative ones.

    >>> import asyncio, socket, onramp
    >>> receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    >>> receiver.bind(("127.0.0.1", 0))
    >>> async def main():
    ...     async with onramp.Link(("127.0.0.1", 0), qdisc="fq maxrate 8mbit") as link:
    ...         for number in range(3):
    ...             await link.send(receiver.getsockname(), b"datagram %d" % number)
    ...         await link.flush()
    ...         return link.stats()["sent"]
    >>> asyncio.run(main())
    3
    >>> [receiver.recv(100) for _ in range(3)]
    [b'datagram 0', b'datagram 1', b'datagram 2']
    >>> receiver.close()
    """

    _loop: Optional[asyncio.AbstractEventLoop] = None
    # The flows on which tasks send and may have to wait, by their keys.
    _flows: Dict[int, _Flow]
    # A task has the turn while it gives a piece of its batch to the link.
    _turn: asyncio.Lock
    _round: Optional[asyncio.Future[None]] = None
    # How many payloads were sent since other tasks could run.
    _since = 0
    _closed = False

    def _attach(self) -> None:
        """Has the running loop do the work of the link."""
        if self._closed:
            raise OSError(errno.ESHUTDOWN, "the link is closed")
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError("the link belongs to another event loop, which still exists")
        loop.add_reader(self.fileno(), self.run)
        self._loop, self._flows, self._turn, self._round = loop, {}, asyncio.Lock(), None

    def _detach(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self.fileno())
        self._loop = None

    def run(self) -> Optional[float]:
        """Sends the datagrams whose time has come. Call it when ``fileno()`` is readable.

        Returns how many seconds later to call it again, which the descriptor tells too; None if
        nothing is left to do until the program sends again. In an asyncio program, the event loop
        calls it; the program may call it, too.
        """
        later = super().run()
        self._end_round()
        return later

    def _end_round(self) -> None:
        """Wakes all tasks that wait for a round."""
        ended, self._round = self._round, None
        if ended is not None and not ended.done():
            ended.set_result(None)

    async def _next_round(self) -> None:
        """Waits until datagrams have left, or the link was closed."""
        if self._round is None:
            self._round = asyncio.get_running_loop().create_future()
        # Several tasks wait for one future, which the cancellation of one of them must not cancel.
        await asyncio.shield(self._round)

    async def _let_others_run(self) -> None:
        """Has the loop run other tasks and timeouts, if many payloads were sent meanwhile."""
        if self._since >= UNBROKEN:
            self._since = 0
            await asyncio.sleep(0)

    async def send(
        self,
        dest: Address,
        data: Data,
        *,
        flow: Optional[int] = None,
        priority: int = 0,
        mark: int = 0,
        ecn: int = 0,
        pacing_rate: Optional[str] = None,
        segment: int = 0,
        txtime: Optional[float] = None,
        cookie: int = 0,
        source: Optional[str] = None,
    ) -> None:
        """Gives a datagram to the link. Waits while the link has no room. Other tasks run after
        every 64 datagrams, also if it has room.

        ``dest`` is the address of the receiver: an IP address and a port. ``data`` is any object
        with the buffer protocol; ``bytes`` cost least. ``flow`` is the key of the flow; None: all
        datagrams to one destination are one flow. Qdiscs treat the flows fairly, and keep the order
        of each. ``priority``, ``mark`` and ``ecn`` are those of the packet, and ``pacing_rate`` the
        rate to which ``fq`` paces the flow, such as ``"2mbit"``. With ``segment``, ``data`` is
        several datagrams of so many bytes each, the last one of the rest; qdiscs see them as one
        packet. ``fq`` and ``etf`` hold a datagram back until ``txtime``, in seconds of
        ``time.monotonic()``. ``cookie`` is a number by which the program recognises the datagram's
        completion. ``source`` is the IP address from which the datagram leaves, one of this
        machine; None: the address to which the link is bound, or that the system chooses. A server
        that is bound to no address names in it the address on which it was asked. The kernel
        refuses an address that is not of this machine: the datagram counts as dropped
        (``device_error``, ``unreachable``).

        A task that is cancelled meanwhile has sent nothing. Raises ``OSError``: ``EMSGSIZE`` if no
        datagram can be so large, ``ESHUTDOWN`` if the link is closed, ``EIO`` if its port is dead,
        ``ENOBUFS`` if 65,536 completions wait, ``EDQUOT`` if the process has named 32,767 other
        sources.
        """
        await self.send_batch(
            dest,
            (data,),
            flow=flow,
            priority=priority,
            mark=mark,
            ecn=ecn,
            pacing_rate=pacing_rate,
            segment=segment,
            txtime=txtime,
            cookie=cookie,
            source=source,
        )

    async def send_batch(
        self,
        dest: Address,
        payloads: Sequence[Data],
        *,
        flow: Optional[int] = None,
        priority: int = 0,
        mark: int = 0,
        ecn: int = 0,
        pacing_rate: Optional[str] = None,
        segment: int = 0,
        txtime: Optional[float] = None,
        cookie: int = 0,
        source: Optional[str] = None,
    ) -> None:
        """Gives datagrams of one flow to the link, as ``send`` does, at less cost for each. The
        link gets up to 256 of them at a time, and other tasks run in between.

        What tasks send on one flow does not mix: a task that calls later waits until the batch has
        ended. Tasks that send on different flows take turns while the link has no room, in the
        order in which they asked for them, and give the link one datagram or more in each turn. So
        the tasks of other flows need not wait until a batch on a slow flow has ended. A task that
        is cancelled or gets an exception meanwhile may have sent the first of the datagrams.
        """
        self._attach()

        def give(piece: Sequence[Data]) -> int:
            return self.try_send(
                dest,
                piece,
                flow=flow,
                priority=priority,
                mark=mark,
                ecn=ecn,
                pacing_rate=pacing_rate,
                segment=segment,
                txtime=txtime,
                cookie=cookie,
                source=source,
            )

        all_of_them, done = list(payloads), 0
        if not self._flows and self._since < UNBROKEN:
            # No task waits, so this one needs no lock as long as the link has room.
            done = give(all_of_them[:MOST])
            self._since += done
            if done == len(all_of_them):
                return
        # Another loop, to which the link may belong later, has other flows.
        key, flows = self._flow_key(dest, flow), self._flows
        lock = flows.get(key)
        if lock is None:
            lock = flows[key] = _Flow()
        lock.users += 1
        try:
            async with lock:
                await self._in_turns(give, all_of_them[done:])
        finally:
            lock.users -= 1
            if lock.users == 0:
                del flows[key]

    async def _in_turns(
        self, give: Callable[[Sequence[Data]], int], payloads: Sequence[Data]
    ) -> None:
        """Gives payloads to the link, piece by piece, each piece in a turn of its own."""
        done, size = 0, MOST
        while done < len(payloads):
            sent = 0
            # Tasks get the turn in the order in which they asked for it. So a task of another flow
            # that waits for it gets the room that is free after this piece.
            async with self._turn:
                while not sent:
                    # Before the call, because a cancelled task must not have sent what it was
                    # about to.
                    await self._let_others_run()
                    sent = give(payloads[done : done + size])
                    # The link probably has room for about as many the next time.
                    size = min(max(FEWEST, 2 * sent), MOST)
                    if not sent:
                        await self._next_round()
            done += sent
            self._since += sent

    async def flush(self) -> None:
        """Waits until the link has sent or dropped every datagram, or is closed."""
        while not self._closed and self.in_flight() > 0:
            self._attach()
            await self._next_round()

    def close(self) -> int:
        """Closes the link at once. Returns how many datagrams it dropped (``purged``)."""
        # In another thread this raises, and the link stays as it is.
        purged = self.shut()
        self._closed = True
        self._detach()
        self._end_round()
        return purged

    async def aclose(self, timeout: Optional[float] = 1.0) -> int:
        """Waits until the link is empty, at most ``timeout`` seconds (None: without end), and
        closes it, also if the task is cancelled. Returns how many datagrams it dropped
        (``purged``)."""
        try:
            await asyncio.wait_for(self.flush(), timeout)
        except asyncio.TimeoutError:
            pass
        except BaseException:
            self.close()
            raise
        return self.close()

    async def __aenter__(self) -> Link:
        self._attach()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()
