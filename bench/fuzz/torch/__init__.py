"""Random PyTorch modules, exported and under `torch.compile`."""
