"""``anatune.compile``: outputs are the original's, weights are packed once, bad input is one line."""

import dataclasses
import os
import subprocess
import sys

import msgspec
import numpy as np
import pytest

import anatune
from anatune.errors import RunError, SpaceError, WorkloadError
from anatune.network.compiling import session
from anatune.network.compiling.costs import ModelCosts
from anatune.network.compiling.request import CompileRequest
from anatune.network.compiling.session import compile as compile_model
from anatune.network.compiling.targets import target_of
from anatune.network.compiling.targets.cpu import require_cpu
from anatune.network.relax.frontends import import_model
from anatune.network.relax.reading import graph_of
from tests.machine import fixed
from tests.unit.network.compiling import models
from tests.wording import refuses

pytest.importorskip("tvm")


@pytest.fixture(scope="module")
def network():
    pytest.importorskip("torch")
    module, x = models.residual_network()
    return module, x, anatune.compile(module, x, hw=fixed(), threads=1)


def wide(module, x):
    """Return what a module computes in float64."""
    import copy

    import torch

    with torch.no_grad():
        return copy.deepcopy(module).double()(x.double() if x.is_floating_point() else x)


def test_stages_are_functions_whose_results_can_be_printed(network, tmp_path):
    module, x, compiled = network
    target = target_of(require_cpu(fixed()), CompileRequest(threads=1))
    costs = ModelCosts(target.hardware, 1, target.request, is_checked=False, folder=tmp_path)
    decisions = session.plan(import_model(module, x), target, costs)
    schedules = [kernel.schedule.to_json() for kernel in decisions.planned.kernels]
    assert schedules == [kernel.schedule for kernel in compiled.summary.kernels if kernel.schedule]
    first, *lines = repr(decisions).splitlines()
    assert "products predicted to take" in first
    assert len(lines) == len(schedules)
    assert decisions.planned.kernels[0].workload.describe() in lines[0]
    assert session.tune(decisions, target, costs) is decisions  # nothing is measured
    kernels = list(decisions.planned.kernels)
    alike = dataclasses.replace(decisions, measured=decisions.planned._replace(kernels=kernels))
    assert alike.tuned_model is None
    kernels[0] = kernels[0]._replace(schedule=msgspec.structs.replace(kernels[0].schedule, unroll=7))
    assert alike.tuned_model is alike.measured


def test_a_residual_network_computes_what_the_original_does(network):
    import torch

    module, _, compiled = network
    x = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(5))
    want, got = wide(module, x), compiled(x)
    assert isinstance(got, torch.Tensor)
    assert (got.double() - want).abs().max() <= 1e-6 * want.abs().max()
    assert compiled.summary.check.error <= 1e-6
    assert compiled.summary.check.reference == "PyTorch in float64"


def test_arrays_of_numpy_give_arrays_of_numpy(network):
    _, x, compiled = network
    got = compiled(x.numpy())
    assert isinstance(got, np.ndarray)
    np.testing.assert_array_equal(got, compiled(x).numpy())
    np.testing.assert_array_equal(got, compiled(np.asfortranarray(x.numpy())))


def test_outputs_of_a_call_stay_when_the_next_one_comes(network):
    _, x, compiled = network
    first = compiled(x.numpy())
    kept = first.copy()
    compiled(np.zeros_like(x.numpy()))
    np.testing.assert_array_equal(first, kept)


def test_everything_is_fused_and_nothing_is_turned_between_convolutions(network):
    compiled = network[2]
    assert [one.name for one in compiled.summary.operators] == ["mean"]
    layouts = compiled.summary.layouts
    assert {"NHWC": layouts.transposes + 5, "NCHW:NHWC": 1 - layouts.transposes}.items() >= layouts.layouts.items()
    turned = {"permute"} if layouts.transposes else set()  # of the input, or none: what this machine's spec says
    assert {one.name.split("_", 3)[-1] for one in compiled.summary.rows} == {"max"} | turned
    assert sum(kernel.count for kernel in compiled.summary.kernels) == 7
    assert {kernel.layout for kernel in compiled.summary.kernels} == {*layouts.layouts, ""}
    assert 0.0 <= layouts.gap < 1e-6
    assert [kernel.epilogue for kernel in compiled.summary.kernels if "add" in kernel.epilogue] == [
        ("bias", "add", "relu"), ("bias", "add", "relu"),
    ]  # fmt: skip


def test_no_function_of_the_library_packs_weights(network):
    _, x, compiled = network
    names = set(compiled.profile(x, repeats=1))
    assert not [name for name in names if "pack" in name]
    assert {kernel.name for kernel in compiled.summary.kernels} <= names


