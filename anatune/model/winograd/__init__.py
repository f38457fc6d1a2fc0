"""The analytical model of Winograd's transforms on CPUs."""
