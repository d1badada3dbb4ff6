#include "kvferry/kv_args.h"

namespace kvferry {

std::string_view to_string(Role role) {
  switch (role) {
    case Role::kPrefill:
      return "prefill";
    case Role::kDecode:
      return "decode";
  }
  return "unknown";
}

std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::kU8:
      return "u8";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kF32:
      return "f32";
    case DType::kF8E4M3:
      return "f8e4m3";
    case DType::kF8E5M2:
      return "f8e5m2";
  }
  return "unknown";
}

std::string_view to_string(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kHost:
      return "host";
    case MemoryKind::kDevice:
      return "device";
  }
  return "unknown";
}

std::string_view to_string(RegionKind kind) {
  switch (kind) {
    case RegionKind::kKey:
      return "key";
    case RegionKind::kValue:
      return "value";
    case RegionKind::kOther:
      return "other";
    case RegionKind::kAux:
      return "aux";
    case RegionKind::kState:
      return "state";
  }
  return "unknown";
}

std::uint32_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kU8:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return 1;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kF32:
      return 4;
  }
  return 0;
}

}  // namespace kvferry
