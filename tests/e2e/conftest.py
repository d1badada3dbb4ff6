"""Real processes on loopback: each test gets servers on free ports and their logs when it fails."""

import os
import pathlib

import pytest

import fleet as fleets

REPORT = pytest.StashKey()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    item.stash.setdefault(REPORT, []).append(report)
    return report


@pytest.fixture
def servers(request, tmp_path):
    """A fleet without any process yet; ends all that the test started."""
    fleet = fleets.Fleet(tmp_path)
    yield fleet
    problems = fleet.stop()
    if problems or any(report.failed for report in request.node.stash.get(REPORT, [])):
        fleet.print_logs()
    assert not problems, problems


@pytest.fixture
def cluster(servers):
    """Bootstrap, prefill, decode and router with the synthetic engine, paired."""
    return servers.start_pair()


@pytest.fixture
def slow_cluster(servers):
    """As cluster, with prefill chunks that take long enough to interrupt them."""
    return servers.start_pair(prefill_delay_ms=40)


@pytest.fixture(scope="session")
def model():
    """The real model, as make test provides it."""
    path = pathlib.Path(os.environ.get("KVFERRY_E2E_MODEL") or fleets.ROOT / ".cache" / "model"
                        / "SmolLM2-135M-Instruct.Q4_0.gguf")
    if not path.exists():
        pytest.skip(f"{path} is missing")
    return path
