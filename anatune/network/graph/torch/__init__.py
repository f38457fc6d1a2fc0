"""PyTorch's exported programs as graphs: `reading` walks one, `call` is one node, `operators` what each means."""
