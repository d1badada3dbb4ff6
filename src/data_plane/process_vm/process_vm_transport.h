// Writes into the memory of another process of this host, by process_vm_writev: for peers that
// speak a protocol of their own and know raw addresses only. Source side alone; a target needs no
// code of this transport, and so gives no fence (D3) and checks nothing (D4: the source does).
//
//  D1  The call is synchronous: a ticket ends as landed when all bytes are there, as refused when
//      none is, else as unknown and torn, and then as quiet at once.
//  D2  Nothing is under way that was not told; what is queued can always be taken back.
//  D5  As everywhere.
//
// Which process that is stands in process_blob.h; remote_process.h keeps a reused number from being
// written to. A write that a process's end has overtaken is never called landed.
//
// Threads: one of its own copies, for all sessions, in the order of post(). The driver's calls wait
// for it at most while they take a lock that is not held during a copy.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "data_plane/process_vm/process_blob.h"
#include "data_plane/region_uses.h"
#include "data_plane/transport.h"

namespace kvferry::data_plane {

// Takes one item of the source apart: part i goes to buffer i of the target's region and has that
// buffer's part_bytes. Called on the transport's thread. A failure refuses the write.
using ItemSplit =
    std::function<Result<std::vector<std::vector<std::byte>>>(std::span<const std::byte> item)>;

class ProcessVmTransport final : public Transport {
 public:
  static constexpr std::string_view kName = "process-vm";

  // split: for regions in parts; without one, writes to such regions are refused. sink outlives the
  // transport. config.max_queued_writes is honoured; what concerns lanes and frames is not looked
  // at.
  ProcessVmTransport(const TransportConfig& config, CompletionSink& sink, ItemSplit split);
  ~ProcessVmTransport() override;
  ProcessVmTransport(const ProcessVmTransport&) = delete;
  ProcessVmTransport& operator=(const ProcessVmTransport&) = delete;

  TransportProperties properties() const override { return {kName, false, false, false}; }
  std::vector<std::uint8_t> local_blob() const override { return {}; }
  std::vector<TransportCounter> counters() const override;
  Status register_regions(std::span<const Region> regions) override;
  Status unregister_regions(Unregister how) override;
  // Opens the process; fails when it has ended, is this one, or may not be written to.
  Status open_session(const SessionLink& link) override;
  void close_session(SessionEpoch session) override;
  void open_grant(GrantId, std::vector<SlotGrant>) override {}
  void fence(GrantId) override {}  // never asked for: there is none
  void post(SessionEpoch session, std::span<const layout::Write> writes) override;
  void give_up(SessionEpoch session, GrantSlot slot, Generation generation) override;
  void stop() override;

 private:
  struct Peer {
    RemoteProcess process;
    ProcessBlob blob;
    std::vector<std::uint64_t> item_bytes;
    std::vector<std::uint32_t> item_counts;
  };
  struct Session {
    std::shared_ptr<const Peer> peer;
    std::size_t queued = 0;
    bool is_unreachable = false;  // told
  };
  struct Job {
    SessionEpoch session;
    layout::Write write;
  };
  // One job's copies: pieces [first, first + count) of a batch.
  struct Planned {
    std::size_t first = 0;
    std::size_t count = 0;
  };

  void run();
  void copy_until_stopped(ThreadPlace& place);
  std::vector<Job> take_batch();
  void carry(const std::vector<Job>& batch, const Peer& peer);
  bool plan(const Job& job, const Peer& peer, std::vector<RemoteProcess::Piece>& pieces,
            std::vector<std::vector<std::byte>>& parts) const;
  void tell_unreachable(SessionEpoch session, const Peer& peer, int error);
  void refuse_queued(const std::function<bool(const Job&)>& which);
  void refuse(std::span<const Job> jobs);
  static std::vector<WriteCompletion> refusals(std::span<const Job> jobs);
  std::span<const std::byte> source(const layout::Write& write) const;

  const TransportConfig config_;
  const ItemSplit split_;
  CompletionSink& sink_;
  RegionUses uses_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Region> regions_;
  std::unordered_map<SessionEpoch, Session> sessions_;
  std::deque<Job> queue_;
  bool stopping_ = false;
  std::uint64_t bytes_written_ = 0;
  std::uint64_t writes_refused_ = 0;
  std::uint64_t writes_torn_ = 0;
  std::thread thread_;
};

}  // namespace kvferry::data_plane
