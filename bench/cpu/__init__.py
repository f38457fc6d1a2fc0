"""Kernels of this CPU beside oneDNN, MKL, PyTorch and MetaSchedule."""
