"""Models brought to another precision when they are compiled."""
