// Every JSON text that this server sends, behind plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvferry/kv_manager.h"
#include "serve/request.h"
#include "serve/room_log.h"

namespace kvferry::serve {

struct AnswerHead {
  RequestKind kind = RequestKind::kCompletion;
  std::string id;
  std::string model;
  std::int64_t created = 0;  // seconds since 1970
};

struct Usage {
  std::uint32_t prompt_tokens = 0;
  std::uint32_t completion_tokens = 0;
};

std::string error_json(const ApiError& error);

std::string answer_json(const AnswerHead& head, std::string_view text,
                        std::string_view finish_reason, const Usage& usage,
                        const std::vector<Token>* token_ids);
// One streamed piece. first: the chat's first, which names the role. finish_reason empty: null.
std::string chunk_json(const AnswerHead& head, std::string_view text, bool first,
                       std::string_view finish_reason, const std::vector<Token>* token_ids);
std::string usage_chunk_json(const AnswerHead& head, const Usage& usage);

std::string readiness_json(std::string_view instance, std::span<const ReadinessCheck> checks);
std::string models_json(const EngineInfo& engine, std::int64_t created);
std::string pairs_json(std::span<const PairState> pairs);
std::string room_json(const RoomStats& stats);
std::string rooms_json(std::span<const RoomStats> rooms);
// Prefill's own answer.
std::string prefill_json(const AnswerHead& head, const RoomStats& stats);

}  // namespace kvferry::serve
