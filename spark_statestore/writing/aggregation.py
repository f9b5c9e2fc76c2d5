"""State of a streaming aggregation, computed by Spark from a batch of its input."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from spark_statestore.errors import OptionError, SessionError
from spark_statestore.rows.types import with_unique_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CLASS: Final = "org.apache.spark.sql.statestore.bootstrap.AggregationState"


def aggregation_state(aggregated: DataFrame) -> DataFrame:
    """Return the state that a streaming aggregation would have after a batch of its input.

    Spark plans the aggregation as that of a stream, so that the state has what Spark keeps of each function:
    of an average, its sum and its count.

    Parameters
    ----------
    aggregated
        The history with the aggregation of the query, such as
        ``history.groupBy("carrier").agg(f.avg("delay"))``. Its columns have the types that the query's have.
        Of several aggregations the last one counts. A session of `configure` has made it.

    Returns
    -------
    DataFrame
        The columns ``key`` and ``value`` with the fields of `read_state`, for `bootstrap` and `write_state`.
        Windows and sessions that have ended are in it.

    Raises
    ------
    OptionError
        If there is no aggregation, or it is that of a stream.
    SessionError
        If the session is one of Spark Connect, or has not this package's jar.

    Notes
    -----
    Spark raises its own `AnalysisException` for an aggregation that it refuses in streams.
    """
    frame = getattr(aggregated, "_jdf", None)
    if frame is None:
        raise SessionError(
            "a Spark Connect client cannot compute the state of an aggregation, which needs the classes of "
            "the server's session. Compute it in a session of its own on the server."
        )
    if aggregated.isStreaming:
        raise OptionError(
            "the aggregation is one of a stream, whose rows are not there yet. Pass the same aggregation of "
            "the history, such as a table read with spark.read."
        )
    spark: Any = aggregated.sparkSession
    state = _class(spark).of(frame)
    if state is None:
        raise OptionError(
            "the data frame does not end in an aggregation, so that it has no state of one. Pass the result "
            "of groupBy(...).agg(...) before it is joined or united with other data."
        )
    return _with_unique_names(type(aggregated)(state, spark))


def _class(spark: Any) -> Any:
    jvm = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        jvm.java.lang.Class.forName(_CLASS, True, loader)
    except Exception as error:
        raise SessionError(
            "the jar of spark-statestore is not on the session's class path: build the session with "
            "spark_statestore.configure(SparkSession.builder)."
        ) from error
    return jvm.org.apache.spark.sql.statestore.bootstrap.AggregationState


def _with_unique_names(state: DataFrame) -> DataFrame:
    """Return state whose fields have the names of `read_state`."""
    from pyspark.sql.types import StructType

    columns = []
    for field in state.schema.fields:
        kind = StructType.fromJson(json.loads(with_unique_names(field.dataType.json())))
        columns.append(state[field.name].cast(kind).alias(field.name))
    return state.select(columns)
