"""Devices that whole models are compiled for: what each kind has to say, as one interface."""
