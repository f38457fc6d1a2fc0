"""Tuning on other machines: clusters of Dask, boards behind TVM's tracker, job queues."""
