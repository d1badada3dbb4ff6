// UCX over TCP. Three ways to move pages, of which the fastest for the block counts:
//   put      ucp_put_nbx for each page, ucp_ep_flush_nbx for each stretch of pages: a page counts
//            once the flush after it has completed
//   eager n  an active message with n pages (scatter/gather), copied into place by the target
//   rndv n   the same by rendezvous, received straight into the pages
// The target answers active messages with the number of pages that it has applied so far.
//
// Error handling mode PEER on both sides, since a transfer layer must survive the other's death.
// Tuned: larger TCP segments (the default of 8 KiB cuts large pages up), and more pieces a segment
// where the version bears it.

#include <fmt/format.h>
#include <ucp/api/ucp.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "peer.h"

namespace kvferry::peers {
namespace {

enum WayKind { kPut, kEager, kRendezvous };

constexpr unsigned kPagesMessage = 1;
constexpr unsigned kAppliedMessage = 2;
constexpr std::size_t kMaxPagesPerMessage = 512;
constexpr std::size_t kLargestMessageBytes = std::size_t{1} << 20;
constexpr std::size_t kFlushBytes = std::size_t{4} << 20;
constexpr std::size_t kFlushPages = 256;
constexpr std::size_t kAckPages = 32;

void check(ucs_status_t status, std::string_view what) {
  if (status != UCS_OK) {
    throw std::runtime_error(fmt::format("UCX: {}: {}", what, ucs_status_string(status)));
  }
}

// A request that is done at once has no object; one that is not frees its object when it is.
bool check_request(ucs_status_ptr_t request, std::string_view what) {
  if (UCS_PTR_IS_ERR(request)) {
    check(UCS_PTR_STATUS(request), what);
  }
  return request != nullptr;
}

ucp_datatype_t datatype_of(std::size_t pages) {
  if (pages == 1) {
    return ucp_dt_make_contig(1);
  }
  return UCP_DATATYPE_IOV;
}

// Callbacks are called from C and must not throw: the first error waits here for progress().
struct Failure {
  ucs_status_t status = UCS_OK;
  void note(ucs_status_t next) {
    if (status == UCS_OK) {
      status = next;
    }
  }
};

// Context, worker and endpoint, the same on both sides. The address of this object is kept by UCX.
class Link {
 public:
  explicit Link(Control& control) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_RMA | UCP_FEATURE_AM;
    ucp_config_t* config = nullptr;
    check(ucp_config_read(nullptr, nullptr, &config), "read the settings");
    check(ucp_init(&params, config, &context_), "init");
    ucp_config_release(config);
    ucp_worker_params_t worker_params{};
    worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
    check(ucp_worker_create(context_, &worker_params, &worker_), "create a worker");

    ucp_address_t* address = nullptr;
    std::size_t address_bytes = 0;
    check(ucp_worker_get_address(worker_, &address, &address_bytes), "worker address");
    control.send({reinterpret_cast<const char*>(address), address_bytes});
    ucp_worker_release_address(worker_, address);
    const std::string other = control.receive();

    ucp_ep_params_t ep_params{};
    ep_params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                           UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    ep_params.address = reinterpret_cast<const ucp_address_t*>(other.data());
    ep_params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    ep_params.err_handler.cb = [](void* argument, ucp_ep_h, ucs_status_t status) {
      static_cast<Failure*>(argument)->note(status);
    };
    ep_params.err_handler.arg = &failure;
    check(ucp_ep_create(worker_, &ep_params, &endpoint_), "create an endpoint");
  }

  void handle(unsigned id, ucp_am_recv_callback_t callback, void* argument) {
    ucp_am_handler_param_t params{};
    params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                        UCP_AM_HANDLER_PARAM_FIELD_ARG;
    params.id = id;
    params.cb = callback;
    params.arg = argument;
    check(ucp_worker_set_am_recv_handler(worker_, &params), "set a handler");
  }

  unsigned progress() {
    const unsigned events = ucp_worker_progress(worker_);
    check(failure.status, "endpoint");
    return events;
  }

