"""What several tests need: the program ``onramp``, and captures."""

import os
import pathlib
import struct
import subprocess

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def program():
    """Returns a function that runs the program ``onramp`` and returns its standard output."""
    names = [os.environ.get("ONRAMP"), ROOT / "target/debug/onramp", ROOT / "target/release/onramp"]
    found = [name for name in names if name and pathlib.Path(name).exists()]
    if not found:
        text = "the program onramp is not built: cargo build, or set ONRAMP to its path"
        if os.environ.get("CI"):
            pytest.fail(text)
        pytest.skip(text)

    def run(*words):
        command = [found[0], *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def frame(length, port, tos):
    """Returns the first bytes of an Ethernet frame of ``length`` bytes with a UDP datagram."""
    udp = struct.pack(">HHHH", port, 9, length - 34, 0)
    ip = struct.pack(
        ">BBHHHBBH4s4s", 0x45, tos, length - 14, 0, 0, 64, 17, 0, b"\x0a\0\0\1", b"\x0a\0\0\2"
    )
    return (bytes(12) + b"\x08\0" + ip + udp)[:length]


@pytest.fixture(scope="session")
def traffic():
    """Returns random traffic of 30 flows that overloads a link of 10 Mbit/s now and then."""
    draw = np.random.default_rng(7)
    count = 6_000
    gaps = draw.exponential(600_000, count) * draw.choice([0.1, 2.0], count)
    times = np.cumsum(gaps).astype(np.int64)
    return {
        "times": times - times[0],
        "lengths": draw.integers(60, 1515, count).astype(np.uint32),
        "ports": draw.integers(1, 31, count),
        "tos": draw.choice([0, 2, 0x10, 0xB8], count),
    }


@pytest.fixture(scope="session")
def pcap(traffic, tmp_path_factory):
    """Returns the path of a capture of ``traffic``, with times in nanoseconds."""
    path = tmp_path_factory.mktemp("captures") / "traffic.pcap"
    with path.open("wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1))
        columns = (traffic[name].tolist() for name in ("times", "lengths", "ports", "tos"))
        for time, length, port, tos in zip(*columns):
            second, nanosecond = divmod(time + 5_000_000_000, 1_000_000_000)
            data = frame(length, port, tos)
            out.write(struct.pack("<IIII", second, nanosecond, len(data), length) + data)
    return path
