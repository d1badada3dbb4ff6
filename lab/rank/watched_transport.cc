#include "lab/rank/watched_transport.h"

#include <utility>

#include "data_plane/factory.h"
#include "data_plane/lanes/frame.h"
#include "net/endpoint.h"

namespace kvferry::lab {
namespace {

using data_plane::CompletionSink;
using data_plane::Landing;

// Signed, as JSON has it here; names stay unique.
std::int64_t number(std::uint64_t value) { return static_cast<std::int64_t>(value); }

router::JsonObject& add_slot(router::JsonObject& line, SessionEpoch session, GrantSlot slot,
                             Generation generation) {
  return line.integer("session", number(session.value()))
      .integer("slot", slot.value())
      .integer("generation", number(generation.value()));
}

class WatchedSink final : public CompletionSink {
 public:
  WatchedSink(CompletionSink& inner, Journal& journal, WriteWatch& writes)
      : inner_(inner), journal_(journal), writes_(writes) {
    writes_.set_sink(inner);
  }

  void writes_completed(
      std::span<const data_plane::WriteCompletion> completions) noexcept override {
    writes_.completed(completions);
  }
  void writes_quiet(SessionEpoch session, std::span<const TicketId> tickets) noexcept override {
    writes_.quiet(session, tickets);
  }
  void writes_landed(std::span<const Landing> landings) noexcept override {
    for (const Landing& landing : landings) note("landed", landing);
    inner_.writes_landed(landings);
  }
  void write_torn(const Landing& landing, std::string_view how) noexcept override {
    note("torn", landing);
    inner_.write_torn(landing, how);
  }
  void fence_done(GrantId grant) noexcept override {
    journal_.append(Journal::line("fenced").integer("grant", number(grant.value())));
    inner_.fence_done(grant);
  }
  void path_tested(SessionEpoch session, const Status& result) noexcept override {
    inner_.path_tested(session, result);
  }
  void lane_failed(SessionEpoch session, Failure cause) noexcept override {
    inner_.lane_failed(session, std::move(cause));
  }
  void session_unreachable(SessionEpoch session, Failure cause) noexcept override {
    inner_.session_unreachable(session, std::move(cause));
  }
  void session_torn_down(SessionEpoch session) noexcept override {
    inner_.session_torn_down(session);
  }
  void regions_released() noexcept override { inner_.regions_released(); }

 private:
  void note(std::string_view at, const Landing& landing) noexcept {
    router::JsonObject line = Journal::line(at);
    journal_.append(add_slot(line, landing.session, landing.slot, landing.generation)
                        .integer("region", landing.region.value())
                        .integer("page", landing.item)
                        .integer("offset", number(landing.offset_in_item))
                        .integer("bytes", number(landing.length)));
  }

  CompletionSink& inner_;
  Journal& journal_;
  WriteWatch& writes_;
};

class WatchedTransport final : public data_plane::Transport {
 public:
  WatchedTransport(std::unique_ptr<WatchedSink> sink, std::unique_ptr<Transport> inner,
                   Journal& journal, const Routes& routes, WriteWatch& writes)
      : sink_(std::move(sink)),
        inner_(std::move(inner)),
        journal_(journal),
        routes_(routes),
        writes_(writes) {}

  data_plane::TransportProperties properties() const override { return inner_->properties(); }
  std::vector<std::string_view> offers() const override { return inner_->offers(); }
  std::vector<data_plane::TransportCounter> counters() const override { return inner_->counters(); }
  std::vector<data_plane::PathReport> paths() const override { return inner_->paths(); }
  std::vector<std::uint8_t> local_blob() const override { return inner_->local_blob(); }
  Status register_regions(std::span<const Region> regions) override {
    writes_.set_regions(regions);
    return inner_->register_regions(regions);
  }
  Status unregister_regions(data_plane::Unregister how) override {
    return inner_->unregister_regions(how);
  }
  Status open_session(const data_plane::SessionLink& link) override {
    data_plane::SessionLink led = link;
    lead(led.peer_blob);
    return inner_->open_session(led);
  }
  void close_session(SessionEpoch session) override { inner_->close_session(session); }
  void open_grant(GrantId grant, std::vector<data_plane::SlotGrant> slots) override {
    for (const data_plane::SlotGrant& slot : slots) {
      const auto pages = slot.extent.pages();
      router::JsonObject line = Journal::line("slot");
      add_slot(line, slot.session, slot.slot, slot.generation)
          .integer("page", pages.empty() ? -1 : std::int64_t{pages.front().value()})
          .integer("grant", number(grant.value()));
      journal_.append(line);
    }
    inner_->open_grant(grant, std::move(slots));
  }
  void fence(GrantId grant) override {
    journal_.append(Journal::line("fence").integer("grant", number(grant.value())));
    inner_->fence(grant);
  }
  void post(SessionEpoch session, std::span<const layout::Write> writes) override {
    writes_.posted(session, writes);
    inner_->post(session, writes);
  }
  void give_up(SessionEpoch session, GrantSlot slot, Generation generation) override {
    inner_->give_up(session, slot, generation);
  }
  void stop() override { inner_->stop(); }

 private:
  // The peer's address, where it has one, becomes that of the relay.
  void lead(std::vector<std::uint8_t>& blob) const {
    auto parsed = data_plane::parse_blob(blob);
    if (!parsed || parsed->host.empty()) return;
    const auto through =
        net::parse_endpoint(routes_.of(net::format_endpoint(parsed->host, parsed->port)));
    if (!through) return;
    parsed->host = through->host;
    parsed->port = through->port;
    blob = data_plane::encode_blob(*parsed);
  }

  std::unique_ptr<WatchedSink> sink_;  // outlives the transport
  std::unique_ptr<Transport> inner_;
  Journal& journal_;
  const Routes& routes_;
  WriteWatch& writes_;
};

}  // namespace

Result<std::unique_ptr<data_plane::Transport>> make_watched_transport(
    std::string_view name, const data_plane::TransportConfig& config, CompletionSink& sink,
    Journal& journal, const Routes& routes, WriteWatch& writes) {
  auto watched = std::make_unique<WatchedSink>(sink, journal, writes);
  auto inner = data_plane::make_transport(name, config, *watched);
  if (!inner) return tl::unexpected(inner.error());
  return std::make_unique<WatchedTransport>(std::move(watched), std::move(*inner), journal, routes,
                                            writes);
}

}  // namespace kvferry::lab
