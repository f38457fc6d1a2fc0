"""CPU schedules to TVM programs around LLVM IR microkernels, and to C libraries."""
