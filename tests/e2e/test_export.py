"""``anatune export``: a C program that links the library, and the TVM module."""

import json
import shutil
import subprocess
from pathlib import Path

import msgspec
import numpy as np
import pytest

import anatune as package
from tests.machine import host

pytest.importorskip("tvm")
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")

HOST = host()
WORKLOADS = {
    "matmul": package.matmul(24, 48, 16, epilogue=("bias", "relu")),
    "conv2d": package.conv2d(n=1, c=8, h=10, w=10, k=16, r=3, s=3, padding=1),
    "int8": package.matmul(8, 32, 16, dtype="int8"),
}


def schedule_file(folder, name):
    path = folder / f"{name}.schedule.json"
    path.write_text(package.plan(WORKLOADS[name], HOST, top_k=1).best.to_json())
    return path


def expected(workload, inputs):
    from anatune.measure.run.reference import reference

    return reference(workload, inputs)


def inputs_of(workload):
    from anatune.measure.run.correctness import random_inputs

    return random_inputs(workload, 1)


PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernel.h"

static void *load(const char *file, size_t bytes) {{
  void *data = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
  FILE *stream = fopen(file, "rb");
  if (!stream || fread(data, 1, bytes, stream) != bytes) exit(9);
  fclose(stream);
  return data;
}}

