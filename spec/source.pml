/* The source side of one write on a transport whose receiver executes the copy: when may the writer
 * use its source page again, and when may decode trust what was copied?
 *
 * What is said: nobody reads a source page that was released, unless its sender gave up (S2);
 * Success only with the source's bytes, now and later (S4), although the page may change under a
 * late copy; a transfer without faults succeeds or fails on both sides (no invalid end).
 *
 * A page is two words: 0 is this room's content, 1 what the next user of the source page writes.
 * Ticket 0 is sent on lane 0, and perhaps again on lane 1 (its frame was not acknowledged). The
 * receiver claims the range for a ticket before it copies; the second copy is not executed but
 * answered with the first one's outcome, once it has one. A copy may stop in the middle (torn).
 * Done is the commit: after the ticket landed while its source was held. Giving up is irrevocable.
 */
#include "common.h"

byte source[2]; byte target[2] = 9;
bool sent[2];                    /* a frame on a lane */
bool sent_as_other;              /* the frame on lane 1 carries another ticket (mutant only) */
bool claimed; bool mark[2];      /* of the target: the range's claim, the threads' marks */
bool shut;                       /* the grant's generation is over */
bool landed, torn, refused;      /* outcomes on their way to the writer */
bool committed;                  /* Done, on its way to decode */
bool fenced_said, consumed_said, failed_said;
bool released, gave_up;          /* the sender's */

inline read_word(i) {
  atomic {
    EV2(source_read, 0, 0);
    CHECK(S2, !released || gave_up);
    target[i] = source[i]
  }
}

proctype Lane(byte l) {
end:
  sent[l];
  mark[l] = true;                /* first the mark, then the look at the generation */
  if
  :: shut ->
     /* Refused says that no copy of the ticket will ever be executed, on the other lane neither: so
      * the range is taken first. A copy under way answers for itself. */
#ifdef WITHOUT_CLAIM_BEFORE_REFUSAL
     if :: !claimed -> refused = true :: claimed -> skip fi;
#else
     if
     :: atomic { !claimed -> claimed = true; refused = true; REACH(refused) }
     :: claimed -> skip
     fi;
#endif
     mark[l] = false;
     goto out
  :: else -> skip
  fi;
#ifndef WITHOUT_CLAIM
  if
  :: atomic { !claimed -> claimed = true }
  :: atomic {
       claimed ->
       mark[l] = false; REACH(second_copy);
#ifdef WITHOUT_SECOND_COPY_ANSWER
       refused = true;
#endif
       if :: sent_as_other -> refused = true :: else -> skip fi;
       goto out
     }
  fi;
#endif
  read_word(0);
  if :: skip :: atomic { torn = true; mark[l] = false; REACH(torn); goto out } fi;
  read_word(1);
  landed = true;
  mark[l] = false;
out:
  skip
}

inline commit() {
  atomic { committed = true; EV1(committed, 0); REACH(commit) }
}
inline give_up() {
  atomic { gave_up = true; EV1(gave_up, 0) }
}
inline fail_sender() {
  atomic { failed_said = true; EV1(sender_failed, 0) }
}

proctype Sender() {
  bool has_failed;
  atomic { EV1(opened, 0); EV2(source_posted, 0, 0); sent[0] = true };
#ifdef WITHOUT_DONE_AFTER_LANDED
  commit();
#endif
  if :: skip :: sent[1] = true; REACH(sent_again) fi;
#ifdef WITHOUT_UNKNOWN_NOT_REPOSTED
  if :: !sent[1] -> sent_as_other = true; sent[1] = true :: else -> skip fi;
#endif
  if
  :: atomic { landed -> EV2(source_settled, 0, 0) };
#ifndef WITHOUT_DONE_AFTER_LANDED
     commit()
#endif
  :: atomic { refused -> EV2(source_settled, 0, 0) }; has_failed = true; fail_sender()
  :: atomic { torn -> EV2(source_settled, 0, 0) }; has_failed = true; fail_sender()
  :: atomic { fenced_said -> REACH(fence_frees_source) }; has_failed = true; fail_sender(); give_up()
#ifdef WITHOUT_SOURCE_HELD
  :: has_failed = true; fail_sender()                    /* released with the failure */
#endif
  :: has_failed = true; fail_sender(); give_up(); REACH(give_up)  /* deadline, decode hangs */
  fi;
  atomic { released = true; EV1(source_released, 0) };
  source[0] = 1; source[1] = 1;
#ifdef WITHOUT_NO_DONE_AFTER_END
  if :: atomic { gave_up && landed -> commit() } :: !gave_up || !landed -> skip fi;
#endif
  if
  :: has_failed -> skip
  :: atomic { consumed_said && !has_failed -> EV1(sender_succeeded, 0); REACH(sender_success) }
  :: atomic { fenced_said && !has_failed -> failed_said = true; EV1(sender_failed, 0) }
  fi
}

#ifdef WITHOUT_DONE_NEEDED
#define DONE_IS_HERE true
#else
#define DONE_IS_HERE committed
#endif

proctype Decode() {
  if
  :: landed && DONE_IS_HERE ->
     shut = true;
     !mark[0]; !mark[1];
     atomic { CHECK(S4, target[0] == 0 && target[1] == 0); consumed_said = true; REACH(success) };
     CHECK(S4, target[0] == 0 && target[1] == 0)         /* at any later time */
  :: shut = true;                                        /* failed, for any reason */
     !mark[0]; !mark[1];
     fenced_said = true
  fi
}
init { atomic { run Lane(0); run Lane(1); run Sender(); run Decode() } }
