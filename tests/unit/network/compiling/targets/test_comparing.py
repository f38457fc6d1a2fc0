"""Models predicted on several devices, at one size or by a size that varies: numbers, tables, pages."""

import pytest

pytest.importorskip("tvm", reason="operators are written as loops by TVM")
pytest.importorskip("torch", reason="the models are PyTorch's")

import torch

import anatune
from anatune import api
from anatune.errors import SpaceError
from anatune.network.comparison_report import comparison_dict, comparison_lines, curves_of
from anatune.network.compiling.targets import cpu, triton
from anatune.network.relax import frontends
from anatune.network.relax.device import stubs
from anatune.report.text import join_lines
from tests.unit.network.compiling.targets.gpu_models import LlamaLayers
from tests.wording import refuses

nn = torch.nn
MODEL = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32)).eval()
BATCH = {0: torch.export.Dim("batch", min=1, max=4096)}


def compared(**more):
    given = {"hw": ["h100", "mi300x"], "precision": "bfloat16", "dynamic_shapes": (BATCH,), **more}
    return anatune.compare(MODEL, torch.zeros(3, 64), **given)


@pytest.fixture(scope="module")
def curves():
    return compared(sizes={"input_0": "3..20"})


def test_a_size_that_varies_is_one_curve_a_device(curves):
    name, found = curves_of(curves)
    assert name == "input_0"
    assert list(found) == [3, 4, 8, 16, 20]
    assert all([one.hardware for one in own] == ["h100_sxm", "mi300x"] for own in found.values())
    (alone, _) = compared(sizes={"input_0": 8})
    assert found[8][0].whole_s == alone.whole_s
    told = comparison_dict(curves, {"h100_sxm": 3.6})
    assert told[0]["sizes"] == {"input_0": 3}
    assert told[0]["per_million_runs"] == pytest.approx(1e3 * curves[0].whole_s)
    assert told[1]["per_million_runs"] is None


def test_tables_have_a_row_for_each_size(curves):
    text = join_lines(comparison_lines(curves, {"mi300x": 2.0}, width=100))
    rows = [line.split() for line in text.splitlines()]
    assert [row[0] for row in rows if row[-1] in ("h100_sxm", "mi300x") and row[0].isdigit()] == [
        "3",
        "4",
        "8",
        "16",
        "20",
    ]
    assert "what a million runs cost" in text
    (one, other) = compared(sizes={"input_0": 8})
    assert "h100_sxm" in join_lines(comparison_lines([one, other], {}, width=100))


@pytest.mark.parametrize("sizes", ["3..20", 8])
def test_they_are_a_page(sizes, curves):
    pytest.importorskip("plotly", reason="pages have figures")
    from anatune.network.pages.comparison import comparison_page

    found = curves if sizes == "3..20" else compared(sizes={"input_0": sizes})
    text = comparison_page(found, {"h100_sxm": 2.0}, "a model").html()
    assert "a model on 2 devices" in text
    assert "matmul" in text


def compared_two(model, names):
    inputs = torch.zeros(3, 8), torch.zeros(4, 8)
    return anatune.compare(model, inputs, hw=["h100"], precision="bfloat16", dynamic_shapes=names)


def test_what_is_told_and_refused():
    told = []
    compared(sizes={"input_0": 8}, progress=lambda *now: told.append(now))
    assert told == [(0, 2), (1, 2)]
    assert [one.hardware for one in compared(hw="h100", sizes={"input_0": 8})] == ["h100_sxm"]
    for hw in ([], ["h100", "h100_sxm"]):
        with refuses(SpaceError):
            compared(hw=hw, sizes={"input_0": 8})
    several = nn.Bilinear(8, 8, 4).eval()

    class Two(nn.Module):
        def forward(self, x, y):
            return x.sum() + y.sum() + several.weight.sum()

    names = ({0: torch.export.Dim("a", min=1, max=9)}, {0: torch.export.Dim("b", min=1, max=9)})
    with refuses(SpaceError):
        anatune.compare(
            Two().eval(),
            (torch.zeros(3, 8), torch.zeros(4, 8)),
            hw=["h100"],
            precision="bfloat16",
            dynamic_shapes=names,
        )