int main(void) {{
{loads}
  if (kernel({given}, result)) return 1;
  FILE *stream = fopen("plain.bin", "wb");
  fwrite(result, 1, {size}, stream);
  fclose(stream);
  memset(result, 255, {size});
{packed}
  stream = fopen("packed.bin", "wb");
  fwrite(result, 1, {size}, stream);
  fclose(stream);
  if (!kernel_supported()) return 4;
  return kernel({given}, (void *)((char *)result + 4)) == -1 && kernel({nulls}, result) == -1 ? 0 : 3;
}}
"""


def c_program(manifest, inputs, folder):
    """Write a C program that calls every function of the library, and its operands."""
    main, *others = manifest["functions"]
    loads = []
    for argument in main["arguments"][:-1]:
        array = np.ascontiguousarray(inputs[argument["tensor"]])
        (folder / f"{argument['tensor']}.bin").write_bytes(array.tobytes())
        loads.append(f'  void *{argument["tensor"]} = load("{argument["tensor"]}.bin", {array.nbytes});')
    result = main["arguments"][-1]
    size = int(np.prod(result["shape"])) * np.dtype(result["dtype"]).itemsize
    loads.append(f"  void *result = aligned_alloc(64, {size} / 64 * 64 + 128);")
    given = [argument["tensor"] for argument in main["arguments"][:-1]]
    steps = []
    for pack in others[:-1]:
        source, target = pack["arguments"]
        steps.append(f"  void *{target['tensor']} = aligned_alloc(64, {target['shape'][0] * 4} / 64 * 64 + 64);")
        steps.append(f"  if ({pack['name']}({source['tensor']}, {target['tensor']})) return 2;")
    last = others[-1] if others else main
    names = [argument["tensor"] for argument in last["arguments"][:-1]]
    steps.append(f"  if ({last['name']}({', '.join(names)}, result)) return 2;")
    return PROGRAM.format(
        loads="\n".join(loads), given=", ".join(given), nulls=", ".join(["0"] * len(given)), size=size,
        packed="\n".join(steps),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "form", "library"),
    [("matmul", "so", "libkernel.so"), ("conv2d", "a", "libkernel.a"), ("int8", "o", "kernel.o")],
)
def test_a_c_program_links_the_library(anatune, tmp_path, name, form, library):
    workload = WORKLOADS[name]
    words = ("--format", form, "--output", tmp_path / "out", "--name", "kernel", "--json")
    done = anatune("export", schedule_file(tmp_path, name), *words)
    assert done.returncode == 0, done.stderr
    manifest = json.loads(done.stdout)
    out = tmp_path / "out"
    assert {path.name for path in out.iterdir()} == {library, "kernel.h", "kernel.json"}
    assert (manifest["format"], manifest["library"]) == (form, library)
    assert json.loads((out / "kernel.json").read_text())["functions"] == manifest["functions"]
    inputs = inputs_of(workload)
    (out / "use.c").write_text(c_program(manifest, inputs, out))
    command = ["gcc", "-Wall", "-Werror", "-I.", "use.c", "-L.", *manifest["link"], "-Wl,-rpath,.", "-o", "use"]
    built = subprocess.run(command, cwd=out, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert subprocess.run(["./use"], cwd=out, check=False).returncode == 0
    want = expected(workload, inputs)
    for file in ("plain.bin", "packed.bin"):
        got = np.frombuffer((out / file).read_bytes(), dtype=manifest["functions"][0]["arguments"][-1]["dtype"])
        assert np.abs(got.reshape(want.shape) - want).max() <= 1e-5 * np.abs(want).max()


THREADED = """
#include <math.h>
#include <pthread.h>
#include "first.h"
#include "second.h"
static _Alignas(64) float a[64 * 32], b[32 * 64], c[4][2][64 * 64];
int supported(void); /* in C++ */
static void *work(void *place) {
  float (*out)[64 * 64] = place;
  for (int turn = 0; turn < 50; ++turn)
    if (first(a, b, out[0]) || second(a, b, out[1])) return place;
  return 0;
}
int main(void) {
  pthread_t threads[4];
  int failed = 0;
  for (int i = 0; i < 64 * 32; ++i) { a[i] = i % 7 - 3; b[i] = i % 5 - 2; }
  for (int t = 0; t < 4; ++t)
    if (pthread_create(&threads[t], 0, work, c[t])) return 9;
  for (int t = 0; t < 4; ++t) {
    void *said;
    pthread_join(threads[t], &said);
    failed |= said != 0;
  }
  for (int i = 0; i < 64; ++i)
    for (int j = 0; j < 64; ++j) {
      float sum = 0;
      for (int k = 0; k < 32; ++k) sum += a[i * 32 + k] * b[k * 64 + j];
      for (int t = 0; t < 8; ++t) failed |= fabsf(sum - c[t / 2][t % 2][i * 64 + j]) > 1e-3f ? 2 : 0;
    }
  return failed | (supported() ? 0 : 4);
}
"""
SUPPORTED = """
#include "first.h"
#include "second.h"
extern "C" int supported() { return first_supported() && second_supported(); }
"""


@pytest.mark.parametrize("form", ["so", "a"])
def test_parallel_loops_and_two_libraries_in_one_program_with_threads(anatune, tmp_path, form):
    space = package.space(package.matmul(64, 64, 32), HOST)
    tiles = {"i": (4, 1, 1, 2, 8), "j": (1, 1, 1, 2, 32), "k": (1, 1, 32, 1)}
    link = []
    for name in ("first", "second"):
        schedule = space.schedule(tiles, parallel=name == "first")
        schedule_path = tmp_path / f"{name}.schedule.json"
        schedule_path.write_text(schedule.to_json())
        words = ("export", schedule_path, "--output", tmp_path, "--name", name, "--threads", 2, "--json")
        done = anatune(*words, "--format", form)
        assert done.returncode == 0, done.stderr
        manifest = json.loads(done.stdout)
        assert manifest["needs_openmp"] is (name == "first")
        assert manifest["threads"] == (2 if name == "first" else 1)
        link += manifest["link"]
    (tmp_path / "both.c").write_text(THREADED)
    (tmp_path / "supported.cpp").write_text(SUPPORTED)

    def run(*command):
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    compiled = run("g++", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-c", "supported.cpp")
    assert (compiled.returncode, compiled.stderr) == (0, "")
    linkers = [name for name in ("bfd", "gold", "lld") if shutil.which(f"ld.{name}")]
    for linker in [f"-fuse-ld={name}" for name in linkers] if form == "a" else ["-O1"]:
        words = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "both.c", "supported.o", "-L.", "-Wl,-rpath,.")
        built = run("gcc", linker, *words, *link, "-lpthread", "-lm", "-o", "both")
        assert (built.returncode, built.stderr) == (0, "")
        assert run("./both").returncode == 0
    if form == "a":
        said = run("nm", "--extern-only", "--defined-only", "libfirst.a").stdout
        assert {line.split()[-1].split("_")[0] for line in said.splitlines() if " " in line} == {"first"}


ELSEWHERE = """
#include <stdio.h>
#include "elsewhere.h"
static _Alignas(64) float a[16 * 16], b[16 * 16], c[16 * 16];
int main(void) { printf("%d %d", elsewhere_supported(), elsewhere(a, b, c)); return 0; }
"""


@pytest.mark.skipif(
    not HOST.compute.isa.startswith("avx"), reason="Intel's and AMD's processors differ, so one is away"
)
@pytest.mark.parametrize("hw", ["xeon_8480", "epyc_9575f"])
def test_a_processor_without_the_instructions_is_told_so_and_does_not_die(anatune, tmp_path, hw):
    (tmp_path / "s.json").write_text(package.plan(package.matmul(16, 16, 16), hw, top_k=1).best.to_json())
    words = ("--format", "a", "--threads", 1, "--output", tmp_path, "--name", "elsewhere", "--json")
    done = anatune("export", tmp_path / "s.json", *words)
    assert done.returncode == 0, done.stderr
    manifest = json.loads(done.stdout)
    assert manifest["mcpu"] == package.hardware(hw).arch
    assert {"fma", "avx512f"} <= set(manifest["features"])
    header = " ".join((tmp_path / "elsewhere.h").read_text().replace(" * ", "").split())
    assert f"Needs: {', '.join(manifest['features'])} (compiled for -mcpu={manifest['mcpu']})" in header
    (tmp_path / "use.c").write_text(ELSEWHERE)
    built = subprocess.run(["gcc", "use.c", *manifest["link"], "-o", "use"], cwd=tmp_path, check=False)
    assert built.returncode == 0
    have = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split()
    flags = {"xeon_8480": "avx512_fp16", "epyc_9575f": "sse4a"}  # what the other maker's processors lack
    ran = subprocess.run(["./use"], cwd=tmp_path, capture_output=True, text=True, check=False)
    if flags[hw] not in have:
        assert (ran.returncode, ran.stdout) == (0, "0 -4")
    else:
        assert (ran.returncode, ran.stdout) in [(0, "0 -4"), (0, "1 0")]


def test_the_tvm_module(anatune, tmp_path):
    import tvm

    done = anatune(
        "export", schedule_file(tmp_path, "conv2d"), "--format", "tvm", "--output", tmp_path / "out", "--json"
    )
    assert done.returncode == 0, done.stderr
    manifest = json.loads(done.stdout)
    assert [one["name"] for one in manifest["functions"]] == ["main"]
    module = tvm.ir.load_json((tmp_path / "out" / manifest["module"]).read_text())
    built = tvm.compile(module, target=tvm.target.Target(manifest["target"]))
    workload = WORKLOADS["conv2d"]
    inputs = inputs_of(workload)
    from anatune.measure.cpu.blocks import ArgumentBlock

    blocks = [ArgumentBlock(access.dtype, access.shape) for access in (*workload.reads, workload.write)]
    for access, block in zip(workload.reads, blocks, strict=False):
        block.array[...] = inputs[access.tensor]
    built["main"](*(block.tensor for block in blocks))
    want = expected(workload, inputs)
    assert np.abs(blocks[-1].array - want).max() <= 1e-5 * np.abs(want).max()


def test_apply_gives_the_same_program():
    schedule = package.plan(WORKLOADS["conv2d"], HOST, top_k=1).best.apply()
    assert type(schedule).__module__.startswith("tvm")
    assert [str(parameter) for parameter in schedule.mod["main"].params] == ["data", "weight", "output"]


def test_from_records(anatune, tmp_path):
    from anatune.core.trial import Measurement, Outcome, Trial
    from anatune.records.store import RecordStore

    workload = package.matmul(16, 32, 8)
    schedules = package.plan(workload, HOST, top_k=2).schedules
    with RecordStore(tmp_path / "r.sqlite") as store:
        session = store.new_session(workload, HOST, 1, "model", 0)
        for number, seconds in enumerate((2.0, 1.0)):
            measurement = Measurement(Outcome.OK, times_s=(seconds,))
            store.append(session, Trial(schedules[number], measurement, number))
    words = ("export", "--records", tmp_path / "r.sqlite", "matmul", "16x32x8", "--output", tmp_path / "out", "--json")
    done = anatune(*words)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schedule"] == json.loads(schedules[1].to_json())
    done = anatune("export", "--records", tmp_path / "r.sqlite", "matmul", "16x32x16")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "has no trial of matmul" in done.stderr


def test_the_best_record_of_a_template(anatune, tmp_path):
    pytest.importorskip("cuda.bindings")
    from anatune.core.trial import Measurement, Outcome, Trial
    from anatune.records.store import RecordStore

    workload, hardware = package.matmul(8, 256, 64), package.hardware("a100_sxm")
    times = {"cuda": 2.0, "pipelined": 1.0, "thin": 3.0}
    best = {template: package.plan(workload, hardware, top_k=1, template=template).best for template in times}
    with RecordStore(tmp_path / "r.sqlite") as store:
        session = store.new_session(workload, hardware, 1, "model", 0)
        for number, (template, seconds) in enumerate(times.items()):
            store.append(session, Trial(best[template], Measurement(Outcome.OK, times_s=(seconds,)), number))
        assert store.best(workload).trial.schedule == best["pipelined"]
        assert store.best(workload, template="cuda").trial.schedule == best["cuda"]
    words = ("export", "--records", tmp_path / "r.sqlite", "matmul", "8x256x64", "--output", tmp_path / "out")
    done = anatune(*words, "--template", "thin", "--json")
    assert done.returncode == 0, done.stderr
    assert package.Schedule.from_json(msgspec.json.encode(json.loads(done.stdout)["schedule"])) == best["thin"]
    done = anatune(*words, "--dtype", "float16", "--template", "cuda")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "of the template cuda" in done.stderr


def test_another_devices_export_of_the_same_name_is_told(anatune, tmp_path):
    words = ("--output", tmp_path, "--format", "tvm")
    for hw, told in (("rtx3090", False), ("rtx3090", False), ("a100_sxm", True)):
        done = anatune("export", "--hw", hw, "matmul", "32x32x32", *words)
        assert done.returncode == 0, done.stderr
        assert ("this replaces the export for rtx3090" in done.stderr) == told


def test_what_plan_and_prune_print_and_a_manifest_are_exported(anatune, tmp_path):
    words = ("--hw", "rtx3090", "matmul", "64x64x64")
    printed = {
        "plan.json": anatune("plan", *words, "--json", "--top-k", 2).stdout,
        "prune.json": anatune("prune", *words, "--keep", "0.01", "--for", "json", "--most", 2).stdout,
    }
    plan = json.loads(printed["plan.json"])
    printed["entry.json"] = json.dumps(plan["schedules"][1])
    best = package.plan(package.matmul(64, 64, 64), "rtx3090", top_k=2, distinct=True).schedules
    printed["manifest.json"] = json.dumps({"format": "cuda", "schedule": json.loads(best[0].to_json())})
    for file, text in printed.items():
        (tmp_path / file).write_text(text)
        done = anatune("export", tmp_path / file, "--format", "tvm", "--output", tmp_path / "out", "--json")
        assert done.returncode == 0, done.stderr
        schedule = package.Schedule.from_json(json.dumps(json.loads(done.stdout)["schedule"]))
        if file != "prune.json":
            assert schedule == best[file == "entry.json"]


def test_wrong_words_are_one_line(anatune, tmp_path):
    (tmp_path / "bad.json").write_text("{}")
    gpu = package.plan(package.matmul(32, 32, 32), package.hardware("rtx3090"), top_k=1).best
    (tmp_path / "gpu.json").write_text(gpu.to_json())
    (tmp_path / "plan.json").write_text('{"workload": {}, "schedules": []}')
    arm = package.plan(package.matmul(32, 32, 32), package.hardware("graviton3"), top_k=1).best
    (tmp_path / "arm.json").write_text(arm.to_json())
    cases = [
        ((), 2, "expected a schedule file"),
        (("a.json", "b.json"), 2, "expected a schedule file"),
        ((tmp_path / "missing.json",), 1, "no such file"),
        ((tmp_path / "bad.json",), 1, "missing required field"),
        ((tmp_path / "plan.json",), 1, "plan.json: "),
        ((tmp_path / "gpu.json", "--target", "cpu"), 2, "the schedule is for rtx3090; choose cuda"),
        ((tmp_path / "gpu.json", "--threads", "2"), 2, "--threads is for CPU schedules"),
        ((tmp_path / "gpu.json", "--target", "rocm"), 2, "'rocm', expected one of 'cpu', 'cuda'"),
        ((tmp_path / "arm.json", "--target", "cuda"), 2, "choose cpu"),
        (("--hw", "rtx3090"), 2, "the workload is missing"),
        (("--hw", "rtx9999", "matmul", "8x8x8"), 1, "rtx9999"),
        (("--hw", "mi50", "--target", "cuda", "matmul", "8x8x8"), 1, "expected an NVIDIA one"),
        ((tmp_path / "bad.json", "--format", "dll"), 2, "'dll', expected one of 'so', 'o', 'a', 'tvm', 'py'"),
        ((tmp_path / "gpu.json", "--format", "so"), 2, "--format so is for CPU schedules"),
        ((tmp_path / "gpu.json", "--template", "triton"), 2, "the schedule has the template cuda"),
        ((tmp_path / "gpu.json", "--hw", "rtx3090"), 2, "leave out --hw"),
        ((tmp_path / "gpu.json", "--dtype", "float16"), 2, "--dtype is for a WORKLOAD"),
        (("--hw", "rtx3090", "--template", "cpu", "matmul", "8x8x8"), 1, "expected one of cuda, pipelined, thin"),
        ((tmp_path / "bad.json", "--name", "1st"), 2, "C identifier"),
        ((tmp_path / "bad.json", "--name", "double"), 2, "C identifier"),
        ((tmp_path / "bad.json", "--threads", "0"), 2, "expected a number >= 1, got '0'"),
        (("--records", tmp_path / "bad.json"), 2, "the workload is missing"),
    ]
    if HOST.compute.isa.startswith("avx") and shutil.which("aarch64-linux-gnu-gcc") is None:
        cases.append(((tmp_path / "arm.json",), 1, "no cross compiler (aarch64-linux-gnu-gcc"))
    for words, status, text in cases:
        done = anatune("export", *words, "--output", tmp_path / "out") if status == 1 else anatune("export", *words)
        assert (done.returncode, done.stderr.count("\n")) == (status, 1), done.stderr
        assert text in done.stderr


def test_manifest_round_trips_the_schedule(anatune, tmp_path):
    path = schedule_file(tmp_path, "matmul")
    assert anatune("export", path, "--output", tmp_path, "--name", "k").returncode == 0
    kept = json.loads((tmp_path / "k.json").read_text())["schedule"]
    assert package.Schedule.from_json(msgspec.json.encode(kept)) == package.Schedule.from_json(path.read_bytes())


def test_the_plans_first_choice_is_exported_without_a_file(anatune, tmp_path):
    pytest.importorskip("cuda.bindings")
    done = anatune("export", "--hw", "rtx3090", "matmul", "64x64x64", "--target", "cuda", "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".cu", ".cubin", ".h", ".json"}
