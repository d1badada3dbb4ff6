#include "cli/allocator.h"

#ifdef KVFERRY_MIMALLOC
#include <mimalloc.h>
#endif

namespace kvferry::cli {

void set_up_allocator() {
#ifdef KVFERRY_MIMALLOC
  mi_option_set_enabled_default(mi_option_large_os_pages, true);
#endif
}

}  // namespace kvferry::cli
