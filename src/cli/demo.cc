// kvferry demo: the main job end to end. The reference answers first, alone; then a bootstrap
// server, a prefill and a decode server and a router answer the same prompts, and every answer must
// be the same to the last byte.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "cli/command.h"
#include "cli/demo_cluster.h"
#include "cli/demo_prompts.h"
#include "cli/demo_result.h"
#include "cli/interrupt.h"

namespace kvferry::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kAnswerDeadline{300};
constexpr seconds kCancelDeadline{60};
constexpr seconds kBalanceDeadline{60};
constexpr milliseconds kSoon{5};
constexpr const char* kModelFile = ".cache/model/SmolLM2-135M-Instruct.Q4_0.gguf";

std::string default_model() {
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return (program.parent_path().parent_path().parent_path() / kModelFile).string();
}

// Runs the steps in order; each leaves its failure in result_.problem.
class DemoRun {
 public:
  DemoRun(const DemoOptions& options, const Interrupt& interrupt)
      : options_(options),
        interrupt_(interrupt),
        shows_progress_(::isatty(STDERR_FILENO) == 1),
        client_(net::HttpClient::start(1)),
        cluster_(options, interrupt) {}

  DemoResult run() {
    const auto begin = std::chrono::steady_clock::now();
    const bool done = ask_reference() && start_fleet() && ask_fleet() && cancel_some();
    // Even a failed run shows its counters, when there is somebody to ask.
    if (!cluster_.decode().empty()) wait_balance(done ? kBalanceDeadline : seconds(0));
    result_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (interrupt_.requested()) result_.problem = "interrupted";
    return std::move(result_);
  }

  std::string log_tails() const { return cluster_.log_tails(); }

  // Until Ctrl-C or the end of a server.
  void keep_up() {
    fmt::print(stderr,
               "The servers stay up until Ctrl-C. Ask them:\n"
               "  curl -N http://{}/v1/chat/completions -H 'content-type: application/json' -d "
               "'{{\"model\":\"{}\",\"stream\":true,\"messages\":[{{\"role\":\"user\","
               "\"content\":\"Why is snow white?\"}}]}}'\n",
               cluster_.router(), model_);
    interrupt_.wait_until([&] { return !cluster_.ended_process().empty(); },
                          std::chrono::hours(24 * 365));
  }

