"""CPU kernels for networks, written as LLVM IR: attention, rows, windows, moves, recurrent layers."""
