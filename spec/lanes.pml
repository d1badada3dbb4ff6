/* The fence of a receiver-executed transport: one page, one grant slot, two receiving threads. The
 * page is reused by attempt 1 under the slot's next generation.
 *
 * What is said: no byte lands in a page that its attempt no longer owns (S1); a landing is credited
 * to the generation that it names (S4); a fence ends although lanes never rest (ltl fence_ends).
 *
 * The order in a receiving thread is the design's: publish the mark, read the generation, copy, clear
 * the mark. A frame once posted may be processed by any lane, at any time, again and again. Memory is
 * sequentially consistent, as it is in the code (seq_cst).
 */
#include "common.h"
#define LANES 2
#define ENGINE 2                 /* owner after Success: decode's engine, which appends */

byte generation; byte owner;     /* attempt = generation */
bool mark[LANES]; bool awaited[LANES];   /* awaited: the fence still waits for this mark */
bool busy;                       /* one flag for all lanes (mutant only) */
bool posted[2]; bool landing[2]; bool credit[3]; bool bytes[2];
bool fencing;

#ifdef WITHOUT_MARK_PER_THREAD
#define SHOW_MARK(l) busy = true
#define CLEAR_MARK(l) busy = false
#else
#define SHOW_MARK(l) mark[l] = true
#define CLEAR_MARK(l) d_step { mark[l] = false; awaited[l] = false }
#endif

proctype Lane(byte l) {
  byte a; bool current;
end:
  do
  :: atomic { posted[0] -> a = 0 }; goto frame
  :: atomic { posted[1] -> a = 1 }; goto frame
  od;
frame:
#ifdef WITHOUT_MARK_BEFORE_CHECK
  current = (generation == a);
  SHOW_MARK(l);
#else
  SHOW_MARK(l);
  current = (generation == a);
#endif
  if
  :: current ->
     atomic { CHECK(S1, owner == a); bytes[a] = true; REACH(landing) };
     CLEAR_MARK(l);
     /* The driver hears of it later, by when the slot may have another generation. */
#ifdef WITHOUT_LANDING_GENERATION
     credit[generation] = true
#else
     landing[a] = true
#endif
  :: else -> atomic { CLEAR_MARK(l); REACH(stale_frame) }
  fi;
  atomic { a = 0; current = false; goto end }
}

inline fence() {
  fencing = true;
  generation++;
#ifdef WITHOUT_MARK_PER_THREAD
  !busy;
#elif defined(WITHOUT_MARK_SEEN_ONCE)
  !mark[0]; !mark[1];            /* waits to see them clear, which they may never be when it looks */
#else
  atomic { awaited[0] = mark[0]; awaited[1] = mark[1] };
  !awaited[0]; !awaited[1];
#endif
  fencing = false
}

proctype Decode() {
  byte a = 0;
  posted[0] = true;
again:
  if
  :: landing[a] -> credit[a] = true; goto again
  :: credit[a] ->
     CHECK(S4, bytes[a]);
#ifndef WITHOUT_FENCE_BEFORE_SUCCESS
     fence();
#endif
     owner = ENGINE; REACH(success)
  :: a == 0 -> fence(); owner = 1; posted[1] = true; a = 1; REACH(page_reused); goto again
  :: a == 1 -> fence(); owner = ENGINE; REACH(abort)
  fi
}
init { atomic { run Lane(0); run Lane(1); run Decode() } }

#ifdef PROGRESS
ltl fence_ends { [] (fencing -> <> !fencing) }
#endif
