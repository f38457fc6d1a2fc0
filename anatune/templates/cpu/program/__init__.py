"""Code generation: CPU schedules to TVMScript and LLVM IR."""
