"""Thin schedules, streams of one large operand, to TVMScript."""
