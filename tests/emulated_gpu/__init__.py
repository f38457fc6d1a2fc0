"""A GPU for TVM's own CUDA runtime that is none: its memory is this process's, kernels run in anatune's emulator."""
