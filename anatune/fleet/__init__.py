"""Tuning on other machines: Dask clusters, boards behind TVM's RPC tracker, job queues."""
