#include "router/forward.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "base/log.h"

namespace kvferry::router {
namespace {

constexpr std::size_t kMaxPrefillErrorBytes = 64U << 10;

bool is_event_stream(const net::HttpResponse& head) {
  return head.headers.get("content-type").starts_with("text/event-stream");
}

// The answer's own fields only: lengths and connection handling belong to each hop.
net::HttpResponse passed_on(int status, const net::HttpHeaders& headers) {
  net::HttpResponse out;
  out.status = status;
  for (const std::string_view name : {"content-type", "cache-control", "retry-after"}) {
    const std::string_view value = headers.get(name);
    if (!value.empty()) out.headers.set(std::string(name), std::string(value));
  }
  return out;
}

void name_transfer(net::HttpResponse& response, const TransferNames& names) {
  response.headers.set("x-kvferry-room", std::to_string(names.room.value()));
  response.headers.set("x-kvferry-binding", names.binding.to_hex());
}

}  // namespace

Forward::Forward(ForwardContext& context, net::HttpRequest request,
                 std::shared_ptr<net::Responder> responder, std::function<void()> on_finished)
    : context_(context),
      request_(std::move(request)),
      responder_(std::move(responder)),
      on_finished_(std::move(on_finished)) {}

void Forward::start(Choice choice) {
  begin(std::move(choice), 1);
  // Weak, since the responder would else keep this and this the responder.
  responder_->on_disconnect([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->client_gone();
  });
}

net::HttpRequest Forward::request_for(const TransferNames& names, const Choice& choice) const {
  net::HttpRequest request;
  request.method = "POST";
  request.target = request_.target;
  request.headers.set("content-type", "application/json");
  const std::string_view id = request_.headers.get("x-request-id");
  request.headers.set("x-request-id", id.empty() ? names.binding.to_hex() : std::string(id));
  request.body =
      add_transfer_fields(request_.body, context_.bootstrap, names, choice.prefill_instance);
  return request;
}

void Forward::begin(Choice choice, std::uint32_t number) {
  const TransferNames names = TransferNames::draw();
  {
    std::lock_guard lock(mutex_);
    // The client may have gone between two tries; finish() has released the choice then.
    if (phase_ == Phase::kFinished) return;
    try_ = Try{};
    try_.number = number;
    try_.choice = choice;
    try_.names = names;
    try_.begun = std::chrono::steady_clock::now();
  }
  log::write(log::Level::kDebug,
             fmt::format("try {}: prefill {} decode {} room {}", number, choice.prefill_address,
                         choice.decode_address, names.room.value()),
             names.binding.to_hex());
  net::HttpCallOptions options;
  options.connect_timeout_ms = context_.connect_timeout_ms;
  options.total_timeout_ms = context_.request_timeout_ms;
  options.max_body_bytes = context_.max_answer_bytes;
  const net::HttpRequest request = request_for(names, choice);
  options.address = choice.prefill_address;
  auto prefill = context_.client.call(options, request, prefill_callbacks(number));
  options.address = choice.decode_address;
  auto decode = context_.client.call(options, request, decode_callbacks(number));

  // The callbacks may have ended this try before its calls had a place to be cancelled from.
  std::unique_lock lock(mutex_);
  if (phase_ != Phase::kFinished && try_.number == number) {
    try_.prefill = std::move(prefill);
    try_.decode = std::move(decode);
    return;
  }
  lock.unlock();
  prefill->cancel();
  decode->cancel();
}

net::HttpCallbacks Forward::prefill_callbacks(std::uint32_t number) {
  net::HttpCallbacks callbacks;
  callbacks.on_head = [self = shared_from_this(), number](const net::HttpResponse& head) {
    std::lock_guard lock(self->mutex_);
    if (self->try_.number != number) return;
    self->try_.prefill_status = head.status;
    self->try_.prefill_headers = head.headers;
  };
  callbacks.on_data = [self = shared_from_this(), number](std::string_view data) {
    std::lock_guard lock(self->mutex_);
    std::string& body = self->try_.prefill_body;
    if (self->try_.number == number && body.size() + data.size() <= kMaxPrefillErrorBytes) {
      body += data;
    }
  };
  callbacks.on_end = [self = shared_from_this(), number](const Status& result) {
    self->prefill_ended(number, result);
  };
  return callbacks;
}

net::HttpCallbacks Forward::decode_callbacks(std::uint32_t number) {
  net::HttpCallbacks callbacks;
  callbacks.on_head = [self = shared_from_this(), number](const net::HttpResponse& head) {
    self->decode_answered(number, head);
  };
  callbacks.on_data = [self = shared_from_this(), number](std::string_view data) {
    self->decode_sent(number, data);
  };
  callbacks.on_end = [self = shared_from_this(), number](const Status& result) {
    self->decode_ended(number, result);
  };
  return callbacks;
}

void Forward::prefill_ended(std::uint32_t number, const Status& result) {
  std::unique_lock lock(mutex_);
  if (try_.number != number || phase_ != Phase::kWaiting) return;
  if (!result) {
    const Failure failure = result.error();
    lock.unlock();
    call_failed(number, Role::kPrefill, failure);
    return;
  }
  if (try_.prefill_status < 400) return;
  // Decode would only learn later, and in other words, that nothing comes.
  net::HttpResponse response = passed_on(try_.prefill_status, try_.prefill_headers);
  response.body = std::move(try_.prefill_body);
  const TransferNames names = try_.names;
  if (finish(lock, Calls::kCancelBoth)) answer(std::move(response), names);
}

void Forward::decode_answered(std::uint32_t number, const net::HttpResponse& head) {
  std::unique_lock lock(mutex_);
  if (try_.number != number || phase_ != Phase::kWaiting) return;
  net::HttpResponse response = passed_on(head.status, head.headers);
  name_transfer(response, try_.names);
  if (!is_event_stream(head)) {
    phase_ = Phase::kBuffering;
    try_.head = std::move(response);
    return;
  }
  phase_ = Phase::kStreaming;
  lock.unlock();
  context_.metrics.answered(response.status);
  responder_->begin_stream(std::move(response));
}

void Forward::decode_sent(std::uint32_t number, std::string_view data) {
  std::unique_lock lock(mutex_);
  if (try_.number != number) return;
  if (phase_ == Phase::kBuffering) {
    try_.head.body += data;
  } else if (phase_ == Phase::kStreaming) {
    lock.unlock();
    responder_->write(std::string(data));
  }
}

void Forward::decode_ended(std::uint32_t number, const Status& result) {
  std::unique_lock lock(mutex_);
  if (try_.number != number || phase_ == Phase::kFinished) return;
  const bool streaming = phase_ == Phase::kStreaming;
  if (!result && !streaming) {
    const Failure failure = result.error();
    lock.unlock();
    call_failed(number, Role::kDecode, failure);
    return;
  }
  net::HttpResponse response = std::move(try_.head);
  const std::string decode = try_.choice.decode_address;
  const std::string binding = try_.names.binding.to_hex();
  const bool failed = !result || response.status >= 400;
  if (!finish(lock, failed ? Calls::kCancelBoth : Calls::kLeavePrefill)) return;
  if (!streaming) {
    context_.metrics.answered(response.status);
    responder_->respond(std::move(response));
    return;
  }
  if (!result) {
    // The status line is out, so the error travels as an event, the way OpenAI's clients read it.
    context_.metrics.stream_broken();
    const std::string what =
        fmt::format("decode server {} ended its answer early: {}", decode, result.error().what);
    log::write(log::Level::kWarning, what, binding);
    responder_->write(
        fmt::format("data: {}\n\n", openai_error(502, what, to_string(result.error().code))));
  }
  responder_->end();
}

void Forward::call_failed(std::uint32_t number, Role role, const Failure& failure) {
  if (retried(number, role, failure)) return;
  std::unique_lock lock(mutex_);
  if (try_.number != number || phase_ == Phase::kFinished) return;
  const TransferNames names = try_.names;
  const bool overdue = is_overdue();
  const std::string& address =
      role == Role::kPrefill ? try_.choice.prefill_address : try_.choice.decode_address;
  const std::string what = fmt::format("{} server {}: {}", to_string(role), address, failure.what);
  if (!finish(lock, Calls::kCancelBoth)) return;
  log::write(log::Level::kWarning, what, names.binding.to_hex());
  if (overdue) return answer(error_response(504, what, "request_timeout"), names);
  answer(error_response(502, what, to_string(failure.code)), names);
}

bool Forward::is_overdue() const {
  return std::chrono::steady_clock::now() - try_.begun >=
         std::chrono::milliseconds(context_.request_timeout_ms);
}

// A second try repeats work but never part of an answer, and its new names can't meet the first
// one's (rule 8). There is no third: a request that kills servers must not go through the whole
// fleet.
bool Forward::retried(std::uint32_t number, Role role, const Failure& failure) {
  if (failure.code != FailureCode::kPeerUnreachable && failure.code != FailureCode::kPeerLost) {
    return false;
  }
  std::unique_lock lock(mutex_);
  if (try_.number != number || phase_ == Phase::kFinished) return true;
  if (phase_ != Phase::kWaiting || is_overdue()) return false;
  const Choice old = try_.choice;
  const std::size_t index = role == Role::kPrefill ? old.prefill : old.decode;
  context_.fleet.connection_failed(role, index, failure.what);
  if (number > 1) return false;
  Avoid avoid;
  (role == Role::kPrefill ? avoid.prefill : avoid.decode) = index;
  auto next = context_.fleet.choose(avoid);
  if (!next) return false;
  const std::array<std::shared_ptr<net::HttpCall>, 2> calls = {std::move(try_.prefill),
                                                               std::move(try_.decode)};
  // From here on the callbacks of the first try are those of an earlier number.
  try_.number = number + 1;
  try_.choice = *next;
  lock.unlock();
  for (const auto& call : calls) {
    if (call) call->cancel();
  }
  context_.fleet.release(old);
  context_.metrics.retried();
  log::info("{} server {}: {}; trying {} and {}", to_string(role),
            role == Role::kPrefill ? old.prefill_address : old.decode_address, failure.what,
            next->prefill_address, next->decode_address);
  begin(std::move(*next), number + 1);
  return true;
}

void Forward::client_gone() {
  std::unique_lock lock(mutex_);
  if (finish(lock, Calls::kCancelBoth)) context_.metrics.client_gone();
}

void Forward::stop(const Failure& why) {
  std::unique_lock lock(mutex_);
  const Phase phase = phase_;
  const TransferNames names = try_.names;
  if (!finish(lock, Calls::kCancelBoth)) return;
  if (phase == Phase::kStreaming) {
    responder_->write(
        fmt::format("data: {}\n\n", openai_error(503, why.what, to_string(why.code))));
    responder_->end();
  } else {
    answer(error_response(503, why.what, to_string(why.code)), names);
  }
}

bool Forward::finish(std::unique_lock<std::mutex>& lock, Calls calls) {
  if (phase_ == Phase::kFinished) return false;
  phase_ = Phase::kFinished;
  const auto prefill = std::move(try_.prefill);
  const auto decode = std::move(try_.decode);
  const Choice choice = try_.choice;
  lock.unlock();
  if (calls == Calls::kCancelBoth) {
    if (prefill) prefill->cancel();
    if (decode) decode->cancel();
  }
  context_.fleet.release(choice);
  on_finished_();
  return true;
}

void Forward::answer(net::HttpResponse response, const TransferNames& names) {
  name_transfer(response, names);
  context_.metrics.answered(response.status);
  responder_->respond(std::move(response));
}

}  // namespace kvferry::router
