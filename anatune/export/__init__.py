"""``anatune export``: kernels as libraries, headers and sources for other programs."""
