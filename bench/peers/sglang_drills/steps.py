"""What several stories do in the same way."""

import time
import urllib.request

import ranks
from scene import NotRun

POLL_SECONDS = 0.02
# A healthy room takes a few milliseconds; SGLang itself waits 300 s before it fails one.
ROOM_SECONDS = 5
SGLANG_LIMIT_SECONDS = 300


def address(port):
    return f"127.0.0.1:{port}"


def start_pair(scene):
    """A prefill rank with its bootstrap server, and a decode rank that knows it."""
    port = ranks.free_port()
    prefill, decode = ranks.start_prefill("p0", port), ranks.start_decode()
    decode.ask("connect", address(port))
    scene.say("p0 and d0 run SGLang's own manager, sender and receiver; p0 its bootstrap server")
    return prefill, decode, port


def open_rooms(prefill, decode, port, rooms):
    for side in (prefill, decode):
        side.ask("open", list(rooms), address(port))


def await_states(rank, rooms, state):
    deadline = time.monotonic() + ROOM_SECONDS
    while not rank.ask("are_all", rooms, state):
        if time.monotonic() >= deadline:
            raise NotRun(f"{rank.name}: not all of {len(rooms)} rooms became {state}")
        time.sleep(POLL_SECONDS)


def await_ends(rank, rooms, seconds=ROOM_SECONDS):
    """Returns how each of the rooms that ended within the time did, and after how long."""
    deadline = time.monotonic() + seconds
    while True:
        ended = {room: end for room, end in rank.ask("ended").items() if room in rooms}
        if len(ended) == len(rooms) or time.monotonic() >= deadline:
            return ended
        time.sleep(POLL_SECONDS)


def successes(ended):
    return sum(1 for why, _ in ended.values() if why == ranks.SUCCESS)


def expect_rooms(scene, prefill, decode, port, rooms):
    """Rooms before the fault. That one of them fails is no finding: nothing could be shown then."""
    open_rooms(prefill, decode, port, rooms)
    ended = await_ends(decode, rooms)
    if successes(ended) != len(rooms):
        raise NotRun(f"only {successes(ended)} of {len(rooms)} rooms succeed before the fault")
    slowest = max(seconds for _, seconds in ended.values())
    scene.say(f"{len(rooms)} rooms succeed, the slowest in {1e3 * slowest:.0f} ms")


def judge_rooms(scene, decode, rooms, when):
    """After the fault: one that does not succeed in time is a finding."""
    ended = await_ends(decode, rooms)
    good = successes(ended)
    if good == len(rooms):
        scene.say(f"{when}: {good} rooms succeed")
        return
    failed = sorted({why for why, _ in ended.values() if why != ranks.SUCCESS})
    causes = f" ({'; '.join(failed[:2])})" if failed else ""
    scene.find("I3", f"{when}: of {len(rooms)} new rooms {good} succeed, {len(ended) - good} "
                     f"fail{causes}, {len(rooms) - len(ended)} have no end after {ROOM_SECONDS} s; "
                     f"SGLang's limit is {SGLANG_LIMIT_SECONDS} s")


def health(port):
    """What decode's heartbeat asks: SGLang's bootstrap server of that prefill."""
    try:
        with urllib.request.urlopen(f"http://{address(port)}/health", timeout=2) as answer:
            return answer.status
    except OSError as error:
        return str(error)
