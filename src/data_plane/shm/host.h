// What the two ends of shm lanes must find out about the host that they run on.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace kvferry::data_plane::shm {

// Drawn by the kernel at boot: two processes with the same one share a kernel, and thus memory.
// All zero when it can't be read.
std::array<std::uint8_t, 16> boot_id();

// Within which a target's socket goes unless told: $XDG_RUNTIME_DIR/kvferry, or /tmp/kvferry-<uid>.
std::string default_folder();

}  // namespace kvferry::data_plane::shm
