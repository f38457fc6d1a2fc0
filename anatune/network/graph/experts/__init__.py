"""Products of experts that each token chooses (mixture of experts)."""
