#include "data_plane/process_vm/process_vm_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "data_plane/host_regions.h"

namespace kvferry::data_plane {
namespace {

// A batch is what can't be taken back any more, so it is short.
constexpr std::size_t kBatchWrites = 64;
constexpr std::uint64_t kBatchBytes = 4U << 20;

std::vector<std::uint64_t> first_addresses(const ProcessBlob& blob) {
  std::vector<std::uint64_t> out;
  for (const ProcessRegion& region : blob.regions) {
    out.insert(out.end(), region.pointers.begin(), region.pointers.end());
  }
  return out;
}

}  // namespace

ProcessVmTransport::ProcessVmTransport(const TransportConfig& config, CompletionSink& sink,
                                       ItemSplit split)
    : config_(config), split_(std::move(split)), sink_(sink), uses_(sink), thread_([this] {
        run();
      }) {}

ProcessVmTransport::~ProcessVmTransport() { stop(); }

std::vector<TransportCounter> ProcessVmTransport::counters() const {
  std::lock_guard lock(mutex_);
  return {{"process_vm_bytes", bytes_written_},
          {"process_vm_writes_refused", writes_refused_},
          {"process_vm_writes_torn", writes_torn_}};
}

Status ProcessVmTransport::register_regions(std::span<const Region> regions) {
  if (auto checked = check_host_regions(regions, kName); !checked) return checked;
  std::lock_guard lock(mutex_);
  if (auto taken = uses_.register_regions(regions, !sessions_.empty()); !taken) return taken;
  regions_.assign(regions.begin(), regions.end());
  return {};
}

Status ProcessVmTransport::unregister_regions(Unregister how) {
  return uses_.unregister_regions(how);
}

Status ProcessVmTransport::open_session(const SessionLink& link) {
  Result<ProcessBlob> blob = decode_process_blob(link.peer_blob);
  if (!blob) return tl::unexpected(blob.error());
  if (blob->regions.size() != link.peer_item_bytes.size() ||
      blob->regions.size() != link.peer_item_counts.size()) {
    return fail(FailureCode::kMalformed,
                fmt::format("the peer's process-vm blob has {} regions, its layout {}",
                            blob->regions.size(), link.peer_item_bytes.size()),
                FailureWhere::kPeer);
  }
  Result<RemoteProcess> process = RemoteProcess::open(blob->process);
  if (!process) return tl::unexpected(process.error());
  if (Status reached = process->probe(first_addresses(*blob)); !reached) return reached;
  auto peer = std::make_shared<const Peer>(
      Peer{std::move(*process), std::move(*blob), link.peer_item_bytes, link.peer_item_counts});
  std::lock_guard lock(mutex_);
  if (!sessions_.emplace(link.epoch, Session{std::move(peer)}).second) {
    return fail(FailureCode::kWrongState, "a session of this epoch is open already");
  }
  return {};
}

void ProcessVmTransport::close_session(SessionEpoch session) {
  refuse_queued([&](const Job& job) { return job.session == session; });
  std::lock_guard lock(mutex_);
  sessions_.erase(session);
}

void ProcessVmTransport::give_up(SessionEpoch session, GrantSlot slot, Generation generation) {
  refuse_queued([&](const Job& job) {
    return job.session == session && job.write.slot == slot && job.write.generation <= generation;
  });
}

void ProcessVmTransport::post(SessionEpoch session, std::span<const layout::Write> writes) {
  std::vector<Job> refused;
  const bool registered = uses_.begin_writes(writes.size());
  {
    std::lock_guard lock(mutex_);
    const auto found = sessions_.find(session);
    for (const layout::Write& write : writes) {
      const bool taken = registered && found != sessions_.end() && !stopping_ &&
                         found->second.queued < config_.max_queued_writes;
      if (taken) {
        ++found->second.queued;
        queue_.push_back({session, write});
      } else {
        refused.push_back({session, write});
      }
    }
    changed_.notify_one();
  }
  if (registered) {
    refuse(refused);
    return;
  }
  // Past the count of uses, in which they are not.
  sink_.writes_completed(refusals(refused));
}

void ProcessVmTransport::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  refuse_queued([](const Job&) { return true; });
  if (thread_.joinable()) thread_.join();
}

// Takes back what the thread has not begun.
void ProcessVmTransport::refuse_queued(const std::function<bool(const Job&)>& which) {
  std::vector<Job> taken;
  {
    std::lock_guard lock(mutex_);
    const auto kept = std::stable_partition(queue_.begin(), queue_.end(),
                                            [&](const Job& job) { return !which(job); });
    taken.assign(kept, queue_.end());
    queue_.erase(kept, queue_.end());
    for (const Job& job : taken) {
      if (const auto found = sessions_.find(job.session); found != sessions_.end()) {
        --found->second.queued;
      }
    }
  }
  refuse(taken);
}

void ProcessVmTransport::refuse(std::span<const Job> jobs) {
  if (jobs.empty()) return;
  {
    std::lock_guard lock(mutex_);
    writes_refused_ += jobs.size();
  }
  uses_.writes_completed(refusals(jobs));
}

std::vector<WriteCompletion> ProcessVmTransport::refusals(std::span<const Job> jobs) {
  std::vector<WriteCompletion> completions;
  for (const Job& job : jobs) {
    completions.push_back({job.session, job.write.ticket, layout::WriteOutcome::kRefused});
  }
  return completions;
}

void ProcessVmTransport::run() {
  const ThreadPlacePtr place =
      enrol(config_.threads, "kvf-process-vm", "copies into the memory of processes on this host");
  place->run([&] { copy_until_stopped(*place); });
}

