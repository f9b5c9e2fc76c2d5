"""All tests; the shared contracts and state machines assert as test modules do."""

import pytest

pytest.register_assert_rewrite("tests.support.contracts", "tests.support.machines")
