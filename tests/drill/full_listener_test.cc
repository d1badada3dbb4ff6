// An address that swallows connects, and one that does not.
#include "lab/rig/full_listener.h"

#include <gtest/gtest.h>
#include <poll.h>

#include "net/endpoint.h"

namespace kvferry::lab {
namespace {

// Loopback answers within the call; the wait is only as long where nothing comes.
bool is_answered(const std::string& host, std::uint16_t port) {
  const auto connecting = data_plane::tcp::start_connect(host, port);
  if (!connecting) return true;
  pollfd entry{connecting->get(), POLLOUT, 0};
  return ::poll(&entry, 1, 200) != 0;
}

TEST(FullListener, SwallowsEveryConnect) {
  const auto full = FullListener::make();
  ASSERT_TRUE(full) << full.error().what;
  const auto address = net::parse_endpoint(full->endpoint());
  ASSERT_TRUE(address);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(is_answered(address->host, address->port));
}

TEST(FullListener, OneWithRoomAnswers) {
  const auto listener = data_plane::tcp::listen_on("127.0.0.1", 0);
  ASSERT_TRUE(listener);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(is_answered(listener->host, listener->port));
}

}  // namespace
}  // namespace kvferry::lab
