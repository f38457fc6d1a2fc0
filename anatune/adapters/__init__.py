"""Adapters of other tuners and compilers, whose packages are imported only when they are used."""
