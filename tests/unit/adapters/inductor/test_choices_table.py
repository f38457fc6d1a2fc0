"""Inductor's lookup tables of products: keys, entries and what has none."""

import json

import pytest

import anatune
from anatune.adapters.inductor import lookup_table
from anatune.errors import SpaceError, UnknownNameError
from tests.wording import refuses

LINEAR = anatune.matmul(4096, 512, 1000, dtype="bfloat16", transpose_b=True, epilogue=("bias",))


def test_one_entry_a_product_that_fits():
    table = lookup_table([anatune.matmul(4096, 4096, 4096, dtype="float16"), LINEAR], "a100")
    assert list(table) == [
        "((torch.float16, [4096, 4096], [4096, 1]), (torch.float16, [4096, 4096], [4096, 1]))+mm",
        "((torch.bfloat16, [4096, 512], [0, 1]), (torch.bfloat16, [4096, 1000], [1000, 1]), "
        "(torch.bfloat16, [1000, 512], [1, 1000]))+alpha=1&beta=1+addmm",
    ]
    first, second = (entries[0] for entries in table.values())
    assert first["template_id"] == "triton::mm"
    assert first["EVEN_K"] is True
    assert second["EVEN_K"] is (1000 % second["BLOCK_K"] == 0)
    assert json.loads(json.dumps(table)) == table


def test_several_entries_are_different():
    (entries,) = lookup_table([LINEAR], "h100", keep=4).values()
    assert len({tuple(entry.items()) for entry in entries}) == 4


@pytest.mark.parametrize(
    "product",
    [
        anatune.matmul(64, 64, 64, dtype="int8"),
        anatune.matmul(64, 64, 64, dtype="float16", epilogue=("relu",)),
        anatune.batch_matmul(2, 64, 64, 64, dtype="float16"),
        anatune.matmul(64, 64, 64, dtype="bfloat16:float32"),
    ],
)
def test_what_is_not_looked_up_is_told(product):
    with refuses(SpaceError):
        lookup_table([product], "a100")


def test_a_cpu_has_none():
    with pytest.raises((SpaceError, UnknownNameError)):
        lookup_table([LINEAR], "xeon_6972p")
