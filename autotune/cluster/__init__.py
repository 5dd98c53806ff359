"""Compilers and measuring processes on other machines, which a tuning run uses like its own."""

from autotune.cluster.dask_cluster import DaskCluster, connected
