"""Template "winograd": 3x3 convolutions by Winograd's transforms."""
