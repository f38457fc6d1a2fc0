"""``anatune tune``: the command, its options and its output."""
