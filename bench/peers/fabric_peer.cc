// libfabric over TCP by RMA writes with delivery-complete semantics: the source's completion says
// that the bytes are in the target's memory.
//   write n   one fi_writemsg with n pages (n source pieces to n target pieces; the provider's
//   limit
//             is 4)
// Default: a reliable datagram endpoint (provider tcp;ofi_rxm), as applications open it. Tuned: a
// connected message endpoint of the provider tcp itself, without the layer between.

#include <fmt/format.h>
#include <netinet/in.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

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

constexpr std::size_t kMaxPieces = 8;
constexpr std::size_t kQueueEntries = 4096;
constexpr int kConnectMs = 10'000;
constexpr std::size_t kMaxAddressBytes = 128;

// libfabric answers with a negative error number.
void check(ssize_t status, std::string_view what) {
  if (status < 0) {
    throw std::runtime_error(
        fmt::format("libfabric: {}: {}", what, fi_strerror(static_cast<int>(-status))));
  }
}

struct InfoFree {
  void operator()(fi_info* info) const { fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, InfoFree>;

enum class Kind { kDatagram, kConnected };

Info find_provider(Kind kind) {
  const Info hints(fi_allocinfo());
  hints->caps = FI_MSG | FI_RMA;
  hints->addr_format = FI_SOCKADDR_IN;
  hints->ep_attr->type = kind == Kind::kDatagram ? FI_EP_RDM : FI_EP_MSG;
  hints->fabric_attr->prov_name = strdup(kind == Kind::kDatagram ? "tcp;ofi_rxm" : "tcp");
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
  hints->mode = FI_CONTEXT;
  fi_info* found = nullptr;
  check(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", nullptr, FI_SOURCE, hints.get(), &found),
        "find the provider");
  return Info(found);
}

// Everything up to a connected endpoint, for both kinds and both sides. Nothing is closed: the
// process ends instead.
class Link {
 public:
  Link(Kind kind, bool is_source, Control& control, std::byte* pool)
      : kind_(kind), info_(find_provider(kind)) {
    check(fi_fabric(info_->fabric_attr, &fabric_, nullptr), "open the fabric");
    if (kind == Kind::kDatagram) {
      open_domain();
      open_endpoint(info_.get());
      connect_datagram(control);
    } else if (is_source) {
      connect_as_source(control);
    } else {
      connect_as_target(control);
    }
    const std::uint64_t access = is_source ? FI_WRITE : FI_REMOTE_WRITE;
    check(fi_mr_reg(domain_, pool, kPoolBytes, access, 0, 1, 0, &memory_, nullptr),
          "register the pool");
  }

  // Throws for an operation that failed; returns how many are complete.
  std::size_t poll(std::span<fi_cq_entry> entries) {
    const ssize_t got = fi_cq_read(queue_, entries.data(), entries.size());
    if (got == -FI_EAGAIN) {
      return 0;
    }
    if (got == -FI_EAVAIL) {
      fi_cq_err_entry error{};
      check(fi_cq_readerr(queue_, &error, 0), "read an error");
      check(-error.err, "operation");
    }
    check(got, "read completions");
    return static_cast<std::size_t>(got);
  }

  const fi_info& info() const { return *info_; }
  fid_ep* endpoint() const { return endpoint_; }
  fid_mr* memory() const { return memory_; }
  fi_addr_t other() const { return other_; }

 private:
  void open_domain() {
    check(fi_domain(fabric_, info_.get(), &domain_, nullptr), "open the domain");
    fi_cq_attr attributes{};
    attributes.size = kQueueEntries;
    attributes.format = FI_CQ_FORMAT_CONTEXT;
    attributes.wait_obj = FI_WAIT_NONE;
    check(fi_cq_open(domain_, &attributes, &queue_, nullptr), "open a completion queue");
  }

  void open_events() {
    fi_eq_attr attributes{};
    attributes.wait_obj = FI_WAIT_UNSPEC;
    check(fi_eq_open(fabric_, &attributes, &events_, nullptr), "open an event queue");
  }

  void open_endpoint(fi_info* info) {
    check(fi_endpoint(domain_, info, &endpoint_, nullptr), "open an endpoint");
    check(fi_ep_bind(endpoint_, &queue_->fid, FI_TRANSMIT | FI_RECV), "bind the queue");
    if (kind_ == Kind::kDatagram) {
      fi_av_attr attributes{};
      attributes.type = FI_AV_MAP;
      check(fi_av_open(domain_, &attributes, &addresses_, nullptr), "open an address vector");
      check(fi_ep_bind(endpoint_, &addresses_->fid, 0), "bind the address vector");
    } else {
      check(fi_ep_bind(endpoint_, &events_->fid, 0), "bind the event queue");
    }
    check(fi_enable(endpoint_), "enable the endpoint");
  }

  static std::string name_of(fid_t endpoint) {
    std::string name(kMaxAddressBytes, '\0');
    std::size_t bytes = name.size();
    check(fi_getname(endpoint, name.data(), &bytes), "endpoint address");
    name.resize(bytes);
    return name;
  }

  void connect_datagram(Control& control) {
    control.send(name_of(&endpoint_->fid));
    const std::string name = control.receive();
    if (fi_av_insert(addresses_, name.data(), 1, &other_, 0, nullptr) != 1) {
      throw std::runtime_error("libfabric: the other side's address was not taken");
    }
  }

  void connect_as_source(Control& control) {
    const std::string name = control.receive();
    open_events();
    open_domain();
    open_endpoint(info_.get());
    check(fi_connect(endpoint_, name.data(), nullptr, 0), "connect");
    await(FI_CONNECTED);
  }

  void connect_as_target(Control& control) {
    open_events();
    fid_pep* listener = nullptr;
    check(fi_passive_ep(fabric_, info_.get(), &listener, nullptr), "open a listener");
    check(fi_pep_bind(listener, &events_->fid, 0), "bind the listener");
    check(fi_listen(listener), "listen");
    control.send(name_of(&listener->fid));
    const Info request(await(FI_CONNREQ));
    open_domain();
    open_endpoint(request.get());
    check(fi_accept(endpoint_, nullptr, 0), "accept");
    await(FI_CONNECTED);
  }

  fi_info* await(std::uint32_t wanted) {
    fi_eq_cm_entry entry{};
    std::uint32_t event = 0;
    const ssize_t got = fi_eq_sread(events_, &event, &entry, sizeof entry, kConnectMs, 0);
    if (got == -FI_EAVAIL) {
      fi_eq_err_entry error{};
      check(fi_eq_readerr(events_, &error, 0), "read an error");
      check(-error.err, "connect");
    }
    check(got, "await the connection");
    if (event != wanted) {
      throw std::runtime_error(fmt::format("libfabric: event {} instead of {}", event, wanted));
    }
    return entry.info;
  }

  Kind kind_;
  Info info_;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  fid_cq* queue_ = nullptr;
  fid_eq* events_ = nullptr;
  fid_av* addresses_ = nullptr;
  fid_ep* endpoint_ = nullptr;
  fid_mr* memory_ = nullptr;
  fi_addr_t other_ = FI_ADDR_UNSPEC;
};

// What a target tells about its pool.
struct RemotePool {
  std::uint64_t base = 0;
  std::uint64_t key = 0;
};

class FabricSource final : public Source {
 public:
  FabricSource(Kind kind, Control& control, std::byte* pool)
      : link_(kind, true, control, pool), pool_(pool) {
    const std::string remote = control.receive();
    std::memcpy(&remote_, remote.data(), sizeof remote_);
  }

  std::string version() const override {
    const std::uint32_t version = fi_version();
    return fmt::format("libfabric {}.{} ({})", FI_MAJOR(version), FI_MINOR(version),
                       link_.info().fabric_attr->prov_name);
  }

  std::vector<Way> ways(std::size_t, std::size_t batch) const override {
    const std::size_t most = std::min(
        {link_.info().tx_attr->iov_limit, link_.info().tx_attr->rma_iov_limit, kMaxPieces});
    std::vector<std::size_t> counts{1};
    if (batch != 0) {
      counts = {std::min(batch, most)};
    } else {
      for (std::size_t count = 2; count <= most; count *= 2) {
        counts.push_back(count);
      }
    }
    std::vector<Way> all;
    for (const std::size_t count : counts) {
      all.push_back(
          {.name = fmt::format("write {}", count), .kind = 0, .pages_per_request = count});
    }
    return all;
  }

  void start(const Way&, std::size_t page_bytes) override { page_bytes_ = page_bytes; }

  bool submit(std::span<const PageMove> pages) override {
    Write* write = take();
    std::array<iovec, kMaxPieces> pieces;
    std::array<fi_rma_iov, kMaxPieces> targets;
    std::array<void*, kMaxPieces> descriptors;
    for (std::size_t i = 0; i < pages.size(); ++i) {
      pieces[i] = {.iov_base = pool_ + pages[i].source_offset, .iov_len = page_bytes_};
      targets[i] = {
          .addr = remote_.base + pages[i].target_offset, .len = page_bytes_, .key = remote_.key};
      descriptors[i] = fi_mr_desc(link_.memory());
    }
    write->pages = pages.size();
    fi_msg_rma message{};
    message.msg_iov = pieces.data();
    message.desc = descriptors.data();
    message.iov_count = pages.size();
    message.addr = link_.other();
    message.rma_iov = targets.data();
    message.rma_iov_count = pages.size();
    message.context = write;
    const ssize_t status =
        fi_writemsg(link_.endpoint(), &message, FI_COMPLETION | FI_DELIVERY_COMPLETE);
    if (status == -FI_EAGAIN) {
      free_.push_back(write);
      return false;
    }
    check(status, "write");
    return true;
  }

  std::size_t progress() override {
    std::array<fi_cq_entry, 64> entries;
    const std::size_t done = link_.poll(entries);
    std::size_t pages = 0;
    for (std::size_t i = 0; i < done; ++i) {
      auto* write = static_cast<Write*>(entries[i].op_context);
      pages += write->pages;
      free_.push_back(write);
    }
    return pages;
  }

 private:
  struct Write {
    fi_context context;  // The provider's, first.
    std::size_t pages = 0;
  };

  Write* take() {
    if (free_.empty()) {
      all_.push_back(std::make_unique<Write>());
      free_.push_back(all_.back().get());
    }
    Write* write = free_.back();
    free_.pop_back();
    return write;
  }

  Link link_;
  std::byte* pool_;
  RemotePool remote_;
  std::size_t page_bytes_ = 0;
  std::vector<std::unique_ptr<Write>> all_;
  std::vector<Write*> free_;
};

class FabricTarget final : public Target {
 public:
  FabricTarget(Kind kind, Control& control, std::byte* pool) : link_(kind, false, control, pool) {
    RemotePool remote{.base = 0, .key = fi_mr_key(link_.memory())};
    if ((link_.info().domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0) {
      remote.base = reinterpret_cast<std::uint64_t>(pool);
    }
    control.send({reinterpret_cast<const char*>(&remote), sizeof remote});
  }

  void start(std::size_t) override {}

  // Progress is manual: reading the queue is what receives.
  void progress() override {
    std::array<fi_cq_entry, 1> entries;
    link_.poll(entries);
  }

 private:
  Link link_;
};

template <Kind kKind>
Peer fabric_peer() {
  Peer peer;
  peer.settings =
      kKind == Kind::kDatagram ? "endpoint=RDM provider=tcp;ofi_rxm" : "endpoint=MSG provider=tcp";
  peer.settings += " completion=delivery";
  peer.connect_source = [](Control& control, std::byte* pool) -> std::unique_ptr<Source> {
    return std::make_unique<FabricSource>(kKind, control, pool);
  };
  peer.connect_target = [](Control& control, std::byte* pool) -> std::unique_ptr<Target> {
    return std::make_unique<FabricTarget>(kKind, control, pool);
  };
  return peer;
}

}  // namespace
}  // namespace kvferry::peers

int main(int argc, char** argv) {
  using namespace kvferry::peers;
  return peer_main(argc, argv, [](const Options& options) {
    return options.tuned ? fabric_peer<Kind::kConnected>() : fabric_peer<Kind::kDatagram>();
  });
}
