"""Names of a kernel's arguments: what is found, and what a call then says."""

import pytest

from anatune.adapters.triton.arguments import ArgumentNames
from anatune.errors import SpaceError
from tests.kernel_arguments import Descriptor, Tensor, arguments
from tests.wording import refuses


def product(call, **said):
    return ArgumentNames(**said).product(call)[0]


def test_descriptors_are_found_as_pointers_are():
    call = {"a_desc": Descriptor((512, 256)), "b_desc": Descriptor((128, 256)), "c_desc": Descriptor((512, 128))}
    found = product(call | {"M": 512, "N": 128, "K": 256})
    assert (found.a_along_k, found.b_along_n) == (True, False)
    assert found.out_bytes == 2


def test_a_square_weight_that_is_stored_along_k_is_said():
    call = arguments(64, 64, 64)
    assert product(call).b_along_n
    assert not product(call, names={"b": "b_ptr.T"}).b_along_n
    assert product(call, names={"b": "nothing.T"}).b_along_n


def test_results_are_as_wide_as_the_tensor_that_takes_them():
    call = arguments(64, 64, 64) | {"c_ptr": Tensor((64, 64), "torch.float32")}
    assert product(call).result_bytes == 4


def test_pairs_of_types():
    call = {"M": 64, "N": 64, "K": 64}
    found = product(call, dtype=("bfloat16", "int8"))
    assert (found.dtype, found.right_bytes) == ("bfloat16", 1)


@pytest.mark.parametrize(
    "said",
    [
        {"dtype": ("bfloat16", "int8", "int8")},
        {"dtype": ("int8", "bfloat16")},
        {"dtype": ("bfloat16", "int3")},
        {"names": {"descriptors": 1}},
        {"names": {"a": True}},
    ],
)
def test_wrong_names_are_one_line(said):
    with refuses(SpaceError) as caught:
        ArgumentNames(**said)
    assert "\n" not in str(caught.value)


def test_options_are_meta_parameters_or_said():
    plain = ArgumentNames()
    assert plain.option("descriptors", {"USE_TMA": True}) is True
    assert plain.option("descriptors", {"M": 3}) is None
    assert ArgumentNames({"descriptors": "TMA"}).option("descriptors", {"TMA": 0}) is False
    assert ArgumentNames({"persistent": True}).option("persistent", {}) is True
    assert plain.num_programs({"NUM_SMS": 132}) == 132
    assert plain.num_programs({"NUM_SMS": None}) is None
    assert ArgumentNames({"num_sms": "P"}).num_programs({"P": 8}) == 8
