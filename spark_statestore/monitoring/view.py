"""A query's state in a notebook: a table of its operators, and plots by batch."""

from __future__ import annotations

import html
import time
from typing import TYPE_CHECKING, Any, Final

from spark_statestore.errors import IllegalStateError, MissingPackageError
from spark_statestore.monitoring.frame import DURATION, progress
from spark_statestore.monitoring.plots import draw_sizes, draw_times, image_of, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

# Of the newest batch; the last four are custom metrics of this store, which those of Spark do not have.
_SHOWN: Final = (
    "operatorId",
    "operatorName",
    "numRowsTotal",
    "numRowsUpdated",
    "numRowsRemoved",
    "memoryUsedBytes",
    "commitTimeMs",
    "checkpointBytesWritten",
    "checkpointObjectsWritten",
    "checkpointMaxChainLength",
    "checkpointMaxSnapshotAge",
)


class StateView:
    """A query's state, as a notebook displays it.

    It shows the operators of the newest batch, and plots of the recent ones. The table needs pandas, and the
    plots matplotlib as well; what is not installed is named in their place.

    Parameters
    ----------
    query
        A ``StreamingQuery``, of a classic session or of Spark Connect.

    Examples
    --------
    In a notebook, at the end of a cell::

        spark_statestore.StateView(query)
    """

    def __init__(self, query: Any) -> None:
        self._query = query

    def watch(self, interval: float = 1.0) -> None:
        """Display the state in this cell, and update it until the query ends or the kernel is interrupted.

        Parameters
        ----------
        interval
            Seconds between two updates.

        Raises
        ------
        MissingPackageError
            If IPython is not installed.
        IllegalStateError
            If this is not a notebook.
        """
        try:
            from IPython import get_ipython
            from IPython.display import display
        except ImportError as error:
            raise MissingPackageError(
                f"watch displays in a notebook and needs {error.name}: pip install jupyterlab"
            ) from error
        # IPython in a terminal has no kernel.
        if not hasattr(get_ipython(), "kernel"):
            raise IllegalStateError(
                "watch displays in a notebook, and this process is none: use "
                "spark_statestore.progress(query), or on the command line spark-statestore watch CHECKPOINT."
            )
        handle: Any = display(self, display_id=True)  # type: ignore[no-untyped-call]
        try:
            while self._query.isActive:
                handle.update(self)
                time.sleep(interval)
            # Its last batch may have ended after the last update.
            handle.update(self)
        except KeyboardInterrupt:
            # The way to end it, which leaves the query running.
            return

    def _repr_html_(self) -> str:
        name = html.escape(self._query.name or "query")
        state = "runs" if self._query.isActive else "has ended"
        heading = f"<p><b>{name}</b> ({html.escape(str(self._query.id))}) {state}"
        try:
            frame = progress(self._query)
        except MissingPackageError as error:
            return f"{heading}</p><p>{html.escape(str(error))}</p>"
        if frame.empty:
            return f"{heading}; no batch with stateful operators yet</p>"
        newest = frame[frame["batchId"] == frame["batchId"].max()]
        table = newest[[column for column in _SHOWN if column in newest]].to_html(
            index=False, border=0, na_rep=""
        )
        return (
            f"{heading}, batch {newest['batchId'].iloc[-1]} of {newest['timestamp'].iloc[-1]}</p>"
            f"{table}{_plots(frame)}"
        )


def _plots(frame: DataFrame) -> str:
    try:
        require_matplotlib("the plot")
    except MissingPackageError as error:
        return f"<p>{html.escape(str(error))}</p>"
    return image_of(_figure(frame), "state and durations by batch")


def _figure(frame: DataFrame) -> Figure:
    """Return a figure with the state of all operators, and the durations, by batch."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    sizes, times = figure.subplots(1, 2)
    batches = frame.groupby("batchId")
    state = batches[["memoryUsedBytes", "numRowsTotal"]].sum()
    numbers = state.index.tolist()
    draw_sizes(
        sizes,
        "State in memory by batch",
        numbers,
        state["memoryUsedBytes"].tolist(),
        state["numRowsTotal"].tolist(),
    )
    # Durations are the same in all rows of a batch.
    # With commit=batch the commit log waits for what tasks have handed over.
    names = [f"{DURATION}{name}" for name in ("triggerExecution", "addBatch", "commitOffsets")]
    durations = batches[names].first().fillna(0)
    draw_times(
        times,
        "Duration of a batch",
        numbers,
        {name.removeprefix(DURATION): durations[name].tolist() for name in durations},
    )
    return figure
