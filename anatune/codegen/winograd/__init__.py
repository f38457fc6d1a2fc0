"""Code of Winograd's transforms for CPUs."""
