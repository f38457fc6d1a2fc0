"""The analytical model of nests on CPUs.

The time of a point: `AnalyticalModel.times` (`base/model.py`), `CpuScoring._run`, and compiled by numba
`cpu.times.point.run_points` with `kernels.core_columns` and `traffic.traffic`; `times/microkernel.py` and `lattice.py`
compute the same for the single tiles of the search.
"""
