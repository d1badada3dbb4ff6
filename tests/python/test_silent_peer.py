"""The short form of silent_peer.py: outcomes; its figures are for a quiet machine (--check)."""

import pathlib
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).with_name("silent_peer.py")


def run(*arguments):
    """The finished script."""
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True,
                          timeout=200, check=False)


def test_rooms_end_as_they_should():
    result = run("--seconds", "6")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "counter at" in result.stdout


def test_a_call_that_holds_the_gil_shows_in_the_figures():
    result = run("--seconds", "4", "--check", "--hold-gil")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "the figures miss their goals" in result.stderr