def test_the_report_names_every_kernel_and_what_was_left_to_tvm(network):
    text = network[2].report(measure=True)
    words = " ".join(text.split())
    for word in (
        "predicted",
        "measured",
        "bound by",
        "winograd",
        "left to TVM",
        "layouts of convolutions: ",
        "mean (1)",
        "kernels without a plan, predicted by the bytes that they move",
        "max (1)",
        "PyTorch in float64",
    ):
        assert word in words
    assert len([line for line in text.splitlines() if "conv2d" in line]) == 6


@pytest.mark.parametrize("threads", [1, 2])
def test_a_transformer_block_computes_what_the_original_does(threads):
    torch = pytest.importorskip("torch")
    if threads > len(os.sched_getaffinity(0)):
        pytest.skip("one core")
    module, tokens = models.transformer_block()
    compiled = compile_model(module, tokens, hw=fixed(), threads=threads)
    got = compiled(tokens)
    for own, want in zip(got, wide(module, tokens), strict=True):
        assert (own.double() - want).abs().max() <= 1e-5 * want.abs().max()
    products = {kernel.workload.split()[0] for kernel in compiled.summary.kernels}
    assert products == {"matmul", "attention"}
    assert {one.name.split("_", 3)[-1]: one.count for one in compiled.summary.rows} == {"layer_norm": 2}
    assert [kernel.epilogue for kernel in compiled.summary.kernels if "gelu" in kernel.epilogue] == [("bias", "gelu")]
    assert {one.name for one in compiled.summary.operators} == {"take"}
    assert "attention 1x2 8x8x16:16" in compiled.report()
    assert isinstance(got[0], torch.Tensor)


def test_functions_that_nothing_could_schedule_are_named(monkeypatch):
    torch = pytest.importorskip("torch")

    def refused(*_):
        raise ValueError("no")

    monkeypatch.setattr("anatune.network.relax.rest.schedule._schedule_function", refused)
    compiled = compile_model(torch.nn.ReLU().eval(), torch.randn(3, 4), threads=1)
    assert compiled.summary.unscheduled == ("relu",)
    assert "compiled by TVM without vectors and threads: relu" in compiled.report()


def test_truth_values_are_counted_as_pytorch_does():
    torch = pytest.importorskip("torch")

    class Counts(torch.nn.Module):
        def forward(self, tokens):
            places = torch.arange(4)[None]
            groups = (places - torch.roll(places, 1) != 1).cumsum(-1)  # as attention masks of packed sequences
            return (tokens > 0).cumsum(-1), (groups[:, :, None] == groups[:, None, :]) & (groups > 0)[:, None]

    tokens = torch.tensor([[3, 0, 1, 2]])
    compiled = compile_model(Counts().eval(), tokens, threads=1)
    for own, want in zip(compiled(tokens), Counts()(tokens), strict=True):
        np.testing.assert_array_equal(own.numpy(), want.numpy())
    left = {one.name for one in compiled.summary.operators}
    assert "cumsum" in left
    assert not left & {"equal", "bitwise_and", "broadcast_to", "not_equal"}


def test_exported_programs_and_files_of_them(tmp_path):
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.ReLU()).eval()
    x = torch.randn(4, 16)
    program = torch.export.export(module, (x,))
    path = tmp_path / "program.pt2"
    torch.export.save(program, str(path))
    want = wide(module, x)
    for model in (program, path):
        got = compile_model(model, threads=1)(x)
        assert (got.double() - want).abs().max() <= 1e-6


def test_onnx_files(tmp_path):
    pytest.importorskip("onnx")
    path = tmp_path / "network.onnx"
    models.onnx_network(path)
    compiled = compile_model(str(path), threads=1)
    assert compiled.summary.check.reference == "ONNX's reference evaluator in float64"
    assert [kernel.epilogue for kernel in compiled.summary.kernels] == [()]  # its result is read twice
    x = np.random.default_rng(3).standard_normal((1, 4, 8, 8)).astype(np.float32)
    assert compiled(x).shape == (1, 8, 8, 8)


def test_sizes_that_a_model_asks_for_are_known():
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            sizes = builder.emit(relax.op.shape_to_tensor(builder.emit(relax.op.shape_of(x))))
            out = builder.emit_output(relax.op.astype(sizes, "int32"))
        builder.emit_func_output(out)
    (output,) = graph_of(builder.get()).outputs
    (constant,) = output.arguments
    np.testing.assert_array_equal(constant.array, [2, 3])


def test_relax_modules():
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    weight = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    with builder.function("main", [x]):
        with builder.dataflow():
            made = builder.emit_output(relax.op.nn.relu(relax.op.matmul(x, relax.const(weight))))
        builder.emit_func_output(made)
    compiled = compile_model(builder.get(), threads=1)
    data = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
    np.testing.assert_allclose(compiled(data), np.maximum(data @ weight, 0), rtol=1e-5, atol=1e-5)
    assert compiled.summary.check is None


