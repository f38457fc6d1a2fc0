"""Records of trials in an SQLite file or on a PostgreSQL server, one row for each trial, for many processes."""
