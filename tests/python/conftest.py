"""Fixtures: a fresh pair of ranks per test, ended whatever the test did."""

import pytest

import kvferry
import ranks


@pytest.fixture
def server():
    """A registry on loopback."""
    with kvferry.BootstrapServer() as started:
        yield started


@pytest.fixture
def pair(server):
    """A prefill and a decode manager with numpy memory."""
    made = ranks.Pair(server=server)
    yield made
    made.stop()
