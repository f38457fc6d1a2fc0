"""One module a search strategy."""
