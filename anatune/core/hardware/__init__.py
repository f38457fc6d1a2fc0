"""What devices are: spec files, by name or path."""