# ---- folders -----------------------------------------------------------------------------------------------


def test_a_saved_model_runs_in_a_process_without_compiler(network, tmp_path):
    _, x, compiled = network
    folder = tmp_path / "model"
    compiled.save(folder)
    np.save(tmp_path / "x.npy", x.numpy())
    program = (
        "import sys, numpy as np, anatune\n"
        f"model = anatune.load({str(folder)!r})\n"
        f"np.save({str(tmp_path / 'y.npy')!r}, model(np.load({str(tmp_path / 'x.npy')!r})))\n"
        "print([name for name in ('numba', 'onnx', 'tvm.relax') if name in sys.modules])\n"
    )
    variables = {**os.environ, "TVM_USE_RUNTIME_LIB": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), compiled(x).numpy())


# ---- bad input ---------------------------------------------------------------------------------------------


def test_wrong_inputs_at_run_time_are_one_line(network):
    _, x, compiled = network
    for inputs in ((), (x[:, :2],), (x.double(),), ([1.0],)):
        with refuses(RunError):
            compiled(*inputs)


def test_modules_need_inputs_and_evaluation_mode():
    torch = pytest.importorskip("torch")
    with refuses(WorkloadError):
        compile_model(torch.nn.Linear(4, 4).eval())
    with refuses(WorkloadError):
        compile_model(torch.nn.Linear(4, 4), torch.randn(1, 4))


def test_a_module_that_branches_on_data_is_one_line():
    torch = pytest.importorskip("torch")

    class Branches(torch.nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with refuses(WorkloadError) as caught:
        compile_model(Branches().eval(), torch.randn(4))
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_sizes_of_exported_programs_vary():
    torch = pytest.importorskip("torch")
    module, x = torch.nn.Linear(4, 4).eval(), torch.randn(3, 4)
    sizes = {"input": {0: torch.export.Dim("batch", min=2, max=64)}}
    program = torch.export.export(module, (x,), dynamic_shapes=sizes)
    for compiled in (
        compile_model(program),
        compile_model(module, x, dynamic_shapes=sizes, sizes={"input_0": "2..64"}),
    ):
        assert compiled.summary.inputs[0].shape == ("input_0", 4)
        with torch.no_grad():
            for batch in (2, 17, 64):
                x = torch.randn(batch, 4)
                torch.testing.assert_close(compiled(x), module(x))
        with refuses(RunError):
            compiled(torch.randn(65, 4))
    with refuses(WorkloadError):
        compile_model(program, sizes={"input_0": "1..8"})


def test_example_inputs_fix_the_dynamic_axes_of_onnx_files(tmp_path):
    pytest.importorskip("onnx")
    path = tmp_path / "network.onnx"
    models.onnx_network(path, batch="batch")
    compiled = compile_model(path, np.zeros((2, 4, 8, 8), np.float32), threads=1)
    assert compiled.summary.inputs[0].shape == (2, 4, 8, 8)


def test_operators_that_nobody_knows_are_named(tmp_path):
    pytest.importorskip("onnx")
    path = tmp_path / "network.onnx"
    models.onnx_network(path, operator="Nonsense")
    with refuses(WorkloadError):
        compile_model(path)


@pytest.mark.parametrize("name", ["network.onnx", "program.pt2"])
def test_damaged_and_missing_files_are_one_line(tmp_path, name):
    pytest.importorskip("onnx" if name.endswith("onnx") else "torch")
    path = tmp_path / name
    with refuses(WorkloadError):
        compile_model(path)
    path.write_bytes(b"\x00damaged")
    with refuses(WorkloadError) as caught:
        compile_model(path)
    assert "\n" not in str(caught.value)


def test_other_arguments_are_checked():
    with refuses(WorkloadError):
        compile_model(5)
    with refuses(SpaceError):
        require_cpu("rtx3090")
    with refuses(SpaceError):
        compile_model(5, trials=-1)


def test_summaries_are_json_both_ways(network):
    summary = network[2].summary
    assert msgspec.json.decode(msgspec.json.encode(summary), type=type(summary)) == summary
    assert anatune.Schedule.from_json(summary.kernels[0].schedule).workload.operator == "conv2d"


def test_means_of_windows_that_hang_over_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    pool = torch.nn.AvgPool2d(3, 2, 1, ceil_mode=True)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 20, 3), pool).eval()
    x = torch.randn(1, 3, 10, 10)
    compiled = anatune.compile(module, x, threads=1)  # checked: wrong by 0.2 of its largest magnitude with TVM's means
    np.testing.assert_allclose(compiled(x).numpy(), module(x).detach().numpy(), rtol=1e-4, atol=1e-5)
