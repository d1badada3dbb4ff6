// What Python's KvArgs holds: the values, and regions with their memory beside them.
#pragma once

#include <vector>

#include "kvferry/kv_args.h"
#include "memory.h"

namespace kvferry::python {

struct BoundArgs {
  KvArgs values;  // its regions stay empty
  std::vector<BoundRegion> regions;
};

}  // namespace kvferry::python
