"""Read the state of a query, which may be running, with pandas and DuckDB, without Spark and Java.

python examples/word_count.py work
python examples/read_state.py work/checkpoint
"""

import sys

import duckdb

import spark_statestore


def main(checkpoint: str) -> None:
    # A pyarrow.Table with the columns key, value and partition_id, as of the newest committed batch.
    state = spark_statestore.read_state(checkpoint)
    print("state:", ", ".join(f"{field.name} {field.type}" for field in state.schema))

    # pandas, with a column for each field.
    frame = state.flatten().to_pandas()
    longest = frame.loc[frame["key.word"].str.len().idxmax()]
    print(f"pandas: {len(frame)} words, the longest one is {longest['key.word']}")

    # DuckDB finds the table by the name of its variable.
    top = duckdb.sql("select key.word as word, value.count as n from state order by n desc, word limit 3")
    print("duckdb:", ", ".join(f"{word} {count}" for word, count in top.fetchall()))

    # State that is larger than memory, in record batches; here one column only.
    pieces = spark_statestore.iter_state(checkpoint, columns=["value.count"], batch_rows=4)
    counts = [count for piece in pieces for count in piece["value"].field("count").to_pylist()]
    print(f"in pieces: {sum(counts)} words were counted")

    # The changes between two batches that the query retains.
    changes = spark_statestore.diff_state(checkpoint, 0, 1).to_pylist()
    for change in sorted(changes, key=lambda change: change["key"]["word"])[:2]:
        before, after = change["before"]["count"], change["after"]["count"]
        print(f"batch 1 {change['change']} {change['key']['word']}: {before} to {after}")


if __name__ == "__main__":
    main(sys.argv[1])
