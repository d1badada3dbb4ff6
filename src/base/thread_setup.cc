#include "base/thread_setup.h"

#include <pthread.h>

#include <csignal>
#include <initializer_list>

namespace kvferry {

void set_up_thread(const char* name) {
  pthread_setname_np(pthread_self(), name);
  sigset_t blocked;
  sigfillset(&blocked);
  // These are raised by the thread's own instructions; blocking them would hide the crash's report.
  for (const int synchronous : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) {
    sigdelset(&blocked, synchronous);
  }
  pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
}

}  // namespace kvferry
