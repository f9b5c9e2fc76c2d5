"""State: handles to it and what is done with them."""

from spark_statestore.state.objects import CompositeStateHandle, StateObject, discard_all

__all__ = ["CompositeStateHandle", "StateObject", "discard_all"]
