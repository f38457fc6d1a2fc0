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
from tests.wording import refuses


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


def write_library(hashed, sizes):
    """Return an ELF library of a function of sizes and another one, in code that holds a hash."""
    text = sizes + b"anatune_" + hashed * 32
    names = b"\0.text\0.names\0.dynsym\0.dynstr\0"
    strings = b"\0__tvm_ffi_shape_func\0__tvm_ffi_main\0"
    entries = ((strings.index(b"__tvm_ffi_shape"), 8), (strings.index(b"__tvm_ffi_main"), 8 + len(sizes)))
    symbols = b"".join(struct.pack("<IBBHQQ", name, 18, 0, 1, value, 0) for name, value in entries)
    contents = (
        (b".text", 1, 6, text),
        (b".names", 3, 0, names),
        (b".dynsym", 11, 2, symbols),
        (b".dynstr", 3, 2, strings),
    )
    body, table = b"", bytes(64)
    for name, kind, flags, content in contents:
        start = 64 + len(body)
        table += struct.pack("<IIQQQQ16x8x", names.index(name), kind, flags, 8, start, len(content))
        body += content
    header = bytearray(64)
    header[:6], header[40:48] = b"\x7fELF\x02\x01", struct.pack("<Q", 64 + len(body))
    header[58:64] = struct.pack("<3H", 64, 1 + len(contents), 2)
    return bytes(header) + body + table


def test_sections_leave_out_hashes_of_sources_and_the_function_of_sizes():
    wanted = {".text": bytes(4) + b"anatune_" + b"0" * 32}
    assert snapshot_networks.sections(write_library(b"a", b"abcd")) == wanted
    assert snapshot_networks.sections(write_library(b"b", b"dcba")) == wanted
    with refuses(ValueError):
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
