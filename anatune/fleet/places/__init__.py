"""Other machines as places to measure: a Dask cluster, or boards behind a tracker."""
