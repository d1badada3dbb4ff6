"""Calls of the package clients (pip, npm): with progress, and with errors that say what failed."""

import os
import shlex
import subprocess
import sys
import tempfile
import time

from cache import SetupError

PYTHON = "/usr/bin/python3"  # Debian's own; another python3 on PATH may lack venv or be too new.
BAR_WIDTH = 30
ERROR_LINES = 15


def bytes_below(folder):
    """Bytes of all files in a folder, which a client may be changing right now."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:
                pass
    return total


class Progress:
    """Tells on stderr how a download (or a build) goes: a bar on a terminal, else one line at each end."""

    def __init__(self, title, expected_bytes=None, watched=None, verb="fetching"):
        self.title = title
        self.expected_bytes = expected_bytes
        self.watched = watched
        self.is_terminal = sys.stderr.isatty()
        self.started = time.monotonic()
        if not self.is_terminal:
            size = f" ({expected_bytes / 1e6:.1f} MB)" if expected_bytes else ""
            print(f"setup: {title}: {verb}{size}", file=sys.stderr, flush=True)

    def tick(self):
        if not self.is_terminal:
            return
        seconds = time.monotonic() - self.started
        if self.expected_bytes:
            part = min(1.0, bytes_below(self.watched) / self.expected_bytes)
            bar = "#" * int(part * BAR_WIDTH)
            text = f"[{bar:<{BAR_WIDTH}}] {part:4.0%} of {self.expected_bytes / 1e6:.1f} MB"
        else:
            text = "working"
        print(f"\r\033[Ksetup: {self.title}: {text}, {seconds:.0f} s", end="", file=sys.stderr,
              flush=True)

    def done(self, text="ready"):
        start = "\r\033[K" if self.is_terminal else ""
        seconds = time.monotonic() - self.started
        print(f"{start}setup: {self.title}: {text} ({seconds:.1f} s)", file=sys.stderr, flush=True)

    def clear(self):
        if self.is_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def call(command, progress, cwd=None, env=None):
    """Runs a client quietly; raises SetupError with its last lines when it fails."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        try:
            process = subprocess.Popen(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL,
                                       stdout=output, stderr=subprocess.STDOUT)
        except OSError as error:
            progress.clear()
            raise SetupError(f"{progress.title}: {command[0]} cannot be started: {error.strerror}\n"
                             "  fix: make packages") from error
        try:
            while process.poll() is None:
                progress.tick()
                time.sleep(0.1)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        if process.returncode == 0:
            return
        progress.clear()
        output.seek(0)
        lines = output.read().strip().splitlines()[-ERROR_LINES:]
    raise SetupError("\n".join([
        f"{progress.title}: the package client failed with exit code {process.returncode}",
        f"  command: {shlex.join(map(str, command))}",
        *(f"  | {line}" for line in lines),
        "  fix: check the network and the client's proxy or mirror settings and repeat. Without a",
        "       network, set KVFERRY_CACHE to the filled .cache folder of another clone."]))


def make_venv(path, progress):
    """Makes a fresh virtual environment; Debian's Python brings pip for it, so no network."""
    call([PYTHON, "-m", "venv", "--clear", path], progress)


def pip(venv, arguments, progress, temporary):
    """Runs the environment's own pip, with its unfinished downloads in a folder we can watch."""
    env = dict(os.environ, TMPDIR=str(temporary), PIP_DISABLE_PIP_VERSION_CHECK="1",
               PYTHONNOUSERSITE="1")
    env.pop("PYTHONPATH", None)
    env.pop("PYTHONHOME", None)
    call([venv / "bin" / "python", "-m", "pip", *arguments], progress, env=env)
