"""The analytical model of nests on CPUs."""
