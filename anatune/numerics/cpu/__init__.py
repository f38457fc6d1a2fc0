"""The CPU model's arithmetic: microkernels, traffic, search of tiles."""
