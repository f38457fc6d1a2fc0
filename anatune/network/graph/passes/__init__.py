"""Passes over the graph of a network before it is planned, and the lists that order them."""
