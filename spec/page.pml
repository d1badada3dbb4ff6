/* Life of one page: W writers, A attempts of one room that use the page one after the other.
 *
 * What is said: no write lands in a page that its attempt no longer owns (S1); Success only when each
 * writer's bytes are there and each has said Done under this attempt, in this life (S4, S6); a page is
 * in one grant at a time (S12). Terminal statuses and lawful repetitions are the automata's business.
 *
 * Base: a transport with a local fence (rule 3), on which the transport may send a write twice, the
 * second copy left on another lane. Every release waits for the fence, Success included.
 * -DUNFENCED: a transport without one. Its word that a ticket is settled counts for all copies; a
 * page leaves when each writer has said Done or Drained, or its session is torn down.
 *
 * The world: a message once sent may be received at any later time, any number of times or never. A
 * write survives the process that posted it. Writer 0 may crash and restart at its address, decode
 * in its first attempt. Decode fails an attempt whenever it likes (deadline, caller, a writer's
 * Failed). Memory of a process that is over is registered no more, until its successor does it.
 *
 * Mutants: see cases.txt.
 */
#define W 2
#define A 2
#define NONE 255
#ifdef WITH_AUTOMATA
#define ATTEMPTS 1                         /* automata speak of one grant; a second adds nothing */
#else
#define ATTEMPTS A
#endif
#include "common.h"

#define AT(w, a) ((a)*W + (w))
#define LIFE(w, i, a) (AT(w, a)*2 + (i))

/* --- what is under way --- */
bool granted[A]; bool aborted[A];          /* messages of decode, once sent there for good */
byte grant_life[A*W];                      /* the writer's incarnation that a grant is addressed to */
bool done[2*A*W]; bool drained[2*A*W];     /* messages of writers, by incarnation */
bool consumed[A];
byte copies[A*W];                          /* of a write, in the fabric */
bool copied_twice;                         /* writer 0's transport has sent a second copy */
bool landed[A*W];                          /* bytes are in the page */

/* --- target --- */
byte owner = NONE;                         /* the attempt that the page belongs to */
bool fenced[A];                            /* writes of this attempt are refused */
bool torn[A*W];                            /* session torn down: its writes are gone */

/* --- writers --- */
mtype = { nothing, writing, lost, calm, refused, finished, tombstone };
mtype work[A*W] = nothing;                 /* lost: unknown; calm: unknown, then quiet */
bool aborted_heard[A*W];
byte life[W];                              /* incarnation */
#ifdef WITH_AUTOMATA
bool crashed;                              /* decode */
#endif

#define IS_SETTLED(k) \
  (work[k] == tombstone || work[k] == finished || work[k] == calm || work[k] == refused)
#ifdef WITHOUT_DRAINED_AFTER_SETTLED
#define DRAINABLE(k) (IS_SETTLED(k) || work[k] == writing)
#else
#define DRAINABLE(k) IS_SETTLED(k)
#endif
#define IS_MINE(w, a) (grant_life[AT(w, a)] == life[w])
#ifdef WITHOUT_PEER_INCARNATION
#define IS_FOR_ME(w, a) true
#else
#define IS_FOR_ME(w, a) IS_MINE(w, a)
#endif

inline land(w, a) {
  atomic {
    copies[AT(w, a)] > 0 ->
    copies[AT(w, a)]--;
    if
    :: fenced[a] || torn[AT(w, a)] -> REACH(write_refused)
    :: else ->
       CHECK(S1, owner == a);
       landed[AT(w, a)] = true;
       EV3(land, a, w, 0)
    fi
  }
}
proctype Fabric() {
end:
  do
  :: land(0, 0)
  :: land(1, 0)
  :: land(0, 1)
  :: land(1, 1)
  :: atomic { copies[AT(0, 0)] == 1 && !copied_twice -> copied_twice = true; copies[AT(0, 0)] = 2 }
  od
}

/* --- a writer --- */

#ifdef WITHOUT_TOMBSTONE
#define MAY_START(k) (work[k] == nothing || work[k] == tombstone)
#else
#define MAY_START(k) (work[k] == nothing)
#endif

inline on_grant(w, a) {
  atomic {
    granted[a] && IS_FOR_ME(w, a) ->
    EV2(grant_received, a, w);
    if
    :: MAY_START(AT(w, a)) ->
       work[AT(w, a)] = writing; copies[AT(w, a)]++; EV3(post, a, w, 0)
    :: else -> skip                        /* seen before, or ended: nothing starts */
    fi
  }
}

#ifdef UNFENCED
#define SETTLED(w, a) (copies[AT(w, a)] == 0)
#else
#define SETTLED(w, a) (landed[AT(w, a)] || copies[AT(w, a)] == 0)
#endif

