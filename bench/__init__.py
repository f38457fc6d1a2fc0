"""Benchmarks, a room for each question; what they show and how long they take: README.md beside this file."""
