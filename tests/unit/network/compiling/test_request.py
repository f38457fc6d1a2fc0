"""What is asked of whole networks: groups that check themselves and do not change."""

import inspect

import numpy as np
import pytest

from anatune.errors import SpaceError
from anatune.network.compiling.request import CompileRequest, Int8Options, Listeners, MeasuringOptions, ModelSource
from anatune.network.compiling.session import compile as compile_model
from tests.wording import refuses

GROUPS = (ModelSource, MeasuringOptions, Int8Options, Listeners, CompileRequest)


def test_every_keyword_of_compile_is_in_one_group():
    """`fuses` is a keyword of `anatune.compare` alone."""
    fields = [name for group in GROUPS for name in group.__struct_fields__]
    others = {"measuring", "quantising", "listeners", "fuses"}
    assert sorted(set(fields) - others) == sorted(set(inspect.signature(compile_model).parameters) - {"hw"})
    assert len(set(fields)) == len(fields)


@pytest.mark.parametrize("group", [MeasuringOptions, Int8Options, Listeners, CompileRequest])
def test_groups_have_defaults_and_do_not_change(group):
    made = group()
    with pytest.raises(AttributeError):
        setattr(made, group.__struct_fields__[0], None)


@pytest.mark.parametrize(
    ("group", "wrong", "why"),
    [
        (MeasuringOptions, {"trials": 1.5}, "trials is 1.5"),
        (MeasuringOptions, {"time_limit_s": -1}, "time_limit_s is -1"),
        (MeasuringOptions, {"patience": 3}, "trials is 0; say how many"),
        (MeasuringOptions, {"cluster": "tcp://lab:8786"}, "trials is 0; say how many"),
        (Int8Options, {"percentile": 50}, "percentile is 50"),
        (Int8Options, {"percentile": True}, "percentile is True"),
        (Listeners, {"on_stage": "say"}, "on_stage is 'say'"),
        (CompileRequest, {"fallback": "torch"}, "fallback is 'torch'"),
        (CompileRequest, {"precision": "int4"}, "precision is 'int4'"),
        (CompileRequest, {"quantising": Int8Options(np.zeros((2, 3)))}, "are for precision int8"),
        (CompileRequest, {"quantising": Int8Options(percentile=99)}, "are for precision int8"),
    ],
)
def test_each_group_refuses_what_is_wrong(group, wrong, why):
    with refuses(SpaceError):
        group(**wrong)


def test_int8_takes_data():
    assert (
        CompileRequest(precision="int8", quantising=Int8Options(np.zeros((2, 3)), 99.9)).quantising.percentile == 99.9
    )
