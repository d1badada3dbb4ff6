"""A burst of aborts from twelve threads towards one peer."""

import steps

STORY = "A burst of aborts from twelve threads towards one peer."
ROOMS = 1_200
THREADS = 12
FIRST = 1_000


def tell(scene):
    prefill, decode, port = steps.start_pair(scene)
    steps.expect_rooms(scene, prefill, decode, port, range(1, 21))
    rooms = list(range(FIRST, FIRST + ROOMS))
    # Their senders hold back, so that an abort is what ends them.
    prefill.ask("open", rooms, steps.address(port), True)
    decode.ask("open", rooms, steps.address(port))
    steps.await_states(prefill, rooms, "WaitingForInput")
    scene.say(f"{ROOMS} rooms are open, their pages are known to p0")
    if scene.fault:
        decode.ask("abort", rooms, THREADS)
        scene.say(f"{THREADS} threads of d0 abort all of them at once")
        ended = steps.await_ends(prefill, rooms)
        scene.say(f"p0 has heard of {len(ended)} of {ROOMS} aborts")
        if len(ended) != ROOMS:
            scene.find("I3", f"{ROOMS - len(ended)} aborts did not reach p0")
    for side in (prefill, decode):
        for each in side.ask("dead_threads"):
            scene.find("I6", f"{side.name}: a thread died and nothing restarts it: {each}")
    after = range(100, 120)
    steps.open_rooms(prefill, decode, port, after)
    steps.judge_rooms(scene, decode, after, "after the burst")
