"""Nests that somebody else wrote get the name of the constructor that computes the same."""

import msgspec
import pytest

import anatune
from anatune.core.workload.operators.naming import named_workload

NAMED = [
    anatune.matmul(8, 4, 2),
    anatune.matmul(8, 8, 8, transpose_a=True, transpose_b=True, dtype="float16"),
    anatune.batch_matmul(3, 8, 4, 2, transpose_b=True),
    anatune.conv2d(2, 8, 14, 14, 16, 3, 3, padding=1),
    anatune.conv2d(2, 8, 14, 14, 16, 3, 3, stride=2, padding=1),
    anatune.conv2d(2, 8, 14, 14, 16, 3, 5, stride=(1, 2), padding=(0, 2), dilation=(2, 1), layout="NHWC"),
    anatune.conv2d(2, 8, 14, 14, 16, 3, 3, padding=(0, 0, 1, 1)),
    anatune.conv2d(2, 8, 14, 14, 16, 3, 3, groups=4, padding=1),
    anatune.conv2d(1, 8, 14, 14, 16, 1, 1, layout="NHWC"),
    anatune.depthwise_conv2d(1, 8, 14, 14, 3, 3, padding=1),
    anatune.depthwise_conv2d(1, 8, 14, 14, 3, 3, multiplier=2, layout="NHWC"),
]


def bare(workload):
    """Return a workload as a nest is read: no attributes, another order of loops, none of one iteration."""
    kept = {axis.name for axis in workload.axes if axis.extent > 1}

    def access(one):
        indices = tuple(tuple(reversed([t for t in index if t.axis in kept])) for index in one.indices)
        return msgspec.structs.replace(one, tensor=f"my_{one.tensor}", indices=indices)

    axes = [axis for axis in workload.axes if axis.name in kept]
    spatial = [axis for axis in axes if axis.kind == "spatial"]
    axes = (*reversed(spatial), *(axis for axis in axes if axis.kind != "spatial"))
    reads = tuple(map(access, workload.reads))
    return anatune.Workload("nest", axes, reads, access(workload.write), workload.body, 2)


@pytest.mark.parametrize("workload", NAMED, ids=lambda one: one.describe())
def test_a_nest_gets_its_name(workload):
    assert named_workload(bare(workload)) == workload
    assert named_workload(workload) == workload


def test_other_nests_stay_as_they_are():
    three = anatune.einsum("ij,jk->k", ((8, 4), (4, 6)))
    pool = anatune.max_pool2d(1, 8, 14, 14, 2, 2, stride=2)
    for nest in (three, pool, bare(anatune.conv3d(1, 4, 6, 6, 6, 8, 3, 3, 3))):
        assert named_workload(nest) == nest
