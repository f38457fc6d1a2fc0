"""State of models for matrix units: caches that stay on the device, sums, what becomes what."""

import copy
import pickle

import numpy as np
import pytest

pytest.importorskip("tvm", reason="operators are written as loops by TVM")
pytest.importorskip("triton", reason="kernels are compiled by Triton")
pytest.importorskip("torch", reason="the models are PyTorch's")

import torch

from anatune.errors import RunError, WorkloadError
from anatune.network.compiling.targets import launched
from tests.concurrency import at_once
from tests.tiers import slow_from
from tests.unit.measure.cuda.test_dlpack import OnDevice
from tests.unit.network.compiling.targets.gpu_models import decoder, interpreted_device, machine_code, written
from tests.wording import refuses

nn = torch.nn


@pytest.mark.slow
@pytest.mark.parametrize(("hw", "tokens"), slow_from(1, [("h100", 1), ("mi300x", 3)]))
def test_caches_stay_on_the_device(hw, tokens):
    model, own = decoder(tokens=tokens, hw=hw)
    assert own.summary.launches <= 18 + 2 + 2  # at both ends 16 bits are made or left; tables are read once
    assert [one.after for one in own.summary.state] == [f"past_0_2 + {tokens}"] * 4
    x = torch.randn(2, 3 * tokens, 64)
    for step in range(3):
        got = own(x[:, step * tokens : (step + 1) * tokens].numpy())
        want = model(x[:, : (step + 1) * tokens])[:, -tokens:].detach().numpy()
        assert np.abs(got - want).max() / np.abs(want).max() < 2e-2
    kept = own.state
    assert kept["past_0"].shape == (2, 2, 3 * tokens, 16)
    own.reset()
    assert own.state["past_0"].shape == (2, 2, 0, 16)
    own.state = {name: array[:, :, :tokens] for name, array in kept.items()}
    np.testing.assert_array_equal(own(x[:, tokens : 2 * tokens].numpy()).shape, (2, tokens, 64))
    np.testing.assert_array_equal(own.state["past_1"], kept["past_1"][:, :, : 2 * tokens])
    own.state = {name: np.zeros((2, 2, 20, 16), np.float32) for name in kept}
    with refuses(RunError):
        own(x[:, :tokens].numpy())


@pytest.fixture
def on_device(monkeypatch):
    """A decoder and a device that runs it."""
    model, own = decoder()
    monkeypatch.setattr(own, "interprets", False)
    device, _ = interpreted_device(own.program)
    monkeypatch.setattr(launched, "open_device", lambda **_: device)
    return model, own, device


@pytest.mark.slow
def test_caches_stay_on_a_device_that_runs_them(on_device):
    model, own, _ = on_device
    x = torch.randn(2, 2, 64)
    for step in range(2):
        got = own(x[:, step : step + 1].numpy())
    want = model(x)[:, -1:].detach().numpy()
    assert np.abs(got - want).max() / np.abs(want).max() < 2e-2
    assert own.state["past_3"].shape == (2, 2, 2, 16)
    own.reset()
    np.testing.assert_allclose(own(x[:, :1].numpy()), model(x[:, :1]).detach().numpy(), atol=0.05)


@pytest.mark.slow
def test_sizes_that_vary_beside_a_state_are_refused():
    with refuses(WorkloadError):
        decoder(tokens="1..4")


def test_sums_that_stay_keep_their_dtype():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.full((4,), 1000.0))

        def forward(self, x):
            self.count += x
            return self.count * 2

    own = written(Counter().eval(), (torch.zeros(4),))
    own.interprets = True
    for calls in (1, 2, 3):
        np.testing.assert_array_equal(own(np.ones(4, np.float32)), np.full(4, 2000.0 + 2 * calls))
    own.reset()
    own.prepared(np.ones(4, np.float32))()
    np.testing.assert_array_equal(own(np.ones(4, np.float32)), np.full(4, 2002.0))
    with refuses(WorkloadError):
        written(Counter().eval(), (torch.zeros(4),), precision=None)


