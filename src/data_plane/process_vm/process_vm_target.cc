#include "data_plane/process_vm/process_vm_target.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "data_plane/host_regions.h"
#include "data_plane/process_vm/process_vm_transport.h"
#include "data_plane/refuse_all.h"

namespace kvferry::data_plane {
namespace {

// The end of a process frees quarantined pages; nobody is held up by it.
constexpr auto kInterval = std::chrono::milliseconds(20);

}  // namespace

ProcessVmTarget::ProcessVmTarget(const TransportConfig& config, CompletionSink& sink)
    : config_(config), sink_(sink), uses_(sink), thread_([this] { run(); }) {}

ProcessVmTarget::~ProcessVmTarget() { stop(); }

TransportProperties ProcessVmTarget::properties() const {
  return {ProcessVmTransport::kName, false, false, false};
}

std::vector<TransportCounter> ProcessVmTarget::counters() const {
  std::lock_guard lock(mutex_);
  return {{"process_vm_sessions_torn_down", torn_down_}};
}

Status ProcessVmTarget::register_regions(std::span<const Region> regions) {
  if (auto checked = check_host_regions(regions, ProcessVmTransport::kName); !checked) {
    return checked;
  }
  std::lock_guard lock(mutex_);
  return uses_.register_regions(regions, !sessions_.empty());
}

Status ProcessVmTarget::open_session(const SessionLink& link) {
  const Result<ProcessBlob> blob = decode_process_blob(link.peer_blob);
  if (!blob) {
    return tl::unexpected(blob.error());
  }
  Result<RemoteProcess> process = RemoteProcess::open(blob->process);
  if (!process) {
    return tl::unexpected(process.error());
  }
  std::lock_guard lock(mutex_);
  sessions_[link.epoch] = std::make_shared<const RemoteProcess>(std::move(*process));
  return {};
}

void ProcessVmTarget::close_session(SessionEpoch session) {
  {
    std::lock_guard lock(mutex_);
    auto node = sessions_.extract(session);
    if (node.empty()) {
      return;
    }
    closed_.push_back({session, std::move(node.mapped())});
    if (closed_.size() > kMaxClosed) {
      closed_.pop_front();
    }
  }
  changed_.notify_all();
}

void ProcessVmTarget::post(SessionEpoch session, std::span<const layout::Write> writes) {
  refuse_all(session, writes, sink_);
}

std::vector<SessionEpoch> ProcessVmTarget::take_ended() {
  std::vector<SessionEpoch> ended;
  std::erase_if(closed_, [&](const Closed& closed) {
    const bool over = closed.process->has_ended();
    if (over) {
      ended.push_back(closed.session);
    }
    return over;
  });
  torn_down_ += ended.size();
  return ended;
}

void ProcessVmTarget::run() {
  const ThreadPlacePtr place =
      enrol(config_.threads, "kvf-process-end", "waits for the end of peers' processes");
  place->run([&] { watch_until_stopped(*place); });
}

void ProcessVmTarget::watch_until_stopped(ThreadPlace& place) {
  for (std::unique_lock lock(mutex_); !stopping_;) {
    place.waits();
    if (closed_.empty()) {
      changed_.wait(lock, [this] { return stopping_ || !closed_.empty(); });
    } else {
      changed_.wait_for(lock, kInterval, [this] { return stopping_; });
    }
    place.works();
    for (const SessionEpoch session : take_ended()) {
      sink_.session_torn_down(session);
    }
  }
}

void ProcessVmTarget::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

}  // namespace kvferry::data_plane
