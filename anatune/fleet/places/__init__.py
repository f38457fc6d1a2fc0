"""Other machines as places that measure: a Dask cluster, boards behind a tracker."""
