"""Estimates of `spark-statestore assess`, compared with queries that run."""
