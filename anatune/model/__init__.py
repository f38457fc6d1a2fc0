"""What is made of analytical models: plans, joint orders, ranges, subsets, corrections; the models are in `templates`."""
