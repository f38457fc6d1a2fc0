"""The choice pruner on choices that look like TorchInductor's: no torch is needed here."""

from types import SimpleNamespace

from anatune.adapters.inductor import choice_pruner
from anatune.errors import NotJudgedWarning, SpaceError, UnknownNameError
from tests.wording import refuses, warns

HALF = type("dtype", (), {"itemsize": 2, "__str__": lambda _: "torch.float16"})()
DOUBLE = type("dtype", (), {"itemsize": 8, "__str__": lambda _: "torch.float64"})()


def node(shape, dtype):
    return SimpleNamespace(
        get_size=lambda: shape, get_stride=lambda: (shape[1], 1), get_dtype=lambda: dtype, size=shape,
        stride=(shape[1], 1), dtype=dtype,
    )  # fmt: skip


def choices(m, n, k, dtype=HALF):
    tiles = [(size, 64, warps) for size in (16, 32, 64, 128) for warps in (2, 4)]
    return [
        SimpleNamespace(
            name=f"triton_mm_{at}",
            info_dict=lambda size=size, depth=depth, warps=warps: {
                "tile_shape": str((size, depth, size)), "GROUP_M": 8, "num_warps": warps, "num_stages": 3
            },
            input_nodes=[node((m, k), dtype), node((k, n), dtype)],
            layout=node((m, n), dtype),
        )
        for at, (size, depth, warps) in enumerate(tiles)
    ]  # fmt: skip


def test_the_best_are_left_in_the_order_given():
    library = SimpleNamespace(name="extern_mm")
    given = [library, *choices(4096, 4096, 4096)]
    left = choice_pruner("a100", keep=2)(given)
    assert len(left) == 3
    assert left == [choice for choice in given if choice in left]
    assert choice_pruner("a100")([library]) == [library]
    assert choice_pruner("a100")([]) == []


def test_unknown_types_stay_and_are_said():
    given = choices(64, 64, 64, DOUBLE)
    with warns(NotJudgedWarning):
        assert choice_pruner("a100", keep=1)(given) == given


def test_symbols_stay():
    given = choices(64, "s0", 64)
    assert choice_pruner("a100", keep=1)(given) == given


def test_wrong_options_are_told_at_once():
    with refuses(SpaceError):
        choice_pruner(keep=0)
    with refuses(UnknownNameError):
        choice_pruner("rtx9999")
