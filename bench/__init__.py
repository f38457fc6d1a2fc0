"""Benchmarks; what they show and how long they take: README.md beside this file."""
