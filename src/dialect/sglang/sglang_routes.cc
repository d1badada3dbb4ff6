#include "dialect/sglang/sglang_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "dialect/sglang/sglang_json.h"

namespace kvferry::sglang {
namespace {

using net::HttpRequest;
using net::HttpResponse;

constexpr std::string_view kText = "text/plain; charset=utf-8";
constexpr std::string_view kJson = "application/json; charset=utf-8";
// In the order in which SGLang looks at them.
constexpr std::array<const char*, 4> kRankParameters = {"prefill_dp_rank", "prefill_cp_rank",
                                                        "target_tp_rank", "target_pp_rank"};

HttpResponse text(int status, std::string body) {
  return net::text_response(status, std::move(body), std::string(kText));
}

HttpResponse json_answer(std::string body) {
  return net::text_response(200, std::move(body), std::string(kJson));
}

HttpResponse wrong_method(std::string_view allowed) {
  HttpResponse response = text(405, "405: Method Not Allowed");
  response.headers.set("Allow", std::string(allowed));
  return response;
}

std::optional<std::int64_t> to_int(std::string_view text) {
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc{} && stop == end ? std::optional(number) : std::nullopt;
}

}  // namespace

std::optional<HttpResponse> SglangRoutes::answer(const HttpRequest& request, Instant now) {
  const std::string_view path = request.path();
  const std::string& method = request.method;
  if (path == "/health") {
    return method == "GET" || method == "HEAD" ? text(200, "OK") : wrong_method("GET,HEAD");
  }
  if (path == "/route") {
    if (method == "PUT") {
      return put_route(request, now);
    }
    if (method == "GET") {
      return get_route(request);
    }
    return net::text_response(405, "Method not allowed", std::string(kJson));
  }
  if (path == "/register_dp_rank") {
    return method == "POST" ? register_dp_rank(request, now) : wrong_method("POST");
  }
  if (path == "/query_dp_ranks") {
    return method == "POST" ? query_dp_ranks(request, now) : wrong_method("POST");
  }
  return std::nullopt;
}

void SglangRoutes::warn(const HttpRequest& request, std::string_view what, Instant now) {
  std::lock_guard lock(mutex_);
  if (warning_limit_.allow(now)) {
    log::warning("{} {} from {}: {} ({} further lines left out)", request.method, request.path(),
                 request.remote, what, warning_limit_.suppressed());
  }
}

// SGLang answers 500 for whatever its handlers trip over; the text is ours.
HttpResponse SglangRoutes::refused(const HttpRequest& request, const Failure& failure,
                                   Instant now) {
  warn(request, failure.what, now);
  return text(500, failure.what);
}

HttpResponse SglangRoutes::put_route(const HttpRequest& request, Instant now) {
  const Result<RankRow> row = parse_rank_row(request.body);
  if (!row) {
    return refused(request, row.error(), now);
  }
  SglangRegistry::Put put = SglangRegistry::Put::kStored;
  std::optional<Topology> first;
  {
    std::lock_guard lock(mutex_);
    put = registry_.put(*row);
    first = registry_.topology();
  }
  switch (put) {
    case SglangRegistry::Put::kStored:
      return text(200, "OK");
    case SglangRegistry::Put::kOtherSizes:
    case SglangRegistry::Put::kOutside:
      // SGLang accepts it without a word, too; its decode ranks would then find nobody.
      warn(request,
           fmt::format("rank tp {} of {}, cp {} of {}, pp {} of {} with pages of {} tokens{}: the "
                       "first registration's tp {}, cp {}, pp {} and {} tokens stay; restart the "
                       "registry after a change of sizes",
                       row->tp.rank, row->tp.size, row->cp.rank, row->cp.size, row->pp.rank,
                       row->pp.size, row->page_tokens,
                       put == SglangRegistry::Put::kOutside ? " has no place" : "", first->tp_size,
                       first->cp_size, first->pp_size, first->page_tokens),
           now);
      return text(200, "OK");
    case SglangRegistry::Put::kLayout:
      return text(400, "DeepSeek-V4.1 DSpark PD layout differs across prefill ranks");
    case SglangRegistry::Put::kPolicy:
      return text(400, "Inconsistent prefill allocation policies");
    case SglangRegistry::Put::kImpossible:
      break;
  }
  return text(400, fmt::format("sizes tp {}, cp {}, pp {}, dp {}, system dp {} are none that a "
                               "server can have",
                               row->tp.size, row->cp.size, row->pp.size, row->dp.size,
                               row->system_dp.size));
}

// Called with the lock held.
HttpResponse SglangRoutes::not_ready() const {
  return text(503, fmt::format("Prefill server not fully registered yet ({} workers registered).",
                               registry_.rank_count()));
}

HttpResponse SglangRoutes::get_route(const HttpRequest& request) {
  std::array<std::string, 4> asked;
  RankKey key{};
  bool all_numbers = true;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    asked[i] = request.query(kRankParameters[i]);
    if (asked[i].empty()) {
      return text(400, "Missing inputs for bootstrap server.");
    }
    const std::optional<std::int64_t> number = to_int(asked[i]);
    all_numbers = all_numbers && number.has_value();
    key[i] = number.value_or(0);
  }
  if (!all_numbers) {
    return text(500, "the ranks asked for are whole numbers");
  }
  std::lock_guard lock(mutex_);
  if (!registry_.is_ready()) {
    return not_ready();
  }
  if (std::all_of(key.begin(), key.end(), [](std::int64_t rank) { return rank == -1; })) {
    return json_answer(topology_json(*registry_.topology()));
  }
  const RankAddress* address = registry_.find(key);
  if (address == nullptr) {
    return text(404, fmt::format("Bootstrap info not found for dp_rank={} cp_rank={} tp_rank={} "
                                 "pp_rank={}",
                                 asked[0], asked[1], asked[2], asked[3]));
  }
  return json_answer(address_json(*address));
}

HttpResponse SglangRoutes::register_dp_rank(const HttpRequest& request, Instant now) {
  const Result<RoomRank> room = parse_room_rank(request.body);
  if (!room) {
    return refused(request, room.error(), now);
  }
  bool is_stored = false;
  {
    std::lock_guard lock(mutex_);
    is_stored = registry_.put_room(room->room, room->dp_rank, now);
  }
  return is_stored ? text(200, "OK") : text(503, "the table of rooms is full");
}

HttpResponse SglangRoutes::query_dp_ranks(const HttpRequest& request, Instant now) {
  const Result<std::vector<std::int64_t>> rooms = parse_rooms(request.body);
  if (!rooms) {
    return refused(request, rooms.error(), now);
  }
  std::vector<RoomRank> known;
  {
    std::lock_guard lock(mutex_);
    for (const std::int64_t room : *rooms) {
      if (const std::optional<std::int64_t> dp_rank = registry_.dp_rank_of(room, now)) {
        known.push_back({room, *dp_rank});
      }
    }
  }
  return json_answer(room_ranks_json(known));
}

}  // namespace kvferry::sglang
