#include "data_plane/shm/host.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "data_plane/fd.h"

namespace kvferry::data_plane::shm {

std::array<std::uint8_t, 16> boot_id() {
  std::array<std::uint8_t, 16> id{};
  const Fd file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  std::array<char, 64> text{};
  const ssize_t got = file.is_open() ? ::read(file.get(), text.data(), text.size()) : 0;
  std::size_t digits = 0;
  for (const char c : std::string_view(text.data(), got > 0 ? static_cast<std::size_t>(got) : 0)) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0 || digits == 2 * id.size()) continue;
    id[digits / 2] = static_cast<std::uint8_t>(id[digits / 2] << 4 | digit);
    ++digits;
  }
  return digits == 2 * id.size() ? id : std::array<std::uint8_t, 16>{};
}

std::string default_folder() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && ::access(runtime, W_OK) == 0) return std::string(runtime) + "/kvferry";
  return "/tmp/kvferry-" + std::to_string(::geteuid());
}

}  // namespace kvferry::data_plane::shm
