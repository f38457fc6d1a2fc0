"""Template "thin": streams of one large operand."""
