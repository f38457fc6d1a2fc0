"""Kernel Tuner: its strategies search only the best predicted configurations, and begin with the best of them.

``restrictions=restrict(workload, hw, tune_params, keep=0.01)`` is all that a search needs. `prune` returns the same
selection together with its order: a starting point (`PrunedSpace.start`), the strategies `Ordered` and `Within`, and
the reason why a configuration was left out. No GPU is needed until Kernel Tuner itself needs one.

The model describes kernels of anatune's own template. CLBlast's Xgemm is similar enough that its predicted order is
used unchanged. For any other kernel, a part of the selection is spread over the whole space (`kernel_tuner.fit`,
`model.pruning.portfolio.choose_portfolio`), and a warning says so.
"""

from anatune.adapters.kernel_tuner.names import CLBLAST, clblast_gemm
from anatune.adapters.kernel_tuner.space import PrunedSpace, import_kernel_tuner, prune, restrict
from anatune.adapters.kernel_tuner.strategies import Ordered, Within

__all__ = ["CLBLAST", "Ordered", "PrunedSpace", "Within", "clblast_gemm", "import_kernel_tuner", "prune", "restrict"]
