#include "kvferry/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <limits>
#include <optional>
#include <type_traits>

#include "base/loopback.h"

namespace kvferry {
namespace {

constexpr std::uint32_t kMaxMs = 24U * 3'600'000U;
constexpr std::size_t kMaxTextBytes = 4'096;
constexpr std::size_t kMaxListEntries = 1'024;

tl::unexpected<Failure> refuse(std::string what) {
  return fail(FailureCode::kInvalidArgument, std::move(what));
}

// Range in T, so that a limit that its type can't hold does not compile.
template <auto Member>
using MemberType = std::remove_reference_t<decltype(std::declval<Options&>().*Member)>;

template <auto Member>
OptionRow number(std::string_view name, std::string_view unit, MemberType<Member> min,
                 MemberType<Member> max, std::string_view help) {
  using T = MemberType<Member>;
  auto set = [name, unit, min, max](Options& options, std::string_view value) -> Status {
    T parsed{};
    const char* end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, parsed);
    if (error != std::errc{} || stop != end || parsed < min || parsed > max) {
      return refuse(fmt::format("option {}: '{}' is not a whole number from {} to {}{}{}", name,
                                value, min, max, unit.empty() ? "" : " ", unit));
    }
    options.*Member = parsed;
    return {};
  };
  return {name, unit, help, std::move(set),
          [](const Options& options) { return fmt::format("{}", options.*Member); }};
}

template <auto Member>
OptionRow flag(std::string_view name, std::string_view help) {
  auto set = [name](Options& options, std::string_view value) -> Status {
    if (value == "true" || value == "1" || value == "on" || value == "yes") {
      options.*Member = true;
    } else if (value == "false" || value == "0" || value == "off" || value == "no") {
      options.*Member = false;
    } else {
      return refuse(fmt::format("option {}: '{}' is neither true nor false", name, value));
    }
    return {};
  };
  return {name, "", help, std::move(set),
          [](const Options& options) { return std::string(options.*Member ? "true" : "false"); }};
}

bool has_control_characters(std::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; });
}

template <auto Member>
OptionRow text(std::string_view name, std::string_view unit, std::string_view help) {
  auto set = [name](Options& options, std::string_view value) -> Status {
    if (value.size() > kMaxTextBytes || has_control_characters(value)) {
      return refuse(fmt::format("option {}: the text has control characters or more than {} bytes",
                                name, kMaxTextBytes));
    }
    options.*Member = std::string(value);
    return {};
  };
  return {name, unit, help, std::move(set), [](const Options& options) { return options.*Member; }};
}

// host:port, where an IPv6 host stands in brackets.
bool is_host_port(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) {
    return false;
  }
  const std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  std::uint16_t port = 0;
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  return error == std::errc{} && stop == digits.data() + digits.size() && port != 0 &&
         (bracketed || host.find_first_of(":[]/ ") == std::string_view::npos) &&
         !has_control_characters(host);
}

template <auto Member>
OptionRow addresses(std::string_view name, std::string_view help) {
  auto set = [name](Options& options, std::string_view value) -> Status {
    std::vector<std::string> list;
    while (!value.empty()) {
      const std::size_t comma = std::min(value.find(','), value.size());
      const std::string_view entry = value.substr(0, comma);
      value.remove_prefix(std::min(comma + 1, value.size()));
      if (!is_host_port(entry)) {
        return refuse(fmt::format("option {}: '{}' is not host:port", name, entry));
      }
      if (list.size() == kMaxListEntries) {
        return refuse(fmt::format("option {}: more than {} entries", name, kMaxListEntries));
      }
      list.emplace_back(entry);
    }
    options.*Member = std::move(list);
    return {};
  };
  return {name, "host:port,...", help, std::move(set), [](const Options& options) {
            return fmt::format("{}", fmt::join(options.*Member, ","));
          }};
}

