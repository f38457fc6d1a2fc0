"""CPU schedules to TVM programs with microkernels in LLVM IR, and to shared libraries."""
