/* A session between decode (asks) and prefill: hello, lost connection, resume, end.
 *
 * What is said: an old or repeated Hello replaces nothing, and a frame of another session changes
 * nothing (S6); what is numbered takes effect once, over resumption too (S9); a session that one side
 * has ended, or whose state is gone, is never resumed (rule 7).
 *
 * Any message once sent may arrive later, any number of times or never. Prefill draws a fresh nonce
 * for each Hello that it answers, and names the session by it (epoch). It may restart once.
 */
#include "common.h"
#define HELLOS 2                 /* decode asks twice at most */
#define EPOCHS 4                 /* 0: none */
#define NUMBERS 2                /* messages that decode numbers per session */

bool hello[HELLOS];
bool reply[HELLOS*EPOCHS];       /* by hello and epoch */
bool confirm[EPOCHS];
bool resume[EPOCHS]; bool resumed[EPOCHS]; bool ended[EPOCHS];
bool frame[EPOCHS*NUMBERS];      /* numbered messages of decode */

/* prefill */
byte drawn; byte pending; byte prefill_epoch; byte expected; byte remembered; bool restarted;
bool over[EPOCHS];               /* sessions whose rooms prefill has failed */
bool effect[EPOCHS*NUMBERS];     /* what prefill's core has processed, in its whole life */
/* decode */
byte decode_epoch; byte asked; bool awaiting;   /* the answer to its latest Hello */
bool suspended; byte numbered;

#define BOTH_LIVE (decode_epoch > 0 && decode_epoch == prefill_epoch && !suspended)

inline on_hello(h) {
  atomic {
    hello[h] && drawn + 1 < EPOCHS ->
    drawn++;
#ifdef WITHOUT_HELLO_NONCE
    CHECK(S6, !BOTH_LIVE);
    prefill_epoch = drawn; expected = 0;
#else
    pending = drawn;
#endif
    reply[(h)*EPOCHS + drawn] = true
  }
}
inline on_confirm(e) {
  atomic {
    confirm[e] && pending == e ->
    CHECK(S6, decode_epoch == e || !BOTH_LIVE);
    if :: prefill_epoch > 0 -> over[prefill_epoch] = true; REACH(replaced) :: else -> skip fi;
    prefill_epoch = e; pending = 0; expected = 0; remembered = e
  }
}
#ifdef WITHOUT_ENDED_NOT_RESUMED
#define MAY_RESUME(e) (prefill_epoch == e || remembered == e)
#elif defined(WITHOUT_RESUME_NEEDS_STATE)
#define MAY_RESUME(e) (prefill_epoch == e || (restarted && !over[e]))
#else
#define MAY_RESUME(e) (prefill_epoch == e)
#endif
inline on_resume(e) {
  atomic {
    resume[e] ->
    if
    :: MAY_RESUME(e) ->
       CHECK(R7, !over[e]);
       if :: prefill_epoch != e -> expected = 0 :: else -> skip fi;
#ifdef WITHOUT_NUMBERING_GOES_ON
       expected = 0;
#endif
       prefill_epoch = e; resumed[e] = true; REACH(resume)
    :: else -> ended[e] = true; REACH(resume_refused)
    fi
  }
}

#ifdef WITHOUT_SESSION_EPOCH
#define IS_IN_SESSION(e) (prefill_epoch > 0)
#else
#define IS_IN_SESSION(e) (prefill_epoch == e)
#endif
#ifdef WITHOUT_RECEIVED_ONCE
#define IS_NEXT(n) (n <= expected)
#else
#define IS_NEXT(n) (n == expected)
#endif
inline on_frame(e, n) {
  atomic {
    frame[(e)*NUMBERS + n] && IS_IN_SESSION(e) && IS_NEXT(n) ->
    CHECK(S6, prefill_epoch == e);
    CHECK(S9, !effect[(e)*NUMBERS + n]);
    effect[(e)*NUMBERS + n] = true; expected = n + 1; REACH(message)
  }
}

proctype Prefill() {
end:
  do
  :: on_hello(0)
  :: on_hello(1)
  :: on_confirm(1)
  :: on_confirm(2)
  :: on_confirm(3)
  :: on_resume(1)
  :: on_resume(2)
  :: on_resume(3)
  :: on_frame(1, 0)
  :: on_frame(1, 1)
  :: on_frame(2, 0)
  :: on_frame(2, 1)
  :: on_frame(3, 0)
  :: on_frame(3, 1)
  :: atomic {                    /* grace or heartbeat over: its rooms fail */
       prefill_epoch > 0 -> over[prefill_epoch] = true; prefill_epoch = 0; expected = 0; REACH(end)
     }
  :: atomic {                    /* restart: all state is gone, epochs stay fresh by chance */
       !restarted -> restarted = true; prefill_epoch = 0; expected = 0; pending = 0; remembered = 0;
       REACH(restart)
     }
  od
}

inline on_reply(h, e) {
  atomic {
    awaiting && asked == h + 1 && reply[(h)*EPOCHS + e] ->
    decode_epoch = e; numbered = 0; suspended = false; awaiting = false;
    confirm[e] = true
  }
}
inline leave_session() {
  decode_epoch = 0; numbered = 0; suspended = false
}
proctype Decode() {
end:
  do
  :: atomic { decode_epoch == 0 && asked < HELLOS -> hello[asked] = true; asked++; awaiting = true }
  :: on_reply(0, 1)
  :: on_reply(0, 2)
  :: on_reply(0, 3)
  :: on_reply(1, 1)
  :: on_reply(1, 2)
  :: on_reply(1, 3)
  :: atomic {
       decode_epoch > 0 && numbered < NUMBERS ->
       frame[decode_epoch*NUMBERS + numbered] = true; numbered++
     }
  :: atomic { decode_epoch > 0 && !suspended -> suspended = true; resume[decode_epoch] = true }
  :: atomic { decode_epoch > 0 && suspended && resumed[decode_epoch] -> suspended = false }
  :: atomic { decode_epoch > 0 && ended[decode_epoch] -> leave_session() }
  :: atomic { decode_epoch > 0 && suspended -> leave_session() }      /* grace over */
  od
}
init { atomic { run Prefill(); run Decode() } }