inline on_outcome(w, a) {
  atomic {
    work[AT(w, a)] == writing && SETTLED(w, a) ->
    if
    :: landed[AT(w, a)] ->
       EV3(landed, a, w, 0); EV2(all_landed, a, w);
       work[AT(w, a)] = finished;
#ifndef WITHOUT_NO_DONE_AFTER_END
       if :: !aborted_heard[AT(w, a)] -> say_done(w, a) :: else -> skip fi;
#else
       say_done(w, a);
#endif
#ifdef WITHOUT_REMEMBER_SUCCEEDED
       work[AT(w, a)] = nothing
#endif
    :: else -> EV3(refused, a, w, 0); work[AT(w, a)] = refused
    fi
  }
}
inline say_done(w, a) {
  done[LIFE(w, life[w], a)] = true;
  EV2(done_sent, a, w)
}
/* The writer's deadline. An unknown ticket ends without Done; only quiet settles it. */
inline on_deadline(w, a) {
  atomic {
    w == 0 && work[AT(w, a)] == writing -> EV3(unknown, a, w, 0);
#ifdef WITHOUT_UNKNOWN_UNTIL_QUIET
    work[AT(w, a)] = calm
#else
    work[AT(w, a)] = lost
#endif
  }
}
inline on_quiet(w, a) {
  atomic {
    w == 0 && work[AT(w, a)] == lost && copies[AT(w, a)] == 0 ->
    EV3(quiet, a, w, 0); work[AT(w, a)] = calm
  }
}
inline on_abort(w, a) {
  atomic {
    aborted[a] && IS_FOR_ME(w, a) ->
    EV2(abort_received, a, w);
    aborted_heard[AT(w, a)] = true;
    if
    :: work[AT(w, a)] == nothing -> work[AT(w, a)] = tombstone; REACH(abort_before_grant)
    :: else -> skip
    fi
  }
}
/* With a fence decode does not act on Drained, so one writer's is enough to see that. */
#if defined(UNFENCED) || defined(WITHOUT_FENCE_BEFORE_RELEASE)
#define DRAINED_MATTERS(w) true
#else
#define DRAINED_MATTERS(w) ((w) == 0)
#endif
/* Drained repeats until acknowledged. A sender may also end by itself, without any Abort. */
inline say_drained(w, a) {
  atomic {
    DRAINABLE(AT(w, a)) &&
    (aborted_heard[AT(w, a)] || work[AT(w, a)] == calm || work[AT(w, a)] == refused) ->
    if :: DRAINED_MATTERS(w) -> drained[LIFE(w, life[w], a)] = true :: else -> skip fi;
    EV2(drained_sent, a, w)
  }
}

/* The last attempt's Abort and Drained free nothing that anybody uses again, so they are left out.
 * Writers are alike, so what befalls one of them befalls writer 0: deadline, second copy, crash. */
proctype Writer(byte w) {
end:
  do
  :: on_grant(w, 0)
  :: on_grant(w, 1)
  :: on_outcome(w, 0)
  :: on_outcome(w, 1)
  :: on_deadline(w, 0)
  :: on_quiet(w, 0)
  :: on_abort(w, 0)
  :: say_drained(w, 0)
  :: atomic {                              /* crash; the successor remembers nothing */
       w == 0 && life[w] == 0 ->
       life[w] = 1;
       work[AT(w, 0)] = nothing; work[AT(w, 1)] = nothing;
       aborted_heard[AT(w, 0)] = false; aborted_heard[AT(w, 1)] = false
     }
  od
}

/* --- decode --- */

#ifdef WITHOUT_PEER_INCARNATION
#define SAID(what, w, a) (what[LIFE(w, 0, a)] || what[LIFE(w, 1, a)])
#elif defined(WITHOUT_WRITER_GENERATION)
#define SAID(what, w, a) \
  (what[LIFE(w, grant_life[AT(w, a)], a)] || (a > 0 && what[LIFE(w, grant_life[AT(w, a)], 0)]))
#else
#define SAID(what, w, a) (what[LIFE(w, grant_life[AT(w, a)], a)])
#endif

/* Messages once sent stay readable, so decode reads them where it decides. */
inline hear(w, a) {
  if :: SAID(done, w, a) -> EV2(done_received, a, w) :: else -> skip fi;
  if :: SAID(drained, w, a) -> EV2(drained_received, a, w) :: else -> skip fi
}
inline order_fence(a) {
#ifndef UNFENCED
  if :: !fencing -> fencing = true; EV1(fence_ordered, a) :: else -> skip fi
#else
  skip
#endif
}
inline next_attempt(a) {
  owner = NONE; a++; covered = false; fencing = false
}
#define QUIET(w) (SAID(done, w, a) || SAID(drained, w, a) || torn[AT(w, a)])
#define BOTH_QUIET (QUIET(0) && QUIET(1))

/* When a failed attempt's page leaves. */
#ifdef WITHOUT_NO_RELEASE_BY_TIMEOUT
#define SAFE_TO_RELEASE true
#elif defined(WITHOUT_FENCE_BEFORE_RELEASE)
#define SAFE_TO_RELEASE (fenced[a] || BOTH_QUIET)
#elif defined(WITHOUT_EVERY_WRITER_DRAINED)
#define SAFE_TO_RELEASE (QUIET(0) || QUIET(1))
#elif defined(UNFENCED)
#define SAFE_TO_RELEASE BOTH_QUIET
#else
#define SAFE_TO_RELEASE fenced[a]
#endif

