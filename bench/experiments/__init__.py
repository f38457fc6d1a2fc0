"""Experiments of the papers that anatune builds on, done again: what they found, what we find (`docs/experiments/`)."""
