// Random bytes and HMAC-SHA256, from libsodium. Not for core, wire or layout: they get what they
// need through core::Environment.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

namespace kvferry {

using Digest = std::array<std::uint8_t, 32>;

void fill_random(std::span<std::uint8_t> out);
std::uint64_t random_u64();

Digest hmac_sha256(std::span<const std::uint8_t> key, std::span<const std::uint8_t> data);
// Constant time.
bool equal_digests(const Digest& a, const Digest& b);

std::string to_hex(std::span<const std::uint8_t> bytes);

}  // namespace kvferry
