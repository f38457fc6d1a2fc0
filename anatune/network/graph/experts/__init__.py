"""Products of experts that tokens choose."""