  ucp_context_h context() const { return context_; }
  ucp_worker_h worker() const { return worker_; }
  ucp_ep_h endpoint() const { return endpoint_; }

  Failure failure;

 private:
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
};

// Takes a free object of a pool that grows; what UCX keeps a pointer to lives in one.
template <typename T>
class Pool {
 public:
  T* take() {
    if (free_.empty()) {
      all_.push_back(std::make_unique<T>());
      return all_.back().get();
    }
    T* object = free_.back();
    free_.pop_back();
    return object;
  }
  void give(T* object) { free_.push_back(object); }

 private:
  std::vector<std::unique_ptr<T>> all_;
  std::vector<T*> free_;
};

class UcxSource final : public Source {
 public:
  UcxSource(Control& control, std::byte* pool) : link_(control), pool_(pool) {
    const std::string region = control.receive();
    std::memcpy(&remote_base_, region.data(), sizeof remote_base_);
    check(ucp_ep_rkey_unpack(link_.endpoint(), region.data() + sizeof remote_base_, &rkey_),
          "unpack the remote key");
    link_.handle(kAppliedMessage, &UcxSource::on_applied, this);
  }

  std::string version() const override { return fmt::format("UCX {}", ucp_get_version_string()); }

  std::vector<Way> ways(std::size_t page_bytes, std::size_t batch) const override {
    std::vector<std::size_t> counts{batch};
    if (batch == 0) {
      counts = {1};
      const std::size_t most = std::min<std::size_t>(kLargestMessageBytes / page_bytes, 128);
      for (const std::size_t count : {most / 8, most}) {
        if (count > counts.back()) {
          counts.push_back(count);
        }
      }
    }
    std::vector<Way> all{
        {.name = "put", .kind = kPut, .pages_per_request = std::max<std::size_t>(batch, 1)}};
    for (const std::size_t count : counts) {
      if (count <= kMaxPagesPerMessage) {
        all.push_back(
            {.name = fmt::format("eager {}", count), .kind = kEager, .pages_per_request = count});
        all.push_back({.name = fmt::format("rndv {}", count),
                       .kind = kRendezvous,
                       .pages_per_request = count});
      }
    }
    return all;
  }

  void start(const Way& way, std::size_t page_bytes) override {
    kind_ = way.kind;
    page_bytes_ = page_bytes;
    flush_pages_ = std::clamp<std::size_t>(kFlushBytes / page_bytes, 1, kFlushPages);
  }

  bool submit(std::span<const PageMove> pages) override {
    if (kind_ == kPut) {
      put(pages);
    } else {
      send(pages);
    }
    return true;
  }

  void flush() override {
    if (unflushed_ == 0) {
      return;
    }
    auto* stretch = stretches_.take();
    *stretch = {.source = this, .pages = std::exchange(unflushed_, 0)};
    const ucp_request_param_t params = with_callback(&UcxSource::on_flushed, stretch);
    if (!check_request(ucp_ep_flush_nbx(link_.endpoint(), &params), "flush")) {
      finish(stretch);
    }
  }

  std::size_t progress() override {
    link_.progress();
    return std::exchange(newly_applied_, 0);
  }

 private:
  struct Stretch {
    UcxSource* source = nullptr;
    std::size_t pages = 0;
  };
  struct Message {
    UcxSource* source = nullptr;
    std::array<std::uint64_t, kMaxPagesPerMessage> targets;
    std::array<ucp_dt_iov_t, kMaxPagesPerMessage> pieces;
  };

  static ucp_request_param_t with_callback(ucp_send_nbx_callback_t callback, void* argument) {
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    params.cb.send = callback;
    params.user_data = argument;
    return params;
  }

  void put(std::span<const PageMove> pages) {
    const ucp_request_param_t params = with_callback(&UcxSource::on_put, this);
    for (const PageMove& page : pages) {
      check_request(ucp_put_nbx(link_.endpoint(), pool_ + page.source_offset, page_bytes_,
                                remote_base_ + page.target_offset, rkey_, &params),
                    "put");
      if (++unflushed_ >= flush_pages_) {
        flush();
      }
    }
  }

