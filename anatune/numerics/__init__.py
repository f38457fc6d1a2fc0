"""How functions are compiled: numba's options, its cache, progress. What is compiled is in `templates/*/times`."""
