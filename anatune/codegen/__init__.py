"""Schedules to code: TVM loop nests around generated LLVM IR microkernels; the only place that makes TVM programs."""
