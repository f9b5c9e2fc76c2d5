"""The command ``spark-statestore``: looks into checkpoints and savepoints, and takes care of them."""
