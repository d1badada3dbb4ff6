#include "base/crypto.h"

#include <sodium.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <tuple>

namespace kvferry {
namespace {

// Every secret of the library depends on it, so there is no going on without it.
void require_sodium() {
  static const bool ready = sodium_init() >= 0;
  if (!ready) {
    std::fputs("kvferry: libsodium could not be initialised\n", stderr);
    std::abort();
  }
}

// An empty span may have no address, and libsodium declares its arguments non-null whatever the
// length.
const std::uint8_t* not_null(std::span<const std::uint8_t> bytes) {
  static constexpr std::uint8_t kNothing = 0;
  return bytes.empty() ? &kNothing : bytes.data();
}

}  // namespace

void fill_random(std::span<std::uint8_t> out) {
  require_sodium();
  if (out.empty()) {
    return;
  }
  randombytes_buf(out.data(), out.size());
}

std::uint64_t random_u64() {
  require_sodium();
  std::uint64_t value = 0;
  randombytes_buf(&value, sizeof value);
  return value;
}

Digest hmac_sha256(std::span<const std::uint8_t> key, std::span<const std::uint8_t> data) {
  static_assert(std::tuple_size_v<Digest> == crypto_auth_hmacsha256_BYTES);
  require_sodium();
  // The multi-part form takes keys of any length; the one-part form wants exactly 32 bytes.
  crypto_auth_hmacsha256_state state;
  Digest digest;
  crypto_auth_hmacsha256_init(&state, not_null(key), key.size());
  crypto_auth_hmacsha256_update(&state, not_null(data), data.size());
  crypto_auth_hmacsha256_final(&state, digest.data());
  sodium_memzero(&state, sizeof state);
  return digest;
}

bool equal_digests(const Digest& a, const Digest& b) {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string to_hex(std::span<const std::uint8_t> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const std::uint8_t byte : bytes) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 0x0F]);
  }
  return text;
}

}  // namespace kvferry
