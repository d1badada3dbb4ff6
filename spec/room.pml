/* How a room ends on both sides: one sender, two decode ranks, each rank in a session of its own.
 *
 * What is said: one terminal status per side (S5); no sender reports Success where a decode rank that
 * it served reports Failed (S7); every side ends (L1: no invalid end state), although connections
 * lose what their link has received and sessions end. Deadlines are left out on purpose: they would
 * end any room and hide what is missing.
 *
 * Abort repeats until prefill's core has processed it or the session ends.
 */
#include "common.h"
#define RANKS 2
mtype = { live, success, failed };

mtype cell[RANKS] = live;        /* decode's status cell: the caller's Abort and the core race for it */
mtype sender = live;
bool grant[RANKS]; bool done[RANKS]; bool consumed[RANKS];
bool sender_failed;              /* the sender's Failed, which repeats until acknowledged */
bool at_link[RANKS];             /* an Abort that prefill's link has, its core not yet */
bool aborted[RANKS];             /* an Abort that prefill's core has processed */
bool acknowledged[RANKS]; bool sent_once[RANKS];
bool session_over[RANKS];

#ifdef WITHOUT_ABORT_UNTIL_ACKNOWLEDGED
#define MAY_SEND(r) (!sent_once[r])
#else
#define MAY_SEND(r) true
#endif

/* The caller's abort() stores into the cell at once; the core hears of it later. */
proctype Caller(byte r) {
end:
  atomic { cell[r] == live -> cell[r] = failed; REACH(abort) }
}

proctype DecodeRank(byte r) {
  grant[r] = true;
  do
#ifdef WITHOUT_CELL_DECIDES
  :: done[r] && !session_over[r] && cell[r] == live ->   /* looked, and stores a step later */
     atomic { CHECK(S5, cell[r] == live); cell[r] = success; consumed[r] = true; goto over }
#else
  :: atomic {
       done[r] && !session_over[r] && cell[r] == live ->
       cell[r] = success; consumed[r] = true; REACH(success); goto over
     }
#endif
  :: cell[r] == failed -> goto aborting
  :: atomic { sender_failed && !session_over[r] && cell[r] == live -> cell[r] = failed }
#ifndef WITHOUT_ENDED_SESSION_FAILS_ROOMS
  :: atomic { session_over[r] && cell[r] == live -> cell[r] = failed }
#endif
  od;
aborting:
  do
  :: atomic {
       !acknowledged[r] && !session_over[r] && !at_link[r] && MAY_SEND(r) -> sent_once[r] = true; at_link[r] = true
     }
  :: acknowledged[r] || session_over[r] -> break
  od;
over:
  skip
}

/* The way of an Abort into prefill's core; a connection that is reset loses what it held. */
proctype Link(byte r) {
  bool lasts;                    /* a session need not end, and nobody may wait for that */
  if :: lasts = true :: lasts = false fi;
end:
  do
  :: atomic {
       at_link[r] -> at_link[r] = false; aborted[r] = true; acknowledged[r] = true
     }
  :: atomic {
       at_link[r] -> at_link[r] = false; REACH(abort_lost);
#ifdef WITHOUT_ACKNOWLEDGED_BY_CORE
       acknowledged[r] = true
#endif
     }
  :: atomic { !lasts && !session_over[r] -> session_over[r] = true; REACH(session_end) }
  od
}

#ifdef WITHOUT_SUCCESS_ON_CONSUMED
#define SENDER_IS_DONE (done[0] && done[1])
#elif defined(WITHOUT_EVERY_GRANT_CONSUMED)
#define SENDER_IS_DONE (HEARD(consumed, 0) || HEARD(consumed, 1))
#else
#define SENDER_IS_DONE (HEARD(consumed, 0) && HEARD(consumed, 1))
#endif
#define HEARD(what, r) (what[r] && !session_over[r])

proctype Sender() {
  do
  :: atomic { HEARD(grant, 0) && grant[1] && !done[0] -> done[0] = true }
  :: atomic { HEARD(grant, 1) && grant[0] && !done[1] -> done[1] = true }
  :: atomic {
       SENDER_IS_DONE ->
       CHECK(S7, cell[0] != failed && cell[1] != failed);
       sender = success; REACH(sender_success); break
     }
  :: atomic { aborted[0] || aborted[1] -> sender = failed; break }
#ifndef WITHOUT_ENDED_SESSION_FAILS_ROOMS
  :: atomic { session_over[0] || session_over[1] -> sender = failed; break }
#endif
  od;
  if :: sender == failed -> sender_failed = true; REACH(sender_failure) :: else -> skip fi
}

/* S7 at the end, too: a decode rank never fails after the sender's Success. */
proctype Witness() {
end:
  atomic {
    sender == success && (cell[0] == failed || cell[1] == failed) -> CHECK(S7, false)
  }
}
init {
  atomic {
    run Caller(0); run Caller(1);
    run DecodeRank(0); run DecodeRank(1); run Link(0); run Link(1); run Sender(); run Witness()
  }
}
