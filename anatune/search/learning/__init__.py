"""What strategies learn from while they search."""
