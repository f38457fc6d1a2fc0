"""The analytical model of thin schedules, streams of one large operand, and its exact ranking."""
