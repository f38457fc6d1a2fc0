"""Kernel Tuner: its strategies search only the configurations that deserve a run, and begin with the best of them.

``restrictions=restrict(workload, hw, tune_params, keep=0.01)`` is all that a search needs. `prune` returns the same
with the order behind it: a starting point (`PrunedSpace.start`), the strategies `Ordered` and `Within`, and why
a configuration was left out. No GPU is needed before Kernel Tuner wants one.

The model is one of anatune's own template. CLBlast's Xgemm is near enough to it that its order is taken as it is; of
any other kernel a part of the list is spread over the whole space (`kernel_tuner.fit`, `model.pruning.portfolio`), and
a warning says so.
"""

from anatune.adapters.kernel_tuner.names import CLBLAST, clblast_gemm
from anatune.adapters.kernel_tuner.space import PrunedSpace, import_kernel_tuner, prune, restrict
from anatune.adapters.kernel_tuner.strategies import Ordered, Within

__all__ = ["CLBLAST", "Ordered", "PrunedSpace", "Within", "clblast_gemm", "import_kernel_tuner", "prune", "restrict"]
