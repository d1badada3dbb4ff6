#include <future>

#include "net/http_client.h"

namespace kvferry::net {

Result<HttpResponse> HttpClient::fetch(HttpCallOptions options, HttpRequest request) {
  struct Answer {
    HttpResponse response;
    std::promise<Result<HttpResponse>> result;
  };
  const std::string address = options.address;
  auto answer = std::make_shared<Answer>();
  auto result = answer->result.get_future();
  HttpCallbacks callbacks;
  callbacks.on_head = [answer](const HttpResponse& head) { answer->response = head; };
  callbacks.on_data = [answer](std::string_view data) { answer->response.body += data; };
  callbacks.on_end = [answer](Status status) {
    if (status) {
      answer->result.set_value(std::move(answer->response));
    } else {
      answer->result.set_value(tl::unexpected(std::move(status.error())));
    }
  };
  // Only the callbacks hold the promise now: when they go uncalled it breaks and get() returns.
  answer.reset();
  call(std::move(options), std::move(request), std::move(callbacks));
  try {
    return result.get();
  } catch (const std::future_error&) {
    return fail(FailureCode::kShuttingDown, "the HTTP client was stopped", FailureWhere::kLocal,
                address);
  }
}

}  // namespace kvferry::net
