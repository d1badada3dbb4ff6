// The registry's HTTP port: damaged requests are answered or dropped, and a rank still registers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../unit/runtime/registry_client.h"
#include "../unit/runtime/temp_file.h"
#include "kvferry/bootstrap_server.h"
#include "mutate.h"
#include "raw_socket.h"
#include "support/await.h"

namespace kvferry::hostile {
namespace {

class RegistryListener : public testing::Test {
 protected:
  RegistryListener() {
    BootstrapServerOptions options;
    options.cluster_token_file = token_.path();
    server_ = std::move(*BootstrapServer::start(options));
  }
  test::TempFile token_{"a-token-of-this-cluster\n"};
  std::unique_ptr<BootstrapServer> server_;
};

Bytes as_text(const net::HttpRequest& request) {
  std::string text = request.method + " " + request.target + " HTTP/1.1\r\nHost: registry\r\n";
  for (const std::string_view name :
       {runtime::kTimeHeader, runtime::kNonceHeader, runtime::kSignatureHeader}) {
    text += std::string(name) + ": " + std::string(request.headers.get(name)) + "\r\n";
  }
  text += "Connection: close\r\nContent-Length: " + std::to_string(request.body.size()) +
          "\r\n\r\n" + request.body;
  return bytes_of(text);
}

TEST_F(RegistryListener, OutlivesDamagedRequests) {
  test::RegistryClient client(server_->address(), token_.path());
  const core::RegistryRow row = test::prefill_row("127.0.0.1:1", 5);
  std::vector<Bytes> corpus = other_protocols();
  for (const std::string_view method : {"PUT", "DELETE"}) {
    corpus.push_back(as_text(client.registration(std::string(method), row)));
  }
  for (const std::string_view target :
       {"/v1/ranks", "/v1/ranks?role=prefill&dp_rank=0", "/metrics"}) {
    corpus.push_back(as_text(client.request("GET", std::string(target))));
  }
  Mutator mutator(31, std::move(corpus));
  for (std::uint64_t i = 0; i < std::max<std::uint64_t>(frame_count() / 4, 50); ++i) {
    const RawSocket socket = RawSocket::tcp(server_->address());
    ASSERT_TRUE(socket.is_open());
    socket.send(mutator.next());
    if (mutator.prng().below(4) == 0) {
      socket.reset_on_close();
      continue;
    }
    socket.finish_sending();
    const std::string answer = socket.receive();
    // Never a failure of its own.
    ASSERT_THAT(answer, testing::Not(testing::StartsWith("HTTP/1.1 5")));
  }
  core::RegistryRow honest = test::prefill_row("127.0.0.1:2", 6);
  honest.instance = "q";
  EXPECT_EQ(client.send(client.registration("PUT", honest)).status, 200);
  const std::string listed = client.send(client.request("GET", "/v1/ranks")).body;
  EXPECT_THAT(listed, testing::HasSubstr("127.0.0.1:2"));
  // Of what was damaged only a row whose signature still holds can have come in.
  EXPECT_THAT(listed, testing::AnyOf(testing::HasSubstr("\"127.0.0.1:1\""),
                                     testing::Not(testing::HasSubstr("127.0.0.1:1"))));
}

}  // namespace
}  // namespace kvferry::hostile
