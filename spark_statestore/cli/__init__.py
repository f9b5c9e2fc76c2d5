"""The command ``spark-statestore``, which inspects and maintains checkpoints and savepoints."""
