"""The commands ``anatune compile`` and ``anatune run``."""
