"""A model of the CPU kernels that TVM and LLVM generate from MetaSchedule's tilings."""
