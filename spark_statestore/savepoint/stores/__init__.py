"""Where savepoints are put, by path."""