def test_tensors_on_the_device_are_not_copied(on_device):
    model, own, device = on_device
    x = torch.randn(2, 2, 64)
    for step in range(2):
        given, made = (device.allocate(2 * 64 * 4) for _ in range(2))
        device.upload(given, x[:, step].numpy())
        own.launch(*(OnDevice(buffer.address, (2, 1, 64), (2, 32)) for buffer in (given, made)))
        got = np.empty((2, 1, 64), np.float32)
        device.download(made, got)
    want = model(x)[:, -1:].detach().numpy()
    assert np.abs(got - want).max() / np.abs(want).max() < 2e-2
    with refuses(RunError):
        own.launch(x)
    with refuses(RunError):
        own.launch(x, x)


def test_parts_of_a_state_may_become_each_other():
    class Delay(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("last", torch.zeros(4))
            self.register_buffer("before", torch.ones(4))

        def forward(self, x):
            made = x - self.before
            self.before.copy_(self.last)
            self.last.copy_(x)
            return made

    own = written(Delay().eval(), (torch.zeros(4),))
    own.interprets = True
    given = [np.full(4, float(number), np.float32) for number in (5, 7, 11, 13)]
    for x, before in zip(given, (1.0, 0.0, 5.0, 7.0), strict=True):
        np.testing.assert_array_equal(own(x), x - before)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_begin_with_the_state_and_threads_take_turns(how):
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(4))

        def forward(self, x):
            self.total.add_(x)
            return self.total + 0

    own = written(Sum().eval(), (torch.zeros(4),))
    own.interprets = True
    own(np.full(4, 2.0, np.float32))
    other = how(own)
    assert other.interprets
    totals = at_once(lambda _: float(other(np.ones(4, np.float32))[0]), 3)
    assert sorted(totals) == [3.0, 4.0, 5.0]
    np.testing.assert_array_equal(own(np.ones(4, np.float32)), 3.0)


@pytest.mark.slow
def test_timing_leaves_the_state_as_it_is(monkeypatch):
    _, own = decoder()
    x = np.zeros((2, 1, 64), np.float32)
    own(x)
    kept = own.state
    device, _ = interpreted_device(own.program)
    monkeypatch.setattr(launched, "open_device", lambda **_: device)
    own.interprets = False
    assert set(own.profile(x, repeats=1)) == {launch.name for launch in own.program.launches}
    own.prepared(x)()
    for name, array in own.state.items():
        np.testing.assert_array_equal(array, kept[name])
    own.interprets = True
    own.state = {name: torch.zeros(2, 2, 20, 16) for name in kept}
    with refuses(RunError):
        own.prepared(x)
    with refuses(RunError):
        own(torch.zeros(2, 1, 64, device="meta"))


@pytest.mark.slow
def test_windows_and_prompts_beside_a_cache():
    model, own = decoder(most=40, window=12)
    x = torch.randn(2, 15, 64)
    for step in range(15):
        got = own(x[:, step : step + 1].numpy())
    want = model(x)[:, -1:].detach().numpy()
    assert np.abs(got - want).max() / np.abs(want).max() < 2e-2
    assert sum("--window 12" in kernel.workload for kernel in own.summary.kernels) == 1
    model, own = decoder(tokens=20)
    x = torch.randn(2, 20, 64)
    want = model(x).detach().numpy()
    assert np.abs(own(x.numpy()) - want).max() / np.abs(want).max() < 2e-2
    with refuses(WorkloadError):
        decoder(tokens=21)


@pytest.mark.slow
def test_texts_with_caches_are_compiled():
    models = [decoder()[1], decoder(tokens=3, hw="mi300x")[1], decoder(most=40, window=12)[1], decoder(tokens=20)[1]]
    assert all(one.image[:4] == b"\x7fELF" for one in machine_code(models))
