"""A listener gets one message that it can't read."""

import struct
import time

import steps

STORY = "A control port of a rank gets one message that it can't read."
# (whose port, what it is, frames)
FRAMES = (
    ("p0", "one frame of five bytes", [b"hello"]),
    ("d0", "an AUX_DATA message that ends after its third frame", [b"AUX_DATA", b"1", b"0"]),
)
SETTLE_SECONDS = 1


def send(port, frames):
    import zmq
    context = zmq.Context()
    socket = context.socket(zmq.PUSH)
    socket.connect(f"tcp://{steps.address(port)}")
    socket.send_multipart(frames)
    socket.close(linger=2_000)
    context.term()


def tell(scene):
    first = 1
    for name, what, frames in FRAMES:
        prefill, decode, port = steps.start_pair(scene)
        steps.expect_rooms(scene, prefill, decode, port, range(first, first + 20))
        # A message that it can read and has no use for: that a stranger can reach the port is no
        # failure yet, and the rooms after it are the control of those after the other.
        victim = prefill if name == "p0" else decode
        send(victim.ask("rank_port"), [b"999999", b"0", b"0", b""] if name == "d0" else
             [b"999999", b"127.0.0.1", b"1", b"127.0.0.1:1", struct.pack("<i", 1), b"1", b"", b"1",
              b"0", b""])
        steps.expect_rooms(scene, prefill, decode, port, range(first + 20, first + 40))
        if scene.fault:
            send(victim.ask("rank_port"), frames)
            scene.say(f"{name}'s control port gets {what}")
        dead = await_dead_thread(victim) if scene.fault else []
        for each in dead:
            scene.find("I6", f"{name}: a thread died and nothing restarts it: {each}")
        after = range(first + 40, first + 60)
        steps.open_rooms(prefill, decode, port, after)
        steps.judge_rooms(scene, decode, after, f"after it at {name}")
        if victim.is_alive() and steps.health(port) == 200:
            scene.say(f"{name} is alive and SGLang's health check answers 200 all the same")
        for side in (decode, prefill):
            side.kill()
        first += 1_000


def await_dead_thread(rank):
    deadline = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < deadline:
        if dead := rank.ask("dead_threads"):
            return dead
        time.sleep(steps.POLL_SECONDS)
    return []
