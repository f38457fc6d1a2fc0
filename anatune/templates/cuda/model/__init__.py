"""The analytical model of the template "cuda".

A model is a chain of classes, each with one task:

- `Model`, `AnalyticalModel` (`base/model.py`): the interface, predictions, explanations.
- `ExhaustiveModel` (`base/ranking.py`): ranks a space by evaluating every point.
- `BaseGpuModel` (`gpu/model.py`): runs compiled code on batches of points and names its quantities.
- `CudaScoring` (`scoring.py`): times, bounds and rules of points for CUDA cores.
- `CudaModel` (`model.py`): ranks large spaces by branch and bound (`ranking.py`), and provides features.
- `PipelinedModel` (`pipelined.py`): chooses among the staging pipelines of the template "pipelined".

The time of a point passes through `AnalyticalModel.times`, `BaseGpuModel._run`, `CudaScoring._fill` and, compiled by
numba, `cuda.times.batch.run_points`, which calls `tile.fill_macro`, `micro.fill_micro` and `time.fill_time`.
"""
