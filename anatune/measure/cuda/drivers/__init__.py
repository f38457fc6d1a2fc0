"""Driver calls of NVIDIA's and AMD's GPUs, by the packages that make them."""
