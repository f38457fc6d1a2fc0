"""Template "tensorcore": matrix products on matrix units."""
