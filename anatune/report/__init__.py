"""Tables and text for people."""
