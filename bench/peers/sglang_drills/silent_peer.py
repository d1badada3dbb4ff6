"""Peers that are stopped; the thread of decode that serves everybody must not notice."""

import ranks
import steps
from scene import NotRun

STORY = "Four prefill processes are stopped; decode's scheduler gives up requests to them."
SILENT = 4
# A long prompt: its page list fills what is on the way to a silent peer sooner.
PAGES = 4_096
# SGLang waits 1 s for a full socket.
FULL_CALL_SECONDS = 0.9
# The bound that kvferry sets itself for any call of the engine.
CALL_BOUND_SECONDS = 0.05
# First numbers of rooms.
DOOMED, FILLING = 1_000, 10_000


def tell(scene):
    ports = [ranks.free_port() for _ in range(SILENT + 1)]
    servers = ranks.Process("the bootstrap servers", ranks.Registries, ports)
    prefill = [ranks.start_prefill(f"p{i}", port, False) for i, port in enumerate(ports)]
    decode = ranks.start_decode()
    for port in ports:
        decode.ask("connect", steps.address(port))
    scene.say(f"p0 to p{SILENT} and d0 run SGLang's own manager, sender and receiver; the bootstrap "
              "servers are a process of their own")
    for i, port in enumerate(ports):
        steps.open_rooms(prefill[i], decode, port, [i + 1])
    ended = steps.await_ends(decode, range(1, SILENT + 2))
    if steps.successes(ended) != SILENT + 1:
        raise NotRun(f"only {steps.successes(ended)} of {SILENT + 1} first rooms succeed")
    decode.ask("longest_call")
    steps.expect_rooms(scene, prefill[0], decode, ports[0], range(10, 30))
    baseline, call = decode.ask("longest_call")
    scene.say(f"d0's longest call for them took {1e3 * baseline:.1f} ms ({call})")
    silent = ports[1:]
    doomed = [DOOMED + i for i in range(SILENT)]
    for room, rank, port in zip(doomed, prefill[1:], silent):
        # Its sender holds back.
        rank.ask("open", [room], steps.address(port), True)
        decode.ask("open", [room], steps.address(port))
        steps.await_states(rank, [room], "WaitingForInput")
    scene.say(f"a room with each of p1 to p{SILENT} is under way")
    if scene.fault:
        for rank in prefill[1:]:
            rank.stop()
        scene.say(f"p1 to p{SILENT} are stopped (SIGSTOP)")
        fill(scene, decode, silent)
    give_up_one_each(scene, prefill[0], decode, ports[0], doomed)
    answers = sorted({str(steps.health(port)) for port in silent})
    scene.say(f"the health checks of p1 to p{SILENT} that d0's heartbeat asks answer "
              f"{', '.join(answers)} all the same")
    for side in (decode, *prefill, servers):
        side.kill()


def fill(scene, decode, silent):
    """Requests that their callers give up, until a call has waited for a full peer."""
    for i, port in enumerate(silent):
        decode.ask("longest_call")
        opened = decode.ask("give_up_many", FILLING * (i + 1), steps.address(port), PAGES,
                            FULL_CALL_SECONDS, patience=2 * ranks.PATIENCE_SECONDS)
        longest, call = decode.ask("longest_call")
        if longest < FULL_CALL_SECONDS:
            raise NotRun(f"p{i + 1} did not get full of {opened} rooms")
        scene.say(f"p{i + 1} is full after {opened} rooms that were given up; the last '{call}' took "
                  f"{longest:.2f} s")


def give_up_one_each(scene, healthy, decode, port, doomed):
    """The callers of the rooms under way go away, while rooms with the healthy rank run."""
    rooms = range(100, 120)
    healthy.ask("open", list(rooms), steps.address(port))
    stood_still = decode.ask("open_and_abort", list(rooms), steps.address(port), doomed)
    ended = steps.await_ends(decode, rooms)
    slowest = max((seconds for _, seconds in ended.values()), default=0)
    longest, call = decode.ask("longest_call")
    scene.say(f"d0 aborts its {SILENT} rooms with p1 to p{SILENT} in {stood_still:.3f} s; the longest "
              f"call ('{call}') took {longest:.3f} s")
    scene.figure("blocked_s", stood_still)
    scene.figure("slowest_healthy_room_s", slowest)
    if stood_still > CALL_BOUND_SECONDS:
        scene.find("I5", f"d0's scheduler stood still for {stood_still:.1f} s because of {SILENT} full "
                         f"peers; rooms with p0 took up to {slowest:.1f} s")
    steps.judge_rooms(scene, decode, rooms, f"with p1 to p{SILENT} silent")
