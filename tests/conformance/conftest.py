"""The suite is shipped with the library: let pytest explain its assertions as it does those of tests."""

import pytest

pytest.register_assert_rewrite("outlast.testing.conformance")
