"""The command ``anatune export``: its options, finding the schedule, writing the files."""
