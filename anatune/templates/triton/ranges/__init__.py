"""Kernels of products that serve a range of extents."""