void add_room_rows(std::vector<OptionRow>& rows) {
  rows.push_back(number<&Options::bootstrap_timeout_ms>(
      "bootstrap_timeout_ms", "ms", 10, kMaxMs, "from opening a room until it waits for input"));
  rows.push_back(number<&Options::input_timeout_ms>(
      "input_timeout_ms", "ms", 10, kMaxMs, "waiting for the caller's metadata or first send"));
  rows.push_back(number<&Options::transfer_timeout_ms>(
      "transfer_timeout_ms", "ms", 10, kMaxMs, "from the first transfer until the room's end"));
  rows.push_back(number<&Options::unopened_room_timeout_ms>(
      "unopened_room_timeout_ms", "ms", 10, kMaxMs, "how long a grant waits for its sender"));
  rows.push_back(number<&Options::max_rooms>("max_rooms", "rooms", 1, 1U << 24, "open rooms"));
  rows.push_back(number<&Options::max_unopened_grants>("max_unopened_grants", "grants", 1, 1U << 24,
                                                       "grants that wait for their sender"));
  rows.push_back(number<&Options::max_ended_senders>(
      "max_ended_senders", "senders", 1, 1U << 24,
      "senders that ended before any grant, remembered for a late grant"));
}

void add_page_and_write_rows(std::vector<OptionRow>& rows) {
  rows.push_back(number<&Options::fence_timeout_ms>(
      "fence_timeout_ms", "ms", 10, kMaxMs, "a later fence is counted and makes readiness fall"));
  rows.push_back(number<&Options::quarantine_max_pages>(
      "quarantine_max_pages", "pages", 1, std::numeric_limits<std::uint32_t>::max(),
      "pages of failed rooms that are not fenced yet; new rooms are refused at this many"));
  rows.push_back(number<&Options::max_grant_slots>("max_grant_slots", "slots", 1, 1U << 20,
                                                   "grants at one time, per session"));
  rows.push_back(number<&Options::max_tombstones>("max_tombstones", "attempts", 1, 1U << 24,
                                                  "finished attempts remembered, per session"));
  rows.push_back(number<&Options::write_timeout_ms>(
      "write_timeout_ms", "ms", 10, kMaxMs, "a posted write without outcome becomes unknown"));
  rows.push_back(number<&Options::source_hold_timeout_ms>(
      "source_hold_timeout_ms", "ms", 0, kMaxMs,
      "after a failure, how long sources wait for their tickets before the sender gives up"));
  rows.push_back(number<&Options::max_inflight_bytes>(
      "max_inflight_bytes", "bytes", 65'536, 1ULL << 40, "posted, not completed, per session"));
  rows.push_back(number<&Options::max_queued_writes>(
      "max_queued_writes", "writes", 1, 1U << 28,
      "waiting for max_inflight_bytes, per session; further ones are refused and counted"));
}

void add_peer_rows(std::vector<OptionRow>& rows) {
  rows.push_back(number<&Options::heartbeat_interval_ms>("heartbeat_interval_ms", "ms", 5, kMaxMs,
                                                         "between two heartbeats to a peer"));
  rows.push_back(number<&Options::heartbeat_timeout_ms>("heartbeat_timeout_ms", "ms", 10, kMaxMs,
                                                        "silence that ends a session"));
  rows.push_back(number<&Options::session_grace_ms>("session_grace_ms", "ms", 0, kMaxMs,
                                                    "how long a session outlives its connection"));
  rows.push_back(number<&Options::redial_min_ms>("redial_min_ms", "ms", 1, kMaxMs,
                                                 "first pause before a peer is dialled again"));
  rows.push_back(number<&Options::redial_max_ms>("redial_max_ms", "ms", 1, kMaxMs,
                                                 "longest pause before a peer is dialled again"));
  rows.push_back(number<&Options::hello_timeout_ms>("hello_timeout_ms", "ms", 10, kMaxMs,
                                                    "from dialling until the session lives"));
  rows.push_back(number<&Options::retransmit_min_ms>("retransmit_min_ms", "ms", 1, kMaxMs,
                                                     "first pause before a message is repeated"));
  rows.push_back(number<&Options::retransmit_max_ms>("retransmit_max_ms", "ms", 1, kMaxMs,
                                                     "longest pause before a message is repeated"));
  rows.push_back(number<&Options::send_window_messages>(
      "send_window_messages", "messages", 1, 1U << 20, "sent, not acknowledged, per peer"));
  rows.push_back(number<&Options::max_queued_messages>(
      "max_queued_messages", "messages", 1, 1U << 24, "waiting for the send window, per peer"));
  rows.push_back(number<&Options::max_peers>("max_peers", "peers", 1, 1U << 16,
                                             "peers with a session or wanted"));
  rows.push_back(number<&Options::pause_threshold_ms>(
      "pause_threshold_ms", "ms", 1, kMaxMs,
      "after a longer turn the inbox is drained before timers are run"));
  rows.push_back(number<&Options::lane_failure_limit>(
      "lane_failure_limit", "failures", 1, 1U << 16,
      "lane failures within session_grace_ms that end a session"));
}

void add_control_rows(std::vector<OptionRow>& rows) {
  rows.push_back(text<&Options::control_host>("control_host", "address",
                                              "address that the control link binds"));
  rows.push_back(number<&Options::control_port>("control_port", "port", 0, 65'535,
                                                "port of the control link, 0: any free one"));
  rows.push_back(text<&Options::advertise_host>(
      "advertise_host", "address",
      "address told to peers, for control and data, empty: the bound one"));
  rows.push_back(
      number<&Options::advertise_port>("advertise_port", "port", 0, 65'535,
                                       "port of the control link told to peers, 0: the bound one"));
  rows.push_back(
      number<&Options::advertise_data_port>("advertise_data_port", "port", 0, 65'535,
                                            "port of tcp lanes told to peers, 0: the bound one"));
  rows.push_back(flag<&Options::curve>(
      "curve", "encrypt and authenticate the control link; false only on loopback"));
  rows.push_back(number<&Options::control_frame_bytes>(
      "control_frame_bytes", "bytes", 1'024, 1U << 24, "messages of one turn sent as one frame"));
  rows.push_back(
      number<&Options::control_message_max_bytes>("control_message_max_bytes", "bytes", 4'096,
                                                  1U << 28, "longest message of the control link"));
  rows.push_back(number<&Options::control_queue_max_bytes>(
      "control_queue_max_bytes", "bytes", 4'096, 1U << 30, "encoded and waiting, per peer"));
  rows.push_back(number<&Options::handshake_timeout_ms>("handshake_timeout_ms", "ms", 10, kMaxMs,
                                                        "CURVE handshake of a new connection"));
}

void add_data_rows(std::vector<OptionRow>& rows) {
  rows.push_back(text<&Options::transport>("transport", "name",
                                           "auto (shm where it works, else tcp), shm or tcp"));
  rows.push_back(text<&Options::data_host>("data_host", "address",
                                           "address that data lanes bind, empty: control_host"));
  rows.push_back(number<&Options::data_port>("data_port", "port", 0, 65'535,
                                             "port of the data lanes, 0: any free one"));
  rows.push_back(number<&Options::lanes_per_peer>("lanes_per_peer", "lanes", 1, 64,
                                                  "data connections to one peer"));
  rows.push_back(number<&Options::data_frame_bytes>("data_frame_bytes", "bytes", 4'096, 1U << 28,
                                                    "data of one frame on a lane"));
  rows.push_back(number<&Options::data_frame_writes>("data_frame_writes", "writes", 1, 1'024,
                                                     "writes of one frame on a lane"));
  rows.push_back(number<&Options::lane_poll_us>(
      "lane_poll_us", "us", 0, 10'000,
      "tcp: polling for more after bytes have moved, before the thread sleeps; 0: none"));
  rows.push_back(number<&Options::lane_heartbeat_ms>("lane_heartbeat_ms", "ms", 5, kMaxMs,
                                                     "between two heartbeats on an idle lane"));
  rows.push_back(number<&Options::lane_timeout_ms>("lane_timeout_ms", "ms", 10, kMaxMs,
                                                   "silence that ends a lane"));
  rows.push_back(number<&Options::max_lane_strangers>(
      "max_lane_strangers", "connections", 1, 1U << 16,
      "data connections that have not proved themselves; further ones are dropped and counted"));
  rows.push_back(flag<&Options::page_digests>(
      "page_digests", "prefill: a digest with each write; one that lands altered fails its room"));
  rows.push_back(number<&Options::receive_threads>(
      "receive_threads", "threads", 1, 256, "decode: threads that move bytes into the pages"));
  rows.push_back(text<&Options::shm_folder>(
      "shm_folder", "folder",
      "where the shm socket of a decode lies; both processes must see it; empty: runtime folder"));
  rows.push_back(number<&Options::shm_lanes>("shm_lanes", "rings", 1, 64,
                                             "prefill: rings of one shm session"));
  rows.push_back(
      number<&Options::shm_ring_entries>("shm_ring_entries", "writes", 64, 65'536,
                                         "prefill: writes under way in one ring, a power of two"));
}

void add_process_rows(std::vector<OptionRow>& rows) {
  rows.push_back(number<&Options::max_queued_calls>("max_queued_calls", "calls", 16, 1U << 24,
                                                    "API calls and completions not yet processed"));
  rows.push_back(number<&Options::stop_timeout_ms>("stop_timeout_ms", "ms", 10, kMaxMs,
                                                   "a stop of the manager, with every peer dead"));
  rows.push_back(
      number<&Options::thread_stall_ms>("thread_stall_ms", "ms", 100, kMaxMs,
                                        "a thread at one turn for so long makes readiness fall"));
  rows.push_back(number<&Options::thread_dead_ms>(
      "thread_dead_ms", "ms", 1'000, kMaxMs,
      "a thread at one turn for so long is taken for dead: every room fails"));
  rows.push_back(
      addresses<&Options::bootstrap_addresses>("bootstrap_addresses", "registries of this fleet"));
  rows.push_back(addresses<&Options::bootstrap_allow>(
      "bootstrap_allow", "further registries a request may name; *:port is any host"));
  rows.push_back(text<&Options::cluster_token_file>(
      "cluster_token_file", "path", "first line: the cluster token; second, optional: the next"));
  rows.push_back(number<&Options::lease_ms>("lease_ms", "ms", 100, kMaxMs,
                                            "time a registration holds unless renewed"));
  rows.push_back(number<&Options::http_try_timeout_ms>("http_try_timeout_ms", "ms", 10, kMaxMs,
                                                       "one try of a registry request"));
  rows.push_back(number<&Options::http_total_timeout_ms>("http_total_timeout_ms", "ms", 10, kMaxMs,
                                                         "all tries of a registry request"));
  rows.push_back(flag<&Options::require_identical>(
      "require_identical", "refuse a pair whose numerics (kernels, threads, chunking) differ"));
}

std::vector<OptionRow> make_rows() {
  std::vector<OptionRow> rows;
  add_room_rows(rows);
  add_page_and_write_rows(rows);
  add_peer_rows(rows);
  add_control_rows(rows);
  add_data_rows(rows);
  add_process_rows(rows);
  return rows;
}

bool is_wildcard(std::string_view host) {
  return host == "0.0.0.0" || host == "::" || host == "[::]" || host == "*";
}

// The getter's text goes back through the setter, so that values set in code meet the same ranges
// as values given as text.
Status check_ranges(const Options& options) {
  Options scratch = options;
  for (const OptionRow& row : option_rows()) {
    if (Status status = row.set(scratch, row.get(options)); !status) {
      return status;
    }
  }
  return {};
}

Status check_not_above(std::string_view small_name, std::uint64_t small,
                       std::string_view large_name, std::uint64_t large) {
  if (small <= large) {
    return {};
  }
  return refuse(fmt::format("{} ({}) must not exceed {} ({}): lower the first or raise the second",
                            small_name, small, large_name, large));
}

Status check_order(const Options& o) {
  struct Pair {
    std::string_view small_name;
    std::uint64_t small;
    std::string_view large_name;
    std::uint64_t large;
  };
  // Twice the interval: one lost heartbeat must not end a session or a lane.
  const Pair pairs[] = {
      {"twice heartbeat_interval_ms", 2ULL * o.heartbeat_interval_ms, "heartbeat_timeout_ms",
       o.heartbeat_timeout_ms},
      {"session_grace_ms", o.session_grace_ms, "heartbeat_timeout_ms", o.heartbeat_timeout_ms},
      {"redial_min_ms", o.redial_min_ms, "redial_max_ms", o.redial_max_ms},
      {"retransmit_min_ms", o.retransmit_min_ms, "retransmit_max_ms", o.retransmit_max_ms},
      {"thread_stall_ms", o.thread_stall_ms, "thread_dead_ms", o.thread_dead_ms},
      {"twice lane_heartbeat_ms", 2ULL * o.lane_heartbeat_ms, "lane_timeout_ms", o.lane_timeout_ms},
      {"control_frame_bytes", o.control_frame_bytes, "control_message_max_bytes",
       o.control_message_max_bytes},
      {"control_message_max_bytes", o.control_message_max_bytes, "control_queue_max_bytes",
       o.control_queue_max_bytes},
      {"data_frame_bytes", o.data_frame_bytes, "max_inflight_bytes", o.max_inflight_bytes},
      {"http_try_timeout_ms", o.http_try_timeout_ms, "http_total_timeout_ms",
       o.http_total_timeout_ms},
  };
  for (const Pair& pair : pairs) {
    if (Status status = check_not_above(pair.small_name, pair.small, pair.large_name, pair.large);
        !status) {
      return status;
    }
  }
  return {};
}

Status check_addresses(const Options& options) {
  if (options.control_host.empty()) {
    return refuse("control_host is empty: give the address to bind, for example 127.0.0.1");
  }
  if (options.transport.empty()) {
    return refuse("transport is empty: name one, for example auto");
  }
  if (std::popcount(options.shm_ring_entries) != 1 ||
      options.shm_ring_entries < options.data_frame_writes) {
    return refuse(fmt::format(
        "shm_ring_entries {} must be a power of two and at least data_frame_writes ({})",
        options.shm_ring_entries, options.data_frame_writes));
  }
  if (is_wildcard(options.control_host) && options.advertise_host.empty()) {
    return refuse(
        fmt::format("control_host {} is no address that a peer can dial: set advertise_host",
                    options.control_host));
  }
  if (is_wildcard(options.advertise_host)) {
    return refuse(fmt::format("advertise_host {} is no address that a peer can dial",
                              options.advertise_host));
  }
  if (!options.curve && !is_loopback_host(options.control_host)) {
    return refuse(
        fmt::format("curve is off and control_host is {}: plain mode is for loopback only",
                    options.control_host));
  }
  // Keys come from the registry; without the token anybody could put a key there.
  if (!is_loopback_host(options.control_host) && options.cluster_token_file.empty()) {
    return refuse(fmt::format("control_host {} is not loopback: set cluster_token_file",
                              options.control_host));
  }
  return {};
}

}  // namespace

std::span<const OptionRow> option_rows() {
  static const std::vector<OptionRow> rows = make_rows();
  return rows;
}

Status validate(const Options& options) {
  if (Status status = check_ranges(options); !status) {
    return status;
  }
  if (Status status = check_order(options); !status) {
    return status;
  }
  return check_addresses(options);
}

}  // namespace kvferry
