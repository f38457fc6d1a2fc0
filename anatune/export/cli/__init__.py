"""``anatune export``: where the schedule comes from, what is written."""
