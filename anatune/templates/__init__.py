"""Templates: kinds of schedules, a room each, and what rooms share."""
