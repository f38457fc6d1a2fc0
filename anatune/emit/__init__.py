"""What programs are written with: TVMScript, LLVM IR, elementary functions."""