 private:
  bool failed(std::string problem) {
    if (result_.problem.empty()) result_.problem = std::move(problem);
    return false;
  }
  template <typename... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    if (!shows_progress_) return;
    fmt::print(stderr, "demo: {}\n", fmt::format(format, std::forward<Args>(args)...));
  }

  std::shared_ptr<ChatCall> ask(const std::string& address, const std::string& prompt) {
    return ChatCall::start(*client_, address, {model_, prompt, options_.max_tokens});
  }

  // True when the call has ended; false after the deadline, on interrupt or when a server has
  // ended.
  bool await(ChatCall& call) {
    bool server_ended = false;
    interrupt_.wait_until(
        [&] {
          server_ended = !cluster_.ended_process().empty();
          return call.ended() || server_ended;
        },
        kAnswerDeadline, kSoon);
    if (call.ended()) return true;
    call.cancel();
    return server_ended ? failed(cluster_.ended_process() + " has ended")
                        : failed("no answer before the deadline");
  }

  bool ask_reference() {
    say("starting the reference (one process, both roles)");
    const auto address = cluster_.start_reference();
    if (!address) return failed(address.error().what);
    const auto models = get_json(*client_, *address, "/v1/models");
    if (!models) return failed(models.error().what);
    model_ = models->root()["data"].at(0)["id"].text().value_or("");
    for (const std::string& prompt : demo_prompts(options_.prompts)) {
      const auto call = ask(*address, prompt);
      if (!await(*call)) return false;
      DemoRow row;
      row.reference = call->answer();
      if (!row.reference.problem.empty()) return failed("reference: " + row.reference.problem);
      result_.rows.push_back(std::move(row));
    }
    say("the reference has answered {} prompts", result_.rows.size());
    cluster_.end_reference();
    return true;
  }

  bool start_fleet() {
    say("starting bootstrap, prefill, decode and router");
    if (const Status started = cluster_.start_fleet(); !started) {
      return failed(started.error().what);
    }
    if (const Status paired = cluster_.wait_paired(*client_); !paired) {
      return failed(paired.error().what);
    }
    return true;
  }

  // Groups of one to four requests at once.
  bool ask_fleet() {
    const std::vector<std::string> prompts = demo_prompts(options_.prompts);
    std::size_t next = 0;
    for (std::size_t group = 0; next < prompts.size(); ++group) {
      const std::size_t end = std::min(prompts.size(), next + 1 + group % 4);
      std::vector<std::shared_ptr<ChatCall>> calls;
      for (std::size_t i = next; i < end; ++i) calls.push_back(ask(cluster_.router(), prompts[i]));
      for (std::size_t i = next; i < end; ++i) {
        if (!await(*calls[i - next])) return false;
        DemoRow& row = result_.rows[i];
        row.answer = calls[i - next]->answer();
        if (!row.answer.problem.empty()) {
          return failed(fmt::format("prompt {}: {}", i + 1, row.answer.problem));
        }
        if (!read_statistics(row)) return false;
      }
      next = end;
    }
    say("the pair has answered {} prompts", prompts.size());
    return true;
  }

  // Prefill's record of the room; it is complete once Consumed has come from decode.
  bool read_statistics(DemoRow& row) {
    std::string problem = "its record is not complete";
    const bool complete = interrupt_.wait_until(
        [&] {
          const auto room =
              get_json(*client_, cluster_.prefill(), "/v1/kvferry/rooms/" + row.answer.binding);
          if (!room) {
            problem = room.error().what;
            return false;
          }
          return take_statistics(room->root(), row);
        },
        seconds(10), kSoon);
    return complete || failed("prefill's record of a room: " + problem);
  }

  static bool take_statistics(const router::JsonView& room, DemoRow& row) {
    if (room["outcome"].text().value_or("") != "success") return false;
    row.pages = room["pages"].integer().value_or(0);
    row.bytes = room["bytes"].integer().value_or(0);
    row.prefill_chunks = (row.answer.prompt_tokens + kDemoChunkTokens - 1) / kDemoChunkTokens;
    row.landed_bytes_at_prefill_end = room["landed_bytes_at_prefill_end"].integer().value_or(0);
    row.first_page_before_prefill_end =
        room["first_page_before_prefill_end"].boolean().value_or(false);
    return true;
  }

  std::optional<double> prefill_metric(std::string_view name) {
    const auto metrics = get_metrics(*client_, cluster_.prefill());
    return metrics ? metric_value(*metrics, name) : std::nullopt;
  }

  // Each request is closed once prefill has computed, and so sent, its first chunk, while the later
  // ones are computed. The next one starts when prefill has ended it, so that no chunk is taken for
  // another request's.
  bool cancel_some() {
    for (const std::string& prompt : demo_prompts_to_cancel(options_.cancelled)) {
      const double before = computed_tokens();
      const auto call = ask(cluster_.router(), prompt);
      const bool began = interrupt_.wait_until(
          [&] { return call->ended() || computed_tokens() >= before + kDemoChunkTokens; },
          kCancelDeadline, kSoon);
      call->cancel();
      if (!began) return failed("a request that was to be cancelled did not begin");
      ++result_.cancelled;
      const bool ended = interrupt_.wait_until(
          [&] {
            read_failed_rooms();
            return result_.cancelled_early == result_.cancelled;
          },
          kCancelDeadline, kSoon);
      if (!ended) return failed("prefill has not ended the room of a cancelled request as failed");
    }
    say("{} requests cancelled", result_.cancelled);
    return true;
  }

  double computed_tokens() {
    const auto metrics = get_metrics(*client_, cluster_.prefill());
    return metrics ? metric_value(*metrics, "kvferry_prompt_tokens_total").value_or(0) : 0;
  }

  void wait_balance(seconds deadline) {
    interrupt_.wait_until(
        [&] {
          read_counters();
          read_failed_rooms();
          return result_.pages_balance() && result_.cancelled_early == result_.cancelled;
        },
        deadline);
  }

  void read_counters() {
    const auto decode = get_metrics(*client_, cluster_.decode());
    const auto prefill = get_metrics(*client_, cluster_.prefill());
    if (!decode || !prefill) return;
    const auto value = [](const std::string& metrics, std::string_view name) {
      return metric_value(metrics, name).value_or(-1);
    };
    read_path();
    result_.pages_granted = value(*decode, "kvferry_pages_granted_total");
    result_.pages_returned = value(*decode, "kvferry_pages_returned_total");
    result_.quarantined_pages = value(*decode, "kvferry_quarantined_pages");
    result_.pages_held = value(*prefill, "kvferry_pages_held_total");
    result_.pages_released = value(*prefill, "kvferry_pages_released_total");
  }

  // How the bytes went from prefill to decode, and why not over shared memory if they did not.
  void read_path() {
    const auto pairs = get_json(*client_, cluster_.prefill(), "/v1/kvferry/pairs");
    if (!pairs) return;
    const router::JsonView pair = pairs->root()["pairs"].at(0);
    result_.path = pair["path"].text().value_or("");
    const std::string why = pair["path_why"].text().value_or("");
    if (!why.empty()) result_.path += " (" + why + ")";
  }

  // A room that failed on prefill ended before its transfer did. Only the cancelled ones may.
  void read_failed_rooms() {
    const auto rooms = get_json(*client_, cluster_.prefill(), "/v1/kvferry/rooms");
    if (!rooms) return;
    result_.cancelled_early = 0;
    const router::JsonView rows = rooms->root()["rooms"];
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows.at(i)["outcome"].text().value_or("") == "failed") ++result_.cancelled_early;
    }
  }

  const DemoOptions& options_;
  const Interrupt& interrupt_;
  const bool shows_progress_;
  std::unique_ptr<net::HttpClient> client_;
  DemoCluster cluster_;
  std::string model_;
  DemoResult result_;
};