/* What Success needs on top of coverage. */
#ifdef UNFENCED
#define SAFE_TO_SUCCEED (!torn[AT(0, a)])
#elif defined(WITHOUT_FENCE_BEFORE_SUCCESS)
#define SAFE_TO_SUCCEED true
#else
#define SAFE_TO_SUCCEED fenced[a]
#endif
#ifdef WITHOUT_EVERY_WRITER_DONE
#define DONE_SUFFICES (SAID(done, 0, a) || SAID(done, 1, a))
#elif defined(WITHOUT_DONE_NEEDED)
#define DONE_SUFFICES true
#else
#define DONE_SUFFICES (SAID(done, 0, a) && SAID(done, 1, a))
#endif

proctype Decode() {
  byte a = 0;
  bool covered, fencing;
start:
  atomic {
    if :: a == ATTEMPTS -> goto stop :: else -> skip fi;
    CHECK(S12, owner == NONE);
    if :: a > 0 -> REACH(page_reused) :: else -> skip fi;
    owner = a; granted[a] = true;
    grant_life[AT(0, a)] = life[0]; grant_life[AT(1, a)] = life[1];
    EV2(grant, a, 0); EV2(grant, a, 1); EV2(grant_sent, a, 0); EV2(grant_sent, a, 1)
  }
transferring:
  do
  :: atomic {
       !covered && landed[AT(0, a)] && landed[AT(1, a)] ->
       covered = true; EV1(covered, a); order_fence(a)
     }
#ifndef UNFENCED
  :: atomic { fencing && !fenced[a] -> fenced[a] = true; EV1(fence_done, a) }
#endif
#ifdef UNFENCED
  :: atomic { !torn[AT(0, a)] -> torn[AT(0, a)] = true; EV2(torn_down, a, 0) }
#endif
  :: atomic {
       covered && SAFE_TO_SUCCEED && DONE_SUFFICES ->
       CHECK(S4, landed[AT(0, a)] && landed[AT(1, a)]);
       CHECK(S4, done[LIFE(0, grant_life[AT(0, a)], a)] && done[LIFE(1, grant_life[AT(1, a)], a)]);
       REACH(success);
       hear(0, a); hear(1, a);
       EV1(succeeded, a); EV1(released, a);
       consumed[a] = true; EV2(consumed_sent, a, 0); EV2(consumed_sent, a, 1);
       next_attempt(a);
       goto start
     }
  :: atomic {
       true ->
       EV1(failed, a); aborted[a] = true; EV2(abort_sent, a, 0); EV2(abort_sent, a, 1);
       order_fence(a); REACH(abort); goto revoking
     }
  :: a == 0 -> goto crash
  od;
revoking:
  do
#ifndef UNFENCED
  :: atomic { !fenced[a] -> fenced[a] = true; EV1(fence_done, a) }
#endif
#ifdef UNFENCED
  :: atomic { !torn[AT(0, a)] -> torn[AT(0, a)] = true; EV2(torn_down, a, 0) }
#endif
  :: atomic {
       SAFE_TO_RELEASE ->
       hear(0, a); hear(1, a);
       REACH(release); EV1(released, a); next_attempt(a); goto start
     }
  :: a == 0 -> goto crash
  od;
crash:
  /* The successor registers the same memory anew, and first ends what its predecessor granted. */
  atomic {
    REACH(decode_restart);
#ifndef WITHOUT_FENCE_AFTER_RESTART
    fenced[0] = true;
#endif
    EV1(life_ended, 0);
#ifdef WITH_AUTOMATA
    crashed = true;
#endif
    next_attempt(a);
    goto start
  }
stop:
#ifdef WITH_AUTOMATA
end_crash:                                 /* also after its attempt has ended */
  atomic { !crashed -> crashed = true; fenced[0] = true; EV1(life_ended, 0) }
#else
  skip
#endif
}

#ifdef WITH_AUTOMATA
/* What is sent or heard again changes nothing in the model, so only the automata see it: messages
 * between decode and writer 0 under the first attempt, which they watch. */
proctype Echo() {
end:
  do
  :: atomic { granted[0] && !crashed -> EV2(grant_sent, 0, 0) }
  :: atomic { aborted[0] && !crashed -> EV2(abort_sent, 0, 0) }
  :: atomic { consumed[0] && !crashed -> EV2(consumed_sent, 0, 0) }
  :: atomic { SAID(done, 0, 0) && !crashed -> EV2(done_received, 0, 0) }
  :: atomic { SAID(drained, 0, 0) && !crashed -> EV2(drained_received, 0, 0) }
  :: atomic { done[LIFE(0, 0, 0)] && life[0] == 0 -> EV2(done_sent, 0, 0) }
  :: atomic {
       consumed[0] && IS_MINE(0, 0) && work[AT(0, 0)] == finished -> EV2(consumed_received, 0, 0)
     }
  od
}
#endif

init { atomic { run Fabric(); run Writer(0); run Writer(1); run Decode() }
#ifdef WITH_AUTOMATA
  run Echo()
#endif
}
