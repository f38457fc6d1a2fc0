"""Records of trials: in an SQLite file or on a PostgreSQL server, one row a trial, many processes."""
