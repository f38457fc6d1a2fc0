"""Measuring on other machines through Dask: who may connect, what a worker is, what it does."""
