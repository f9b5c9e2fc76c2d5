"""State: handles to it and what is done with them."""

from spark_statestore.state.objects import StateObject, discard_all

__all__ = ["StateObject", "discard_all"]