def test_cpus_are_predicted_without_being_present():
    """Times of one and of four threads of a board; a GPU beside it takes 16 bits, or what it is told to."""
    (alone,) = compared(hw="raspberry_pi_5", precision=None, threads=1, sizes={"input_0": 512})
    (four,) = compared(hw="raspberry_pi_5", precision=None, sizes={"input_0": 512})
    assert (alone.device, alone.arch, alone.precision, alone.launches) == ("cpu", "cortex-a76", "float32", 0)
    assert (alone.threads, four.threads) == (1, 4)
    flop = 2 * 512 * (64 * 96 + 96 * 32)
    assert flop / anatune.hardware("raspberry_pi_5").compute.fp32_peak_flop_per_s < four.whole_s < alone.whole_s
    cpu, gpu = compared(hw=["raspberry_pi_5", "h100"], precision=None, threads=1, sizes={"input_0": 512})
    assert cpu == alone
    assert (gpu.precision, gpu.threads, gpu.launches > 0) == ("bfloat16", 1, True)
    cpu, gpu = compared(hw=["raspberry_pi_5", "h100"], precision="float16", sizes={"input_0": 512})
    assert (cpu.precision, gpu.precision) == ("float32", "float16")
    text = join_lines(comparison_lines([cpu, gpu], {}, width=160))
    assert "none of these times was measured" in text
    assert "float32 or float16" in text
    assert "between them" not in join_lines(comparison_lines([cpu], {}, width=160))
    assert [row["threads"] for row in comparison_dict([cpu, gpu], {})] == [4, None]


@pytest.mark.parametrize("given", [{"threads": 5}, {"precision": "int8"}, {"hw": ["h100"], "threads": 2}])
def test_what_cpus_do_not_have_is_refused(given):
    with refuses(SpaceError):
        compared(**{"hw": ["raspberry_pi_5"], "precision": "bfloat16", "sizes": {"input_0": 8}, **given})


def test_steps_behind_kernels_are_kernels_if_nothing_is_fused():
    model = nn.Sequential(nn.Conv2d(64, 64, 1), nn.ReLU(), nn.Flatten(2), nn.Linear(1024, 256), nn.GELU()).eval().half()
    images = torch.zeros(64, 64, 32, 32, dtype=torch.float16)
    (fused,), (divided,) = (anatune.compare(model, images, hw="h100", fused=choice) for choice in (True, False))
    steps = [kernel.workload.partition("--epilogue ")[2] for kernel in divided.kernels]
    assert steps == ["", "bias"]
    assert divided.launches > fused.launches
    assert divided.whole_s > fused.whole_s
    with refuses(SpaceError):
        anatune.compare(model, images, hw="h100", fused="no")


def calls_of(monkeypatch, owner, name):
    """Return the list to which the arguments of each call of a function are added from now on."""
    calls, function = [], getattr(owner, name)

    def count_call(*given, **named):
        calls.append(given)
        return function(*given, **named)

    monkeypatch.setattr(owner, name, count_call)
    return calls


def test_equal_layers_and_devices_share_work(monkeypatch):
    """A kernel is planned once for a device however many layers have it; what no device changes is done once."""
    planned, passes = calls_of(monkeypatch, api, "plan"), calls_of(monkeypatch, triton, "run_passes")
    programs = calls_of(monkeypatch, triton.TRITON, "program")
    counts = []
    for layers in (2, 5):
        with torch.device("meta"):
            model, x = LlamaLayers(layers).eval(), torch.zeros(2, 48, 64)
        stubs._read_function.cache_clear()
        found = anatune.compare(model, (x,), hw=["h100", "mi300x"], precision="bfloat16")
        kernels = [(kernel.workload, summary.hardware) for summary in found for kernel in summary.kernels]
        assert len(planned) == len(set(kernels)) == len(kernels) == len(programs)
        assert len(passes) == 1
        counts.append((len(planned), stubs._read_function.cache_info().misses))
        for calls in (planned, passes, programs):
            calls.clear()
    assert counts[0] == counts[1]


def test_devices_share_the_readings_of_a_state(monkeypatch):
    count, held = torch.export.Dim("count", min=1, max=64), torch.export.Dim("held", min=0, max=200)
    with torch.device("meta"):
        model, x = LlamaLayers(1).eval(), torch.zeros(2, 7, 64)
        past = [torch.zeros(2, 2, 9, 16) for _ in range(2)]
    read, numbers = calls_of(monkeypatch, frontends, "attach_state"), []
    for hw in (["h100"], ["h100", "a100", "mi300x"]):
        anatune.compare(
            model, (x, *past), hw=hw, precision="bfloat16", sizes={"x_1": 1},
            dynamic_shapes=({1: count}, ({2: held},) * 2), state={"output1": "past_0", "output2": "past_1"},
        )  # fmt: skip
        numbers.append(len(read))
        read.clear()
    assert numbers[0] == numbers[1] > 1


def test_kernels_of_predicted_cpus_are_not_written(monkeypatch):
    written = [calls_of(monkeypatch, cpu, name) for name in ("model_kernel", "attention_kernel", "write_unplanned")]
    (summary,) = compared(hw="raspberry_pi_5", precision=None, threads=1, sizes={"input_0": 8})
    assert summary.kernels
    assert not any(written)
