"""Snapshots of networks: the same row twice, every network is valid, a change of code or of a number is seen."""

import json
import math
import struct

import msgspec
import pytest

pytest.importorskip("onnx", reason="the networks are ONNX models")

import onnx

from bench import networks, snapshot, snapshot_networks
from bench.snapshot_networks import NetworkCase


@pytest.mark.parametrize("name", networks.NETWORKS)
def test_networks_are_valid_and_always_the_same(name):
    model = networks.NETWORKS[name]()
    onnx.checker.check_model(model, full_check=True)
    assert model.SerializeToString(deterministic=True) == networks.NETWORKS[name]().SerializeToString(
        deterministic=True
    )


def test_every_network_has_a_row_on_a_cpu_and_some_on_gpus():
    keys = [case.key for case in snapshot_networks.cases("host")]
    assert keys[: len(networks.NETWORKS)] == [f"network {name} host float32" for name in networks.NETWORKS]
    assert {key.split()[2] for key in keys} == {"host", "h100", "mi300x", "rtx3090"}
    assert len(set(keys)) == len(keys)


def test_sections_are_those_of_the_library_without_hashes_of_sources():
    header = bytearray(64)
    header[:6] = b"\x7fELF\x02\x01"
    names = b"\0.text\0.names\0"
    symbols = [b"anatune_" + letter * 32 + b" code" for letter in (b"a", b"b")]
    tables = []
    for symbol in symbols:
        start = 64 + len(symbol) + len(names)
        sections = [(0,) * 6, (1, 1, 6, 0, 64, len(symbol)), (7, 3, 0, 0, 64 + len(symbol), len(names))]
        table = b"".join(struct.pack("<IIQQQQ16x8x", *section) for section in sections)
        header[40:48], header[58:64] = struct.pack("<Q", start), struct.pack("<3H", 64, 3, 2)
        tables.append(snapshot_networks.sections(bytes(header) + symbol + names + table))
    assert tables[0] == tables[1] == {".text": b"anatune_" + b"0" * 32 + b" code"}
    with pytest.raises(ValueError, match="ELF"):
        snapshot_networks.sections(b"MZ")


def write_product():
    """Return a network of one product."""
    net = networks._Network(0)
    return net.model({"x": ("float32", [8, 16])}, net.op("Relu", net.linear("x", 16, 32)))


def test_a_network_has_the_same_row_twice_and_what_changed_is_named(tmp_path, monkeypatch, capsys):
    pytest.importorskip("tvm", reason="networks are compiled by TVM")
    monkeypatch.setitem(networks.NETWORKS, "residual", write_product)
    monkeypatch.setenv("ANATUNE_CACHE", "")  # `main` turns caches off
    paths = [tmp_path / f"{name}.jsonl" for name in ("first", "second")]
    for path in paths:
        assert snapshot.main(["write", str(path), "--networks", "--hw", "host", "--part", "0/100"]) == 0
    (row,) = [json.loads(line) for line in paths[0].read_text().splitlines()]
    assert list(row) == ["key", "kernels", "operators", "time", "memory", "tensors", "code", "outputs"]
    assert snapshot.main(["compare", *map(str, paths)]) == 0

    fields_of = snapshot_networks.fields_of

    def fields_with_another_time(model):
        (kernel,) = model.summary.kernels
        slower = msgspec.structs.replace(kernel, predicted_s=math.nextafter(kernel.predicted_s, 1.0))
        model.summary = msgspec.structs.replace(model.summary, kernels=(slower,))
        return fields_of(model)

    monkeypatch.setattr(snapshot_networks, "fields_of", fields_with_another_time)
    assert snapshot.main(["write", str(paths[1]), "--networks", "--hw", "host", "--part", "0/100"]) == 0
    capsys.readouterr()
    assert snapshot.main(["compare", *map(str, paths)]) == 1
    assert capsys.readouterr().out.splitlines()[0] == "network residual host float32: kernels, time"


def test_a_network_that_cannot_be_compiled_has_its_error():
    row = snapshot_networks.row_of_network(NetworkCase("residual", "no_such_device"))
    assert set(row) == {"key", "error"}
