"""Schedules to code: TVM loop nests that call generated LLVM IR microkernels. The only place that builds TVM programs."""
