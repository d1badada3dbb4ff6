/* What all models share. Included by the preprocessor of Promela, so comments are C's.
 *
 * CHECK(id, condition)  a claim by name; check.py compares the name with the one in cases.txt.
 * REACH(name)           a place that the search must visit, else the model says nothing about it.
 * EVn(event, keys...)   a named event (automata/events.txt) with n keys; in a build with automata
 *                       each of them must allow it, else it is skipped.
 *
 * JUDGED_BY_AUTOMATA switches the model's own claims off, so that a mutant is caught by an automaton
 * or not at all.
 */
#ifdef JUDGED_BY_AUTOMATA
#define CHECK(id, condition) skip
#else
#define CHECK(id, condition) \
  if :: (condition) :: else -> c_code { printf("kvferry: violated " #id "\n"); }; assert(false) fi
#endif

#ifdef WITH_REACH
#define REACH(name) c_code { kvferry_reach(#name); }
c_decl {
\#include <stdio.h>
\#include <string.h>
static const char *kvferry_reached[64];
static int kvferry_reached_count;
static void kvferry_reach(const char *name) {
  int i;
  for (i = 0; i < kvferry_reached_count; ++i) {
    if (!strcmp(kvferry_reached[i], name)) return;
  }
  kvferry_reached[kvferry_reached_count++] = name;
  printf("kvferry: reached %s\n", name);
}
}
#else
#define REACH(name) skip
#endif

#ifdef WITH_AUTOMATA
#include "automata.h"
#define EV1(event, a) ev_##event(a)
#define EV2(event, a, b) ev_##event(a, b)
#define EV3(event, a, b, c) ev_##event(a, b, c)
#else
#define EV1(event, a) skip
#define EV2(event, a, b) skip
#define EV3(event, a, b, c) skip
#endif
