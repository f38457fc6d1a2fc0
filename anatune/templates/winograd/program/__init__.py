"""Code generation: Winograd schedules to TVMScript and LLVM IR."""
