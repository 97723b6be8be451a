"""Captures as arrays."""

import errno

import numpy as np
import onramp
import pytest


def test_columns_are_those_of_the_packets(pcap, traffic):
    capture = onramp.read_pcap(pcap)
    assert capture.times_ns.tolist() == traffic["times"].tolist()
    assert capture.lengths.tolist() == traffic["lengths"].tolist()
    assert capture.ecn.tolist() == (traffic["tos"] & 3).tolist()
    priority = {0: 0, 2: 0, 0x10: 6, 0xB8: 4}
    assert capture.priority.tolist() == [priority[tos] for tos in traffic["tos"].tolist()]
    types = ["int64", "uint32", "uint64", "uint8", "uint32"]
    columns = [
        capture.times_ns, capture.lengths, capture.flows, capture.ecn, capture.priority
    ]
    assert [str(column.dtype) for column in columns] == types
    assert len(capture) == len(columns[0]) and (capture.out_of_order, capture.not_ip) == (0, 0)
    assert capture.first_unix_ns == 5_000_000_000
    assert repr(capture) == "<Capture of 6000 packets of 30 flows>"


def test_flows_are_told_apart_and_have_names(pcap, traffic):
    capture = onramp.read_pcap(pcap)
    for port in range(1, 31):
        (key,) = np.unique(capture.flows[traffic["ports"] == port])
        assert capture.flow_names[int(key)] == f"udp 10.0.0.1:{port} > 10.0.0.2:9"
    assert len(capture.flow_names) == 30


def test_wrong_files_say_what_is_wrong(pcap, tmp_path):
    calls = [onramp.read_pcap, onramp.Tree("fq").replay_pcap]
    whole = pcap.read_bytes()
    for name, content, text in [
        ("text", b"no capture", "neither a pcap nor a pcapng capture"),
        ("empty", b"", "is empty"),
        ("cut", whole[:-3], "at byte "),
        ("gz", b"\x1f\x8b" + bytes(30), "is compressed"),
    ]:
        path = tmp_path / name
        path.write_bytes(content)
        for call in calls:
            with pytest.raises(ValueError) as raised:
                call(path)
            assert text in str(raised.value) and name in str(raised.value), raised.value
    for call in calls:
        with pytest.raises(FileNotFoundError) as missing:
            call(tmp_path / "none")
        assert missing.value.errno == errno.ENOENT and "check the path" in str(missing.value)


def test_a_broken_capture_leaves_the_tree_as_it_was(pcap, tmp_path):
    path = tmp_path / "cut"
    path.write_bytes(pcap.read_bytes()[:-3])
    tree = onramp.Tree("pfifo")
    tree.enqueue(5, 60)
    with pytest.raises(ValueError, match="cut off"):
        tree.replay_pcap(path)
    assert len(tree) == 1 and tree.now == 5
