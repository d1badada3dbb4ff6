"""The package itself: its stub, its imports, its example."""

import difflib
import inspect
import os
import pathlib
import re
import subprocess
import sys

import pytest

import kvferry
from kvferry import _kvferry

ROOT = pathlib.Path(__file__).resolve().parents[2]
STUB = ROOT / "python" / "kvferry" / "_kvferry.pyi"


def generate(folder):
    """The stub of the installed module, as tools/python_stub.py writes it."""
    path = folder / "_kvferry.pyi"
    subprocess.run([sys.executable, ROOT / "tools" / "python_stub.py", "--output", path], check=True)
    return path.read_text(encoding="utf-8")


def test_stub_agrees_with_the_module(tmp_path):
    made, kept = generate(tmp_path), STUB.read_text(encoding="utf-8")
    difference = "".join(difflib.unified_diff(kept.splitlines(True), made.splitlines(True),
                                              str(STUB), "the module"))
    assert made == kept, f"{difference}\nfix: tools/python_stub.py"
    # The comparison sees a change: the module's own words are in it.
    assert "def poll_many(self, ids: ArrayBuffer, statuses: ArrayBuffer) -> None:" in made
    compile(made, STUB.name, "exec")


def test_every_public_name_is_exported_and_documented():
    names = {name for name in vars(_kvferry) if not name.startswith("_")} | {"__version__"}
    assert set(kvferry.__all__) == names
    for name in names - {"__version__", "MAX_REGIONS", "AUX_RECORD_BYTES"}:
        member = getattr(kvferry, name)
        assert inspect.getdoc(member), name
    assert re.fullmatch(r"\d+\.\d+\.\d+", kvferry.__version__)


def test_every_name_of_the_headers_is_there():
    # Functions of the public headers; what has another name in Python is listed with it.
    elsewhere = {"to_string": "str()", "option_rows": None, "base": None, "bytes": None, "fd": None,
                 "value": "ids are ints", "next": "ids are ints", "from_hex": "Binding(text)"}
    classes = {"kv_manager.h": kvferry.KvManager, "kv_sender.h": kvferry.KvSender,
               "kv_receiver.h": kvferry.KvReceiver, "bootstrap_server.h": kvferry.BootstrapServer,
               "shared_pool.h": kvferry.SharedPool}
    missing = []
    for header, bound in classes.items():
        text = (ROOT / "include" / "kvferry" / header).read_text(encoding="utf-8")
        for name in re.findall(r"^  (?:static |virtual )?[\w:<>,&* ]+?[ &*>](\w+)\([^)]*", text, re.M):
            if not hasattr(bound, name) and name not in elsewhere and not name[0].isupper():
                missing.append(f"{header}: {name}")
    assert missing == []


def test_import_loads_nothing_heavy():
    # The standard library's part is small and is there already when most programs start.
    script = (f"import sys; sys.path[:0] = {sys.path!r}; import atexit, enum, os; "
              "before = set(sys.modules); import kvferry; print(*set(sys.modules) - before)")
    printed = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True,
                             text=True, check=True).stdout.split()
    loaded = {name for name in printed if not name.startswith("nanobind")}
    assert loaded == {"kvferry", "kvferry._kvferry"}


@pytest.mark.parametrize("arguments", [["--transport", "shm"], ["--transport", "tcp"],
                                       ["--rooms", "1", "--pages", "1"]], ids=" ".join)
def test_example(arguments):
    result = subprocess.run([sys.executable, ROOT / "examples" / "two_process.py", *arguments],
                            capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "every byte is equal" in result.stdout
    assert "GB/s" in result.stdout
