"""The analytical model of tiles on CUDA cores.

The time of a point: `AnalyticalModel.times` (`base/model.py`), `BaseGpuModel._run` (`gpu/model.py`),
`GpuScoring._fill`, and compiled by numba `cuda.times.batch.run_points` with `tile.macro`, `micro.micro`, `time.time`.
"""
