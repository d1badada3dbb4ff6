/* Tombstones and the low-water mark: prefill remembers ended attempts so that nothing late revives
 * them, and forgets those below the mark that decode's messages carry.
 *
 * What is said: an attempt that has ended at prefill is never served again (S12); no attempt that
 * decode still holds is answered Stale (L1); tombstones of attempts
 * that decode holds no more are gone with its next Grant (R1), whatever the time.
 *
 * Decode has at most OPEN attempts at a time. A message once sent arrives at any later time, any
 * number of times, and carries the mark of the moment when it was sent.
 */
#include "common.h"
#define ATTEMPTS 3
#define OPEN 2

/* decode; attempts are numbered from 1 */
bool opened[5]; bool released[5]; bool acknowledged[5]; bool aborting[5];
bool grant[5]; byte grant_mark[5]; byte grant_lowest[5]; bool abort[5]; byte abort_mark[5];
/* prefill */
byte mark = 1;
bool serving[5]; bool tombstone[5];
bool has_ended[5];               /* what prefill would know if it never forgot */

#define IS_OVER(a) (released[a] && acknowledged[a])
#define IS_HELD(a) (opened[a] && !IS_OVER(a))
#define COUNT_HELD (IS_HELD(1) + IS_HELD(2) + IS_HELD(3))
#define COUNT_OPENED (opened[1] + opened[2] + opened[3])
#define LOWEST_HELD \
  (!IS_OVER(1) -> 1 : (!IS_OVER(2) -> 2 : (!IS_OVER(3) -> 3 : 4)))
#ifdef WITHOUT_MARK_BELOW_OPEN_ATTEMPTS
#define LOW_WATER_MARK (COUNT_OPENED + 1)
#elif defined(WITHOUT_EXACT_MARK)
#define LOW_WATER_MARK (LOWEST_HELD + 1)
#elif defined(WITHOUT_MARK_RAISED)
#define LOW_WATER_MARK 1
#else
#define LOW_WATER_MARK LOWEST_HELD
#endif

inline open_attempt(a) {
  atomic {
    !opened[a] && COUNT_OPENED == a - 1 && COUNT_HELD < OPEN ->
    opened[a] = true; grant[a] = true; grant_mark[a] = LOW_WATER_MARK; grant_lowest[a] = LOWEST_HELD
  }
}
inline abort_attempt(a) {
  atomic {
    opened[a] && !aborting[a] ->
    aborting[a] = true; abort[a] = true; abort_mark[a] = LOW_WATER_MARK
  }
}
/* The fence ends quarantine, not Abort: both must be over before the mark passes. */
inline release(a) {
  atomic { aborting[a] && !released[a] -> released[a] = true }
}
proctype Decode() {
end:
  do
  :: open_attempt(1)
  :: open_attempt(2)
  :: open_attempt(3)
  :: abort_attempt(1)
  :: abort_attempt(2)
  :: abort_attempt(3)
  :: release(1)
  :: release(2)
  :: release(3)
  od
}

inline raise(to) {
  if
  :: to > mark ->
     mark = to;
     if :: mark > 1 -> tombstone[1] = false :: else -> skip fi;
     if :: mark > 2 -> tombstone[2] = false :: else -> skip fi;
     if :: mark > 3 -> tombstone[3] = false :: else -> skip fi;
     REACH(forgotten)
  :: else -> skip
  fi
}
inline answer_stale(a) {
  CHECK(L1, released[a]); REACH(stale)
}
#ifdef WITHOUT_LOW_WATER_MARK
#define IS_BELOW(a) false
#else
#define IS_BELOW(a) ((a) < mark)
#endif
#ifdef WITHOUT_TOMBSTONE
#define IS_KNOWN(a) serving[a]
#else
#define IS_KNOWN(a) (serving[a] || tombstone[a])
#endif
inline on_grant(a) {
  atomic {
    grant[a] ->
    raise(grant_mark[a]);
    CHECK(R1, grant_lowest[a] < 2 || !tombstone[1]);
    CHECK(R1, grant_lowest[a] < 3 || !tombstone[2]);
    if
    :: IS_BELOW(a) -> answer_stale(a)
    :: !IS_BELOW(a) && IS_KNOWN(a) -> skip
    :: else -> CHECK(S12, !has_ended[a]); serving[a] = true; REACH(served)
    fi
  }
}
inline on_abort(a) {
  atomic {
    abort[a] ->
    raise(abort_mark[a]);
    acknowledged[a] = true;
    if
    :: IS_BELOW(a) -> answer_stale(a)
    :: else ->
       serving[a] = false; tombstone[a] = true; has_ended[a] = true
    fi
  }
}
proctype Prefill() {
end:
  do
  :: on_grant(1)
  :: on_grant(2)
  :: on_grant(3)
  :: on_abort(1)
  :: on_abort(2)
  :: on_abort(3)
  od
}
init { atomic { run Decode(); run Prefill() } }
