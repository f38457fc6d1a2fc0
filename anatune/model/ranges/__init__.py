"""Plans for a range of extents: few kernels that serve all of them, and a proof of how much time that loses."""
