"""What is made of analytical models: plans, joint orders, ranges, subsets, corrections; models are in `templates`."""
