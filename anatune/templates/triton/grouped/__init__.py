"""Products of many experts in one launch, and products whose operands have a scale for every block."""
