"""What templates for GPUs share: occupancy, splits of reductions, kernels and their ranges."""
