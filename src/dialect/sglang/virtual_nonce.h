// Nonces of virtual peers (docs/adr/0015), which say hello to the core of their own process.
#pragma once

#include <cstdint>

#include "wire/messages.h"

namespace kvferry::sglang {

// The peer is in this process, so nothing has to be random; a nonce only has to be another one
// each time. Unequal numbers give unequal nonces.
inline wire::Nonce nonce_of(std::uint64_t number) {
  wire::Nonce nonce{};
  for (std::size_t i = 0; i < sizeof(number); ++i) {
    nonce[i] = static_cast<std::uint8_t>(number >> (8 * i));
  }
  return nonce;
}

}  // namespace kvferry::sglang