void ProcessVmTransport::copy_until_stopped(ThreadPlace& place) {
  for (;;) {
    std::vector<Job> batch;
    std::shared_ptr<const Peer> peer;
    {
      std::unique_lock lock(mutex_);
      place.waits();
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      place.works();
      if (queue_.empty()) return;
      batch = take_batch();
      const auto found = sessions_.find(batch.front().session);
      if (found != sessions_.end()) {
        peer = found->second.peer;
        found->second.queued -= batch.size();
      }
    }
    if (peer) {
      carry(batch, *peer);
    } else {
      refuse(batch);
    }
  }
}

// With the lock held: the longest run of one session's writes at the head of the queue.
std::vector<ProcessVmTransport::Job> ProcessVmTransport::take_batch() {
  std::vector<Job> batch;
  std::uint64_t bytes = 0;
  while (!queue_.empty() && batch.size() < kBatchWrites && bytes < kBatchBytes &&
         (batch.empty() || batch.front().session == queue_.front().session)) {
    bytes += queue_.front().write.length;
    batch.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  return batch;
}

// Empty when the write does not lie within a region of ours.
std::span<const std::byte> ProcessVmTransport::source(const layout::Write& write) const {
  std::lock_guard lock(mutex_);
  if (write.source_region.value() >= regions_.size()) return {};
  const Region& region = regions_[write.source_region.value()];
  const std::uint64_t bytes = region.item_bytes * region.item_count;
  if (write.source_offset > bytes || write.length > bytes - write.source_offset) return {};
  return {region.base + write.source_offset, write.length};
}

// False: the write names what is not there, at either end.
bool ProcessVmTransport::plan(const Job& job, const Peer& peer,
                              std::vector<RemoteProcess::Piece>& pieces,
                              std::vector<std::vector<std::byte>>& parts) const {
  const layout::Write& write = job.write;
  const std::span<const std::byte> from = source(write);
  const std::size_t region = write.target_region.value();
  if (from.empty() || region >= peer.blob.regions.size() ||
      write.target_item >= peer.item_counts[region] ||
      write.offset_in_item > peer.item_bytes[region] ||
      write.length > peer.item_bytes[region] - write.offset_in_item) {
    return false;
  }
  const ProcessRegion& target = peer.blob.regions[region];
  if (target.part_bytes.empty()) {
    pieces.push_back({from.data(),
                      target.pointers.front() + write.target_item * peer.item_bytes[region] +
                          write.offset_in_item,
                      write.length});
    return true;
  }
  // An item in parts is taken apart whole.
  if (!split_ || write.offset_in_item != 0 || write.length != peer.item_bytes[region]) return false;
  Result<std::vector<std::vector<std::byte>>> split = split_(from);
  if (!split || split->size() != target.pointers.size()) return false;
  for (std::size_t i = 0; i < split->size(); ++i) {
    if ((*split)[i].size() != target.part_bytes[i]) return false;
  }
  for (std::size_t i = 0; i < split->size(); ++i) {
    parts.push_back(std::move((*split)[i]));
    pieces.push_back({parts.back().data(),
                      target.pointers[i] + std::uint64_t{write.target_item} * target.part_bytes[i],
                      target.part_bytes[i]});
  }
  return true;
}

void ProcessVmTransport::carry(const std::vector<Job>& batch, const Peer& peer) {
  std::vector<RemoteProcess::Piece> pieces;
  std::vector<std::vector<std::byte>> parts;  // moved about by growth, their bytes are not
  std::vector<Planned> planned;
  for (const Job& job : batch) {
    const std::size_t first = pieces.size();
    const bool known = plan(job, peer, pieces, parts);
    planned.push_back({first, known ? pieces.size() - first : 0});
  }
  const RemoteProcess::Written written = peer.process.write(pieces);
  std::vector<WriteCompletion> completions;
  std::vector<TicketId> quiet;
  std::uint64_t sum = 0;
  std::uint64_t refused = 0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    std::uint64_t there = 0;
    std::uint64_t wanted = 0;
    for (std::size_t at = planned[i].first; at < planned[i].first + planned[i].count; ++at) {
      there += written.bytes[at];
      wanted += pieces[at].bytes;
    }
    WriteCompletion completion{batch[i].session, batch[i].write.ticket,
                               layout::WriteOutcome::kLanded};
    if (there == 0) {
      completion.outcome = layout::WriteOutcome::kRefused;
      ++refused;
    } else if (there < wanted || written.is_lost) {
      completion.outcome = layout::WriteOutcome::kUnknown;
      completion.torn = true;
      quiet.push_back(completion.ticket);
    }
    sum += there;
    completions.push_back(completion);
  }
  {
    std::lock_guard lock(mutex_);
    bytes_written_ += sum;
    writes_refused_ += refused;
    writes_torn_ += quiet.size();
  }
  uses_.writes_completed(completions);
  if (!quiet.empty()) uses_.writes_quiet(batch.front().session, quiet);
  if (written.is_lost) tell_unreachable(batch.front().session, peer, written.error);
}

void ProcessVmTransport::tell_unreachable(SessionEpoch session, const Peer& peer, int error) {
  {
    std::lock_guard lock(mutex_);
    const auto found = sessions_.find(session);
    if (found == sessions_.end() || std::exchange(found->second.is_unreachable, true)) return;
  }
  uses_.session_unreachable(session,
                            Failure{FailureCode::kPeerLost,
                                    FailureWhere::kPath,
                                    fmt::format("process {} can't be written to any more: {}",
                                                peer.process.name().pid, std::strerror(error)),
                                    {},
                                    -1});
}

}  // namespace kvferry::data_plane
