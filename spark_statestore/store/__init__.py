"""One state store: commit, load, snapshot, lineage and retention of its versions."""
