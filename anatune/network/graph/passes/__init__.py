"""What is done to a model's graph before it is planned: one pass a function, and the list of them in order."""
