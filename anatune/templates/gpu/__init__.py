"""Modules that the GPU templates share: occupancy, split reductions, kernels and their ranges."""
