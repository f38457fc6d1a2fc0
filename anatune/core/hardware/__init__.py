"""Hardware specs: what devices are, in spec files that are found by name or path."""
