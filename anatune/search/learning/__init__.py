"""Models that strategies fit while they search."""
