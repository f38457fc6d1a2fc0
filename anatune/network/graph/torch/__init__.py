"""Read PyTorch's exported programs as graphs: `reading` reads a program, `call` is a node, `operators` reads a node."""
