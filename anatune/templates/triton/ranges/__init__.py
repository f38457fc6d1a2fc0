"""Families of Triton kernels of products that serve a range of extents."""
