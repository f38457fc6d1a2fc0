"""Records of trials: one SQLite file, one row a trial, many processes."""
