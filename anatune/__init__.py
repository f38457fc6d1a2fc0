"""anatune."""
