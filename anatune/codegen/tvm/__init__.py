"""Integration with TVM: its functions read as workloads, anatune kernels in their place, and tuning records."""
