"""SGLang's own code with kvferry's plug-in. Children run on the interpreter that has SGLang; pytest
runs on one that has pytest. Both must be of one version, since they share the package's module."""

import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))


@pytest.fixture(scope="session")
def site():
    """The folder with the installed package that tools/python_module.py makes."""
    folder = pathlib.Path(os.environ.get("KVFERRY_PYTHON_SITE") or ROOT / "build" / "python" / "site")
    assert (folder / "kvferry").is_dir(), f"{folder} is missing; fix: tools/python_module.py"
    return folder


@pytest.fixture(scope="session")
def sglang_python():
    """The interpreter of the pinned environment with SGLang."""
    python = pathlib.Path(os.environ.get("KVFERRY_SGLANG_PYTHON") or ROOT / ".cache"
                          / "venv-peer-sglang" / "bin" / "python")
    if not python.exists():
        pytest.skip(f"{python} is missing; fix: tools/setup/venv.py --no-deps peer-sglang")
    return python
