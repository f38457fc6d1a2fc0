"""Read PyTorch's exported programs as graphs: `reading` reads a program, `call` is one node, `operators` reads one operator."""
