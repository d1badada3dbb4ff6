/* One room number, two requests (lives) that use it one after the other, two launches of the decode
 * engine, two decode ranks, one prefill sender per life.
 *
 * What is said: a sender serves grants of its own request only (S6), and all its grants come from one
 * launch of the decode engine (rule 8). Address and room number alone are never an identity.
 */
#include "common.h"
#define RANKS 2
#define AT(r, life, launch) ((r)*4 + (life)*2 + (launch))

bool grant[8];                   /* messages of rank, request (binding) and launch (engine epoch) */
byte sender_life;                /* request of the sender now open on prefill */
bool taken[RANKS]; byte taken_launch[RANKS];

proctype DecodeRank(byte r) {
  grant[AT(r, 0, 0)] = true;
  if :: skip :: grant[AT(r, 1, 0)] = true fi;            /* the next request, same number */
  if :: skip :: grant[AT(r, 0, 1)] = true fi             /* relaunched, the request is asked again */
}

#ifdef WITHOUT_BINDING
#define IS_MINE(life) true
#else
#define IS_MINE(life) (sender_life == (life))
#endif
#ifdef WITHOUT_DECODE_ENGINE_EPOCH
#define FITS(other, launch) true
#else
#define FITS(other, launch) (!taken[other] || taken_launch[other] == (launch))
#endif

inline take(r, life, launch) {
  atomic {
    grant[AT(r, life, launch)] && !taken[r] && IS_MINE(life) && FITS(1 - r, launch) ->
    CHECK(S6, sender_life == life);
    taken[r] = true; taken_launch[r] = launch;
    CHECK(R8, !taken[1 - r] || taken_launch[1 - r] == launch);
    if :: taken[0] && taken[1] -> REACH(all_grants) :: else -> skip fi
  }
}
proctype Prefill() {
end:
  do
  :: take(0, 0, 0)
  :: take(1, 0, 0)
  :: take(0, 1, 0)
  :: take(1, 1, 0)
  :: take(0, 0, 1)
  :: take(1, 0, 1)
  :: atomic {                    /* the sender ends, that of the next request opens */
       sender_life == 0 -> sender_life = 1; taken[0] = false; taken[1] = false;
       taken_launch[0] = 0; taken_launch[1] = 0; REACH(next_request)
     }
  od
}
init { atomic { run DecodeRank(0); run DecodeRank(1); run Prefill() } }
