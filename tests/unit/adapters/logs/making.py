"""Lines of other tuners' logs, in the form of each; and recorded measurements written back as such lines."""

import json


def autotvm(times=(1e-5, 1.2e-5), error=0, **changes):
    entity = {
        "tile_f": [-1, 1, 4, 2], "tile_y": [-1, 1, 2, 1], "tile_x": [2, 1, 7, 1], "tile_rc": [4, 2], "tile_ry": [3, 1],
        "tile_rx": [1, 3], "auto_unroll_max_step": 512, "unroll_explicit": 1, **changes,
    }  # fmt: skip
    kinds = {name: "sp" if isinstance(value, list) else "ot" for name, value in entity.items()}
    arguments = [
        ["TENSOR", [4, 8, 14, 14], "float32"], ["TENSOR", [16, 8, 3, 3], "float32"], [1, 1], [1, 1, 1, 1], [1, 1],
        "float32",
    ]  # fmt: skip
    return {
        "input": ["cuda -keys=cuda,gpu", "conv2d_nchw.cuda", arguments, {}],
        "config": {"index": 7, "code_hash": None, "entity": [[n, kinds[n], value] for n, value in entity.items()]},
        "result": [list(times), error, 2.5, 1.6e9], "version": 0.2, "tvm_version": "0.8.0",
    }  # fmt: skip


def ansor(times=(2e-5,), error=0, i=(2, 8, 1, 2), extent=64):
    steps = [
        ["CHW", 3, "local"], ["SP", 3, 0, extent, list(i), 1], ["SP", 3, 5, 64, [1, 16, 2, 1], 1],
        ["SP", 3, 10, 64, [4, 2], 1], ["RE", 3, [0, 5, 1, 6, 2, 7, 10, 11, 3, 8, 12, 4, 9]],
        ["SP", 2, 0, 64, [16], 1], ["PR", 3, 0, "auto_unroll_max_step$512"],
    ]  # fmt: skip
    return {"i": [['["abc"]', "cuda"], [[], steps]], "r": [list(times), error, 1.0, 1.6e9], "v": "v0.6"}


def metaschedule(times=(3e-5,)):
    instructions = [
        ["GetBlock", [], ["C", "main"], ["b0"]],
        ["SamplePerfectTile", ["l1"], [5, 64], ["v2", "v3", "v4", "v5", "v6"]],
        ["SamplePerfectTile", ["l2"], [5, 64], ["v7", "v8", "v9", "v10", "v11"]],
        ["SamplePerfectTile", ["l3"], [3, 64], ["v12", "v13", "v14"]],
        ["SampleCategorical", [], [[1, 2, 3, 4], [0.25, 0.25, 0.25, 0.25]], ["v15"]],
        ["Annotate", ["b1", "v15"], ["meta_schedule.cooperative_fetch"], []],
        ["SampleCategorical", [], [[0, 16, 64, 512, 1024], [0.2, 0.2, 0.2, 0.2, 0.2]], ["v16"]],
        ["Annotate", ["b0", "v16"], ["meta_schedule.unroll_explicit"], []],
    ]
    decisions = [[1, [4, 1, 8, 2, 1]], [2, [2, 1, 16, 1, 2]], [3, [8, 4, 2]], [4, 3], [6, 2]]
    return [0, [[instructions, decisions], None if times is None else list(times), {"kind": "cuda"}, []]]


def kernel_tuner(**changes):
    given = {
        "MWG": 32, "NWG": 32, "KWG": 16, "MDIMC": 8, "NDIMC": 8, "KWI": 2, "VWM": 2, "VWN": 1, "STRM": 1, "STRN": 0,
        "SA": 1, "SB": 1, "GEMMK": 0, "time": 0.05,
    }  # fmt: skip
    return {**given, **changes}


def written(path, *entries):
    path.write_text("\n".join(json.dumps(entry) for entry in entries) + "\n")
    return path


TITANX, JETSON = "cuda -model=titanx", "cuda -model=tx2"


def target_of(entry, target):
    """Return a line of AutoTVM's with another target."""
    return {**entry, "input": [target, *entry["input"][1:]]}


def old_autotvm(times=(1e-5,), target="cuda -model=tx2", weight=(16, 8, 3, 3), when=1.5e9, **changes):
    """Return `autotvm` in the form of 2018: a list of six, the workload beside arguments that mean something else."""
    entry = autotvm(times, **changes)
    config = {"i": 7, "t": "direct", "c": None, "e": entry["config"]["entity"]}
    padding = [weight[2] // 2, weight[3] // 2]
    workload = [
        "conv2d", [4, 8, 14, 14, "float32"], [*weight, "float32"], [1, 1], padding, [1, 1], "NCHW", "float32"
    ]  # fmt: skip
    shown = [["TENSOR", [4, 8, 14, 14], "float32"], ["TENSOR", list(weight), "float32"], 16, list(weight[2:]), padding]
    return {"i": [target, "topi_nn_conv2d", shown, {}, workload, config], "r": [list(times), 0, 2.5, when], "v": 0.1}


def task(name, target, arguments, knobs, times=(1e-5,)):
    """Return a line of AutoTVM's of any template."""
    kinds = {name: "sp" if isinstance(value, list) else "ot" for name, value in knobs.items()}
    return {
        "input": [target, name, arguments, {}],
        "config": {"index": 1, "code_hash": None, "entity": [[n, kinds[n], value] for n, value in knobs.items()]},
        "result": [list(times), 0, 2.5, 1.6e9], "version": 0.2, "tvm_version": "0.8.0",
    }  # fmt: skip


def tensor(*shape, dtype="float32"):
    return ["TENSOR", list(shape), dtype]


def ansor_nhwc(key, tiles, target="cuda -keys=cuda,gpu"):
    """Return an Ansor line of a convolution in NHWC: loops n, y, x, f and ry, rx, rc (extent, lengths)."""
    steps = [["CI", 1]]
    number = 0
    for extent, lengths in tiles:
        steps.append(["SP", 3, number, extent, list(lengths), 1])
        number += 1 + len(lengths)
    steps.append(["PR", 3, 0, "auto_unroll_max_step$64"])
    return {"i": [[key, target], [[], steps]], "r": [[1e-4], 0, 1.0, 1.6e9], "v": "v0.6"}
