// What the core asks of the world beyond actions: randomness and a keyed hash, from the system.
#pragma once

#include "base/crypto.h"
#include "core/action.h"

namespace kvferry::runtime {

class SystemEnvironment final : public core::Environment {
 public:
  std::uint64_t random_u64() override { return kvferry::random_u64(); }
  void fill_random(std::span<std::uint8_t> out) override { kvferry::fill_random(out); }
  wire::Proof hmac(std::span<const std::uint8_t> key, std::span<const std::uint8_t> data) override {
    return hmac_sha256(key, data);
  }
};

}  // namespace kvferry::runtime
