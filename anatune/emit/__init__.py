"""Writers of program text: TVMScript, LLVM IR, elementary functions."""