  void send(std::span<const PageMove> pages) {
    auto* message = messages_.take();
    message->source = this;
    for (std::size_t i = 0; i < pages.size(); ++i) {
      message->targets[i] = pages[i].target_offset;
      message->pieces[i] = {.buffer = pool_ + pages[i].source_offset, .length = page_bytes_};
    }
    ucp_request_param_t params = with_callback(&UcxSource::on_sent, message);
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_FLAGS;
    params.datatype = datatype_of(pages.size());
    params.flags = kind_ == kEager ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV;
    const bool one = pages.size() == 1;
    if (!check_request(ucp_am_send_nbx(link_.endpoint(), kPagesMessage, message->targets.data(),
                                       pages.size() * sizeof(std::uint64_t),
                                       one ? message->pieces[0].buffer : message->pieces.data(),
                                       one ? page_bytes_ : pages.size(), &params),
                       "send a message")) {
      messages_.give(message);
    }
  }

  void finish(Stretch* stretch) {
    newly_applied_ += stretch->pages;
    stretches_.give(stretch);
  }

  static void on_put(void* request, ucs_status_t status, void* argument) {
    static_cast<UcxSource*>(argument)->link_.failure.note(status);
    ucp_request_free(request);
  }

  static void on_flushed(void* request, ucs_status_t status, void* argument) {
    auto* stretch = static_cast<Stretch*>(argument);
    stretch->source->link_.failure.note(status);
    stretch->source->finish(stretch);
    ucp_request_free(request);
  }

  static void on_sent(void* request, ucs_status_t status, void* argument) {
    auto* message = static_cast<Message*>(argument);
    message->source->link_.failure.note(status);
    message->source->messages_.give(message);
    ucp_request_free(request);
  }

  static ucs_status_t on_applied(void* argument, const void* header, std::size_t, void*,
                                 std::size_t, const ucp_am_recv_param_t*) {
    auto* self = static_cast<UcxSource*>(argument);
    std::uint64_t total = 0;
    std::memcpy(&total, header, sizeof total);
    self->newly_applied_ += total - std::exchange(self->applied_total_, total);
    return UCS_OK;
  }

  Link link_;
  std::byte* pool_;
  std::uint64_t remote_base_ = 0;
  ucp_rkey_h rkey_ = nullptr;
  int kind_ = kPut;
  std::size_t page_bytes_ = 0;
  std::size_t flush_pages_ = 1;
  std::size_t unflushed_ = 0;
  std::size_t newly_applied_ = 0;
  std::uint64_t applied_total_ = 0;
  Pool<Stretch> stretches_;
  Pool<Message> messages_;
};

class UcxTarget final : public Target {
 public:
  UcxTarget(Control& control, std::byte* pool) : link_(control), pool_(pool) {
    ucp_mem_map_params_t params{};
    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
    params.address = pool;
    params.length = kPoolBytes;
    ucp_mem_h memory = nullptr;
    check(ucp_mem_map(link_.context(), &params, &memory), "map the pool");
    void* key = nullptr;
    std::size_t key_bytes = 0;
    check(ucp_rkey_pack(link_.context(), memory, &key, &key_bytes), "pack the remote key");
    const auto base = reinterpret_cast<std::uint64_t>(pool);
    std::string region(reinterpret_cast<const char*>(&base), sizeof base);
    region.append(static_cast<const char*>(key), key_bytes);
    ucp_rkey_buffer_release(key);
    link_.handle(kPagesMessage, &UcxTarget::on_pages, this);
    control.send(region);
  }

  void start(std::size_t page_bytes) override { page_bytes_ = page_bytes; }

  void progress() override {
    const unsigned events = link_.progress();
    if (!acking_ && applied_ != acked_ && (events == 0 || applied_ - acked_ >= kAckPages)) {
      acknowledge();
    }
  }

 private:
  struct Arrival {
    UcxTarget* target = nullptr;
    std::size_t pages = 0;
    std::array<ucp_dt_iov_t, kMaxPagesPerMessage> pieces;
  };

