"""Addresses at which somebody is there again: a prefill process, and a decode rank."""

import time

import ranks
import steps
from relay import Relay
from scene import NotRun

STORY = ("An address refuses one connection and takes all later ones; a prefill process is killed and "
         "starts again at its address.")
# What the status socket takes before a send waits, and more.
SWALLOWED_ROOMS = 1_100
# Refused or not, a connection on this host has its end long before.
CONNECT_SECONDS = 0.5


def tell(scene):
    one_refused_connection(scene)
    prefill_starts_again(scene)


def one_refused_connection(scene):
    port = ranks.free_port()
    prefill, decode = ranks.start_prefill("p0", port), ranks.start_decode()
    decode.ask("connect", steps.address(port))
    relay = Relay(decode.ask("rank_port"))
    decode.ask("advertise", relay.port)
    scene.say("p0 and d0 run SGLang's own classes; d0's status port is reached through a relay")
    steps.expect_rooms(scene, prefill, decode, port, range(1, 21))
    if scene.fault:
        relay.cut()
        scene.say("the relay ends the connection and takes new ones")
        cut = range(40, 60)
        steps.open_rooms(prefill, decode, port, cut)
        steps.judge_rooms(scene, decode, cut, "after a connection that was cut")
        relay.refuse()
        scene.say("the relay ends the connection and refuses new ones; d0 lives on")
    accepted = relay.accepted
    lost = range(21, 22)
    steps.open_rooms(prefill, decode, port, lost)
    if steps.successes(steps.await_ends(prefill, lost)) != 1:
        raise NotRun("p0 did not end the room that meets the refused connection")
    if scene.fault:
        time.sleep(CONNECT_SECONDS)
        if relay.accepted != accepted:
            raise NotRun("the relay took a connection that it should refuse")
        relay.listen()
        scene.say("p0 has told d0 of one room meanwhile, in vain; the relay takes connections again")
    after = range(100, 120)
    steps.open_rooms(prefill, decode, port, after)
    sent = steps.successes(steps.await_ends(prefill, after))
    scene.say(f"p0 counts {sent} of {len(after)} new rooms as succeeded")
    steps.judge_rooms(scene, decode, after, "after one refused connection")
    if scene.fault:
        scene.say(f"p0 has opened {relay.accepted - accepted} connections to d0 since then")
        swallow(scene, prefill, decode, port)
    for side in (decode, prefill):
        side.kill()


def swallow(scene, prefill, decode, port):
    """How many statuses vanish without an error."""
    rooms = range(1_000, 1_000 + SWALLOWED_ROOMS)
    steps.open_rooms(prefill, decode, port, rooms)
    sent = steps.successes(steps.await_ends(prefill, rooms))
    heard = len(steps.await_ends(decode, rooms, 0))
    scene.figure("swallowed_statuses", sent - heard)
    if sent > heard:
        scene.find("I3", f"of {len(rooms)} more rooms p0 counts {sent} as succeeded, and d0 heard of "
                         f"{heard}; sends after them wait, SGLang's limit is 30 s each")


def prefill_starts_again(scene):
    prefill, decode, port = steps.start_pair(scene)
    steps.expect_rooms(scene, prefill, decode, port, range(1, 21))
    flying = range(30, 38)
    # In the story with the fault their senders hold back.
    prefill.ask("open", list(flying), steps.address(port), scene.fault)
    decode.ask("open", list(flying), steps.address(port))
    if scene.fault:
        steps.await_states(prefill, flying, "WaitingForInput")
        prefill.kill()
        prefill = ranks.start_prefill("p0", port)
        scene.say(f"p0 is killed with {len(flying)} rooms in flight, and runs again at its address; "
                  f"its health check answers {steps.health(port)}")
    after = range(100, 120)
    steps.open_rooms(prefill, decode, port, after)
    steps.judge_rooms(scene, decode, after, "after p0's restart")
    ended = steps.await_ends(decode, flying, 1)
    if len(ended) != len(flying):
        scene.find("I3", f"{len(flying) - len(ended)} of {len(flying)} rooms with p0's former life "
                         "have no end, since the new life answers d0's heartbeat at their address")
    for side in (decode, prefill):
        side.kill()
