"""Which binding a request of SGLang has.

kvferry asks the caller for 128 bits that name one request, new for each retry, so that a room number
that is used again can't mix two requests. SGLang's interface has no such name: all that both of its
sides hold is the request's room number and its bootstrap host, as one router wrote them into the
bodies for both. So the binding here is a digest of the two, the weaker class:

- rooms of different prefill servers never meet, even with equal numbers at one decode server;
- a second request with the room and host of one that is still open is refused as a duplicate;
- a request that takes the room of an ended one may meet what is left of that one. Decode numbers its
  attempts, and each grant is fenced before its pages are free, so the later request may then fail; it
  never gets the other's bytes, and no page is written after it was given back.

The port is left out: prefill knows its own, decode the one that the request named, and behind a port
mapping they differ. So is the case of the host's letters.
"""

import hashlib

_PERSON = b"kvferry-sglang-1"  # at most 16 bytes; the number changes with the rule above


def derive(bootstrap_address: str, room: int) -> bytes:
    """Returns the 16 bytes of the binding of a room.

    bootstrap_address: host:port as SGLang's scheduler gives it, an IPv6 host in brackets.
    room: SGLang's bootstrap room, from 1 to 2**64 - 1.
    """
    host, _, _ = bootstrap_address.rpartition(":")
    text = room.to_bytes(8, "little") + host.lower().encode()
    return hashlib.blake2b(text, digest_size=16, person=_PERSON).digest()