  void acknowledge() {
    acked_ = applied_;
    ucp_request_param_t params{};
    params.op_attr_mask =
        UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_AM_SEND_FLAG_EAGER;
    params.user_data = this;
    params.cb.send = [](void* request, ucs_status_t status, void* argument) {
      auto* self = static_cast<UcxTarget*>(argument);
      self->link_.failure.note(status);
      self->acking_ = false;
      ucp_request_free(request);
    };
    acking_ = check_request(ucp_am_send_nbx(link_.endpoint(), kAppliedMessage, &acked_,
                                            sizeof acked_, nullptr, 0, &params),
                            "acknowledge");
  }

  static ucs_status_t on_pages(void* argument, const void* header, std::size_t header_bytes,
                               void* data, std::size_t, const ucp_am_recv_param_t* param) {
    auto* self = static_cast<UcxTarget*>(argument);
    const auto* targets = static_cast<const std::uint64_t*>(header);
    const std::size_t pages = header_bytes / sizeof(std::uint64_t);
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
      self->receive(data, targets, pages);
      return UCS_INPROGRESS;
    }
    const auto* next = static_cast<const std::byte*>(data);
    for (std::size_t i = 0; i < pages; ++i, next += self->page_bytes_) {
      std::memcpy(self->pool_ + targets[i], next, self->page_bytes_);
    }
    self->applied_ += pages;
    return UCS_OK;
  }

  void receive(void* data, const std::uint64_t* targets, std::size_t pages) {
    auto* arrival = arrivals_.take();
    arrival->target = this;
    arrival->pages = pages;
    for (std::size_t i = 0; i < pages; ++i) {
      arrival->pieces[i] = {.buffer = pool_ + targets[i], .length = page_bytes_};
    }
    const bool one = pages == 1;
    ucp_request_param_t params{};
    params.op_attr_mask =
        UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE;
    params.datatype = datatype_of(pages);
    params.user_data = arrival;
    params.cb.recv_am = [](void* request, ucs_status_t status, std::size_t, void* user_data) {
      auto* done = static_cast<Arrival*>(user_data);
      done->target->link_.failure.note(status);
      done->target->finish(done);
      ucp_request_free(request);
    };
    const ucs_status_ptr_t request = ucp_am_recv_data_nbx(
        link_.worker(), data,
        one ? arrival->pieces[0].buffer : static_cast<void*>(arrival->pieces.data()),
        one ? page_bytes_ : pages, &params);
    if (UCS_PTR_IS_ERR(request)) {
      link_.failure.note(UCS_PTR_STATUS(request));
    } else if (request == nullptr) {
      finish(arrival);
    }
  }

  void finish(Arrival* arrival) {
    applied_ += arrival->pages;
    arrivals_.give(arrival);
  }

  Link link_;
  std::byte* pool_;
  std::size_t page_bytes_ = 0;
  std::uint64_t applied_ = 0;
  std::uint64_t acked_ = 0;
  bool acking_ = false;
  Pool<Arrival> arrivals_;
};

Peer ucx_peer(const Options& options) {
  Peer peer;
  set_default(peer.settings, "UCX_TLS", "tcp");
  if (options.tuned) {
    set_default(peer.settings, "UCX_TCP_TX_SEG_SIZE", "1M");
    set_default(peer.settings, "UCX_TCP_RX_SEG_SIZE", "1M");
    // More pieces in one system call. 1.13 does not survive values above its default by much.
    if (UCP_API_VERSION >= UCP_VERSION(1, 15)) {
      set_default(peer.settings, "UCX_TCP_MAX_IOV", "64");
    }
  }
  peer.connect_source = [](Control& control, std::byte* pool) -> std::unique_ptr<Source> {
    return std::make_unique<UcxSource>(control, pool);
  };
  peer.connect_target = [](Control& control, std::byte* pool) -> std::unique_ptr<Target> {
    return std::make_unique<UcxTarget>(control, pool);
  };
  return peer;
}

}  // namespace
}  // namespace kvferry::peers

int main(int argc, char** argv) {
  return kvferry::peers::peer_main(argc, argv, kvferry::peers::ucx_peer);
}
