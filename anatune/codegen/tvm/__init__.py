"""TVM's own functions: read as workloads, kernels in their place, tuning records."""