class DemoInvocation final : public Invocation {
 public:
  DemoInvocation() { options_.model = default_model(); }

  void declare(Settings& settings) override {
    settings.choice("engine", options_.engine, {"llama", "synthetic"},
                    "what answers: the real model, or a stand-in without one");
    settings.text("model", "path", options_.model, "GGUF file of the llama engine");
    settings.text("transport", "", options_.transport, "transport of the KV pages");
    settings.number<std::uint32_t>("prompts", "prompts", options_.prompts, 1,
                                   static_cast<std::uint32_t>(kDemoPrompts), "prompts to answer");
    settings.number<std::uint32_t>("max_tokens", "tokens", options_.max_tokens, 1, 256,
                                   "longest answer");
    settings.number<std::uint32_t>("cancelled", "requests", options_.cancelled, 0, 50,
                                   "further requests that are cancelled in mid-transfer");
    settings.text("json", "FILE", options_.json, "write the result as JSON; - is stdout");
    settings.flag("keep", options_.keep, "leave the servers up afterwards, until Ctrl-C");
  }

  Status check() override {
    std::error_code ignored;
    if (options_.engine == "llama" && !std::filesystem::exists(options_.model, ignored)) {
      return fail(
          FailureCode::kInvalidArgument,
          fmt::format("option --model: {} does not exist; make demo fetches and prepares it",
                      options_.model));
    }
    return {};
  }

  int run() override {
    const Interrupt interrupt;
    // With --json - stdout holds nothing but the JSON object.
    std::FILE* text = options_.json == "-" ? stderr : stdout;
    DemoRun demo(options_, interrupt);
    const DemoResult result = demo.run();
    const std::string verdict = judge(options_, result);
    if (!verdict.empty()) fmt::print(stderr, "{}", demo.log_tails());
    fmt::print(text, "{}", demo_table(options_, result));
    int code = verdict.empty() ? kExitTrue : kExitFalse;
    if (!options_.json.empty()) {
      const Status written = demo_report(options_, result, verdict).write(options_.json);
      if (!written) {
        fmt::print(stderr, "kvferry demo: {}\n", written.error().what);
        code = kExitFalse;
      }
    }
    fmt::print(text, "demo: {}\n", verdict.empty() ? "PASS" : "FAIL " + verdict);
    std::fflush(text);
    if (options_.keep && !interrupt.requested() && verdict.empty()) demo.keep_up();
    return code;
  }

 private:
  DemoOptions options_;
};

}  // namespace

const Command& demo_command() {
  static const Command command{
      "demo", "The main job end to end, with a real model, checked against one process.",
      "Starts a bootstrap, a prefill and a decode server and a router on this machine, sends "
      "prompts\n"
      "through them and compares every answer with that of one process that does both roles. PASS\n"
      "means: all answers identical, pages moved while the prompt was still computed, and every "
      "page\n"
      "back after six requests were cancelled in mid-transfer.",
      [] { return std::unique_ptr<Invocation>(std::make_unique<DemoInvocation>()); }};
  return command;
}

}  // namespace kvferry::cli
