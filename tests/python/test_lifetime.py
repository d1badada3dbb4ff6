"""Ends in every order: stop, destruction, the interpreter's exit, a fork."""

import gc
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

import kvferry
import ranks
from kvferry import FailureCode, KvPoll

PROLOGUE = f"""
import atexit, sys
at_end = []  # Called after what the package does at the exit.
atexit.register(lambda: [print(call()) for call in at_end])
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import kvferry, ranks
pair = ranks.Pair()
rooms = [pair.open(number, first=4 * number) for number in range(8)]
for room in rooms:
    room.grant()
for room in rooms:
    room.await_grant()
"""


def run_script(body, **variables):
    """Runs a program that has a pair with eight open rooms; returns what it printed."""
    result = subprocess.run([sys.executable, "-X", "faulthandler", "-c",
                             PROLOGUE + textwrap.dedent(body)], env=os.environ | variables,
                            capture_output=True, text=True, timeout=ranks.PATIENCE_S * 2, check=False)
    assert result.returncode == 0, (result.returncode, result.stdout, result.stderr)
    return result.stdout


def test_stop_with_open_rooms(pair):
    room = pair.open(1)
    room.grant()
    room.await_grant()
    pair.decode.stop()
    pair.decode.stop()
    assert room.receiver.poll() == KvPoll.Failed
    assert room.receiver.failure().code == FailureCode.ShuttingDown
    (released,) = pair.decode.take_released()
    assert sorted(released.pages) == sorted(room.target)
    with pytest.raises(kvferry.KvferryError):
        kvferry.KvReceiver(pair.decode, 2, 2).init(pair.server.address())
    room.receiver.abort()
    room.receiver.clear()
    assert pair.decode.take_changed() is None


def test_context_managers_stop(server):
    memory = ranks.Memory()
    with kvferry.KvManager(ranks.kv_args(kvferry.Role.Decode, memory.regions()),
                           ranks.OPTIONS) as manager:
        receiver = kvferry.KvReceiver(manager, 1, 1)
    assert receiver.failure().code == FailureCode.ShuttingDown
    with pytest.raises(kvferry.KvferryError, match="Address already in use|in use"):
        host, port = server.address().rsplit(":", 1)
        kvferry.BootstrapServer(kvferry.BootstrapServerOptions(host=host, port=int(port)))


def test_handles_outlive_their_manager_object(server):
    made = ranks.Pair(server=server)
    room = made.open(1)
    made.decode.stop()
    made.prefill.stop()
    del made, room.pair
    gc.collect()
    assert room.sender.poll() == KvPoll.Failed
    room.sender.clear()
    del room


@pytest.mark.parametrize("body", [
    "print('end')",  # Everything is still a global of the module.
    "del pair; print('end')",  # Only the rooms are left.
    "keep = [pair, rooms]; keep.append(keep); print('end')",  # A cycle that is never collected.
    "import os; sys.modules['kept'] = rooms; print('end')",
    "pair.prefill.stop(); print('end')",
    "print('end'); raise SystemExit(0)",
], ids=["globals", "rooms", "cycle", "modules", "stopped", "SystemExit"])
def test_exit_with_open_rooms(body):
    assert run_script(body) == "end\n"


def test_exit_stops_what_nobody_destroys():
    printed = run_script("""
        cycle = [pair, rooms]
        cycle.append(cycle)
        at_end.append(lambda: rooms[0].sender.failure().code.name)
        at_end.append(lambda: rooms[0].receiver.failure().code.name)
        """)
    assert printed == "ShuttingDown\nShuttingDown\n"


def test_exit_while_daemon_threads_call():
    # Each would meet an interpreter that is gone when its call returns.
    run_script("""
        import numpy, threading
        ids, statuses = numpy.zeros(100_000, "u8"), numpy.zeros(100_000, "u1")
        calls = [lambda: pair.prefill.poll_many(ids, statuses), pair.prefill.dump_status,
                 pair.decode.metrics, rooms[0].receiver.poll,
                 lambda: kvferry.KvSender(pair.prefill, 99, kvferry.Binding.random())]
        running = threading.Barrier(len(calls) + 1)
        def forever(call):
            call()
            running.wait()
            while True:
                call()
        for call in calls:
            threading.Thread(target=forever, args=[call], daemon=True).start()
        running.wait()
        """)


def test_unhandled_exception_says_why_and_ends():
    with pytest.raises(AssertionError, match="page_count: -1 is not from 0"):
        run_script("kvferry.KvSender(pair.prefill, 77, 77).init(-1)")


def test_forked_child_is_told_and_harms_nothing():
    # The child drops every object it got from its parent, which join no thread and free no lock.
    printed = run_script("""
        import gc, os
        child = os.fork()
        if child == 0:
            code = 1
            calls = [pair.prefill.dump_status, pair.decode.take_released, rooms[0].sender.poll,
                     pair.prefill.stop, pair.server.stop, lambda: rooms[0].sender.abort(),
                     lambda: kvferry.KvReceiver(pair.decode, 99, 99)]
            try:
                for call in calls:
                    try:
                        call()
                        print("no error", flush=True)
                    except kvferry.KvferryError as error:
                        assert error.failure.code == kvferry.FailureCode.WrongState
                        assert "belongs to the parent process" in str(error)
                del pair, rooms, room, calls, call
                gc.collect()
                # A manager of the child's own works.
                own = ranks.Pair()
                own.open(1)
                own.stop()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        for room in rooms:
            room.fill()
            room.sender.send(room.source)
        for room in rooms:
            room.await_ends()
            assert room.receiver.poll() == kvferry.KvPoll.Success and room.arrived()
        print("parent")
        """)
    assert printed == "parent\n"


def test_logging_needs_no_gil(tmp_path):
    # The thread that holds the GIL waits in C for a line that a thread of the library has to write.
    token = tmp_path / "token"
    token.write_text("a token that nobody can guess\n")
    printed = run_script("""
        import ctypes, os, select, socket
        pair.stop()  # It could have a line of its own to write.
        read, write = os.pipe()
        os.dup2(write, 2)
        options = kvferry.BootstrapServerOptions(cluster_token_file=os.environ["TOKEN"])
        with kvferry.BootstrapServer(options) as server:
            host, port = server.address().rsplit(":", 1)
            stranger = socket.create_connection((host, int(port)))
            stranger.sendall(b"GET /v1/ranks HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
            poll = ctypes.PyDLL(None).poll  # Keeps the GIL, unlike select.
            watched = (ctypes.c_int * 2)(read, select.POLLIN)
            assert poll(watched, 1, 30_000) == 1
        assert b"unauthorized request" in os.read(read, 4096)
        print("written")
        """, TOKEN=str(token))
    assert printed == "written\n"
