"""Plans for a range of extents: few kernels that serve all of them, and a proof of the time that this costs."""
