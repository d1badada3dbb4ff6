"""The network takes one abort and loses it."""

import ranks
import steps
from relay import Relay
from scene import NotRun

STORY = "A connection takes an abort, loses it and breaks."
DOOMED = 50
# kvferry says an unanswered message again after 100 ms; SGLang frees the pages after 30 s.
HEARD_SECONDS = 10


def tell(scene):
    port = ranks.free_port()
    prefill, decode = ranks.start_prefill("p0", port), ranks.start_decode()
    relay = Relay(prefill.ask("rank_port"))
    prefill.ask("advertise", relay.port)
    decode.ask("connect", steps.address(port))
    scene.say("p0 and d0 run SGLang's own classes; p0's control port is reached through a relay")
    steps.expect_rooms(scene, prefill, decode, port, range(1, 21))
    if not relay.accepted:
        raise NotRun("d0 does not go through the relay")
    prefill.ask("open", [DOOMED], steps.address(port), True)
    decode.ask("open", [DOOMED], steps.address(port))
    steps.await_states(prefill, [DOOMED], "WaitingForInput")
    scene.say(f"room {DOOMED} is under way: p0 knows its pages and has not sent yet")
    relay.swallow(scene.fault)
    taken = relay.forgotten
    decode.ask("abort", [DOOMED])
    if scene.fault:
        if not relay.await_forgotten(taken + 1, steps.ROOM_SECONDS):
            raise NotRun("the abort did not come to the relay")
        relay.cut()
        relay.swallow(False)
        scene.say("d0 aborts it; the relay has taken the abort, loses it and ends the connection, and "
                  "takes new ones at once")
    after = range(100, 120)
    steps.open_rooms(prefill, decode, port, after)
    steps.judge_rooms(scene, decode, after, "after the abort")
    ended = steps.await_ends(prefill, [DOOMED], HEARD_SECONDS)
    if DOOMED in ended:
        scene.say(f"p0 has heard of the abort: {ended[DOOMED][0]}")
    else:
        scene.find("I6", f"d0 has aborted room {DOOMED}; after {HEARD_SECONDS} s p0 has not heard of "
                         "it, and nothing says it again")
    prefill.ask("release", [DOOMED])
    ended = steps.await_ends(prefill, [DOOMED])
    if ended.get(DOOMED, ("", 0))[0] == ranks.SUCCESS:
        scene.find("I1", f"p0 sends room {DOOMED} and counts it as succeeded: its engine got writes to "
                         "pages of an aborted room, which SGLang's decode gives away 30 s after the "
                         "abort, answered or not")
    for side in (decode, prefill):
        side.kill()
