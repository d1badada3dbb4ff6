// The smallest program on an installed kvferry: a registry, and a decode rank that registers there.
#include <cstdio>
#include <utility>
#include <vector>

#include "kvferry/bootstrap_server.h"
#include "kvferry/kv_manager.h"

int main() {
  auto server = kvferry::BootstrapServer::start({});
  if (!server) {
    std::puts(kvferry::to_string(server.error()).c_str());
    return 1;
  }
  constexpr std::uint32_t kPages = 4;
  constexpr std::uint64_t kItemBytes = 64;
  std::vector<std::byte> memory(kPages * kItemBytes);
  kvferry::KvArgs args;
  args.role = kvferry::Role::kDecode;
  args.instance = "consumer";
  args.page_size_tokens = args.total_layers = args.total_kv_heads = 1;
  args.head_dim = 32;
  args.layers = {0, 1};
  args.heads = {0, 1};
  args.regions.push_back({kvferry::RegionKind::kKey, 0, memory.data(), kItemBytes, kPages});
  kvferry::Options options;
  options.bootstrap_addresses = {(*server)->address()};
  auto manager = kvferry::KvManager::create(std::move(args), std::move(options));
  if (!manager) {
    std::puts(kvferry::to_string(manager.error()).c_str());
    return 1;
  }
  std::printf("a decode rank listens at %s\n", (*manager)->control_endpoint().c_str());
  return 0;
}
