"""The analytical model of loop nests on CPUs.

One point is timed by `AnalyticalModel.times` (`base/model.py`), which calls `CpuScoring._run`, which calls the compiled
function `cpu.times.point.run_points`. That one uses `kernels.core_columns` for the arithmetic and `traffic.traffic` for
memory. The search (`model/search.py`) bounds and times single tiles with the same formulas in `times/microkernel.py`
and `times/lattice.py`.
"""
