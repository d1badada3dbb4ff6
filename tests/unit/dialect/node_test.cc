// A whole prefill rank with the dialect against a process that speaks as a stock decode rank:
// sockets, core, transport and memory of two processes, without SGLang.
#include "dialect/sglang/node.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <functional>

#include "base/clock.h"
#include "kvferry/kv_sender.h"
#include "sockets.h"

namespace kvferry::sglang {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint64_t kItemBytes = 64;
constexpr std::uint32_t kPages = 8;
constexpr std::uint32_t kSlots = 4;
constexpr std::size_t kPoolBytes = kItemBytes * kPages;
const std::vector<std::uint32_t> kAuxItemBytes{64, 64, 64, 64, 64};

// A process with a PULL socket and pools, which this one sees as well: what is written into that
// process stands here, too. Tells what it hears; lives until the object goes.
class DecodeProcess {
 public:
  DecodeProcess() {
    memory_ = static_cast<std::byte*>(
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    EXPECT_EQ(::pipe(heard_.data()), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      serve();
    }
    ::close(heard_[1]);
    port_ = static_cast<std::uint16_t>(std::stoi(read_line()));
  }
  ~DecodeProcess() {
    kill();
    ::close(heard_[0]);
    ::munmap(memory_, kBytes);
  }
  DecodeProcess(const DecodeProcess&) = delete;
  DecodeProcess& operator=(const DecodeProcess&) = delete;

  void kill() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      pid_ = -1;
    }
  }
  // The next message's frames with blanks between them; empty: none came.
  std::string read_line() {
    std::string line;
    for (char c = 0;;) {
      pollfd entry{heard_[0], POLLIN, 0};
      if (::poll(&entry, 1, 10'000) <= 0 || ::read(heard_[0], &c, 1) != 1) {
        return {};
      }
      if (c == '\n') {
        return line;
      }
      line += c;
    }
  }
  RankEndpoint endpoint() const { return {"127.0.0.1", port_}; }
  const std::byte* page(std::size_t buffer, std::uint32_t page) const {
    return memory_ + buffer * kPoolBytes + page * kItemBytes;
  }
  template <typename T>
  T aux(std::size_t buffer, std::uint32_t slot) const {
    T value{};
    std::memcpy(&value, memory_ + 2 * kPoolBytes + (buffer * kSlots + slot) * 64, sizeof value);
    return value;
  }

  MooncakeRegistration registration() const {
    const auto address = [&](std::size_t at) {
      return reinterpret_cast<std::uintptr_t>(memory_) + at;
    };
    MooncakeRegistration out;
    out.endpoint = endpoint();
    out.session = fmt::format("127.0.0.1:{}", pid_);
    out.memory.kv_pointers = {address(0), address(kPoolBytes)};
    out.memory.kv_item_bytes = kItemBytes;
    for (std::size_t i = 0; i < kAuxItemBytes.size(); ++i) {
      out.memory.aux_pointers.push_back(address(2 * kPoolBytes + i * kSlots * 64));
    }
    return out;
  }
  MooncakeMetadata metadata(std::uint64_t room, std::initializer_list<std::uint32_t> pages) const {
    MooncakeMetadata out;
    out.target.room = RoomId(room);
    out.target.endpoint = endpoint();
    out.session = registration().session;
    for (const std::uint32_t page : pages) {
      out.target.pages.emplace_back(page);
    }
    out.aux_index = 2;
    return out;
  }

 private:
  static constexpr std::size_t kBytes = 16'384;

  [[noreturn]] void serve() {
    const auto tell = [&](std::string line) {
      line += '\n';
      return ::write(heard_[1], line.data(), line.size()) == static_cast<ssize_t>(line.size());
    };
    zmq::context_t context(1);
    PullSocket pull(context);
    bool goes_on = tell(fmt::format("{}", pull.port()));
    while (goes_on) {
      std::vector<std::string> frames;
      pollfd none{-1, 0, 0};
      ::poll(&none, 1, 1);
      if (pull.receive(frames)) {
        goes_on = tell(fmt::format("{}", fmt::join(frames, " ")));
      }
    }
    ::_exit(0);
  }

  std::byte* memory_ = nullptr;
  std::array<int, 2> heard_{};
  pid_t pid_ = -1;
  std::uint16_t port_ = 0;
};

class NodeTest : public ::testing::Test {
 protected:
  NodeTest() {
    decode_ = std::make_unique<DecodeProcess>();
    for (std::vector<std::byte>& pool : pools_) {
      pool.resize(kPoolBytes);
      for (std::size_t i = 0; i < pool.size(); ++i) {
        pool[i] = static_cast<std::byte>(&pool - pools_.data() + 3 * i + i / kItemBytes + 1);
      }
    }
    aux_.resize(std::size_t{kAuxRecordBytes} * kSlots);
  }
  KvArgs args() {
    KvArgs args;
    args.role = Role::kPrefill;
    args.model_fingerprint = "model";
    args.page_size_tokens = 16;
    args.total_layers = 1;
    args.total_kv_heads = 1;
    args.head_dim = 4;
    args.dtype = DType::kU8;
    args.layers = {0, 1};
    args.heads = {0, 1};
    args.regions = {{RegionKind::kKey, 0, pools_[0].data(), kItemBytes, kPages},
                    {RegionKind::kValue, 0, pools_[1].data(), kItemBytes, kPages},
                    {RegionKind::kAux, 0, aux_.data(), kAuxRecordBytes, kSlots}};
    return args;
  }
  static DialectOptions dialect() {
    DialectOptions out;
    out.aux.item_bytes = kAuxItemBytes;
    return out;
  }
  void start() {
    auto node = DialectNode::create(args(), Options{}, dialect());
    ASSERT_TRUE(node) << node.error().what;
    node_ = std::move(*node);
    push_ = std::make_unique<PushSocket>(context_, node_->endpoint().port);
  }
  void say(const Message& message) { push_->send(encode(Flavour::kMooncake, message)); }
  KvPoll await_end(const KvSender& sender, KvPoll wanted) {
    const Instant end = monotonic_now() + kPatience;
    while (sender.poll() != wanted && !is_terminal(sender.poll()) && monotonic_now() < end) {
      pollfd news{node_->manager().event_fd(), POLLIN, 0};
      ::poll(&news, 1, 20);
      node_->manager().drain_event_fd();
    }
    return sender.poll();
  }

  // What metrics tell is a moment old.
  bool await_count(std::string_view name, double wanted) {
    const Instant end = monotonic_now() + kPatience;
    while (monotonic_now() < end) {
      for (const MetricSample& sample : node_->manager().metrics()) {
        if (sample.name == name && sample.value == wanted) {
          return true;
        }
      }
      pollfd none{-1, 0, 0};
      ::poll(&none, 1, 5);
    }
    return false;
  }

  std::unique_ptr<DecodeProcess> decode_;
  std::array<std::vector<std::byte>, 2> pools_;
  std::vector<std::byte> aux_;
  std::unique_ptr<DialectNode> node_;
  zmq::context_t context_{1};
  std::unique_ptr<PushSocket> push_;
};

TEST_F(NodeTest, ARoomsBytesAndFirstTokenAreThereWhenDecodeIsTold) {
  start();
  say(decode_->registration());
  say(decode_->metadata(77, {5, 1}));
  KvSender sender(node_->manager(), RoomId(77), Binding{});
  ASSERT_TRUE(node_->manager().write_aux(3, RoomId(77), Binding{}, AuxRecord{42, -1.5F, 30, 16}));
  ASSERT_TRUE(sender.init(2, 3));
  const std::array pages{PageIndex(0), PageIndex(7)};
  ASSERT_TRUE(sender.send(pages));
  EXPECT_EQ(decode_->read_line(), "77 4 0");
  for (std::size_t buffer = 0; buffer < pools_.size(); ++buffer) {
    EXPECT_EQ(std::memcmp(decode_->page(buffer, 5), pools_[buffer].data(), kItemBytes), 0);
    EXPECT_EQ(
        std::memcmp(decode_->page(buffer, 1), pools_[buffer].data() + 7 * kItemBytes, kItemBytes),
        0);
    EXPECT_EQ(*decode_->page(buffer, 0), std::byte{0});
  }
  EXPECT_EQ(decode_->aux<std::int32_t>(0, 2), 42);
  EXPECT_EQ(decode_->aux<std::int32_t>(1, 2), 16);
  EXPECT_EQ(decode_->aux<float>(2, 2), -1.5F);
  EXPECT_EQ(decode_->aux<std::uint64_t>(4, 2), 77U);
  EXPECT_EQ(await_end(sender, KvPoll::kSuccess), KvPoll::kSuccess);
}

TEST_F(NodeTest, AnAbortIsAcknowledged) {
  start();
  say(decode_->registration());
  say(decode_->metadata(1, {5}));
  KvSender sender(node_->manager(), RoomId(1), Binding{});
  ASSERT_EQ(await_end(sender, KvPoll::kWaitingForInput), KvPoll::kWaitingForInput);
  say(AbortRoom{RoomId(1), decode_->endpoint(), 12});
  EXPECT_EQ(decode_->read_line(), "ABORT_ACK 1 0 12");
  EXPECT_EQ(await_end(sender, KvPoll::kFailed), KvPoll::kFailed);
}

TEST_F(NodeTest, TheDeathOfADecodeRankFailsItsRoomsThoughNothingIsSent) {
  start();
  say(decode_->registration());
  say(decode_->metadata(1, {5}));
  KvSender sender(node_->manager(), RoomId(1), Binding{});
  ASSERT_EQ(await_end(sender, KvPoll::kWaitingForInput), KvPoll::kWaitingForInput);
  decode_->kill();
  EXPECT_EQ(await_end(sender, KvPoll::kFailed), KvPoll::kFailed);
}

// Whose memory it is stands in no message: it is that of whoever listens where answers go.
TEST_F(NodeTest, ARegistrationOfAPortThatNobodyHasIsRefused) {
  start();
  MooncakeRegistration elsewhere = decode_->registration();
  elsewhere.endpoint.port = free_port();
  say(elsewhere);
  EXPECT_TRUE(await_count("sglang_sessions_refused_total", 1));
  MooncakeMetadata room = decode_->metadata(1, {5});
  room.target.endpoint = elsewhere.endpoint;
  say(room);
  EXPECT_TRUE(await_count("sglang_rooms_refused_total", 1));
  EXPECT_EQ(*decode_->page(0, 5), std::byte{0});
}

// The agent is the host program's; what prefill may write to has to be registered with it.
TEST_F(NodeTest, ADecodeRankOfNixlsFlavourHasItsAgentMadeForAllThatIsWritten) {
  KvArgs decode = args();
  decode.role = Role::kDecode;
  DialectOptions options = dialect();
  options.flavour = Flavour::kNixl;
  const auto why_not = [&] {
    const auto node = DialectNode::create(decode, Options{}, options);
    return node ? "it was made" : node.error().what;
  };
  EXPECT_THAT(why_not(), HasSubstr("DialectOptions::nixl_agent"));
  options.nixl_agent = [](auto) { return fail(FailureCode::kOperatingSystem, "no device"); };
  EXPECT_THAT(why_not(), HasSubstr("no device"));
  options.nixl_agent = [](auto) { return NixlAgent{"name", {}}; };
  EXPECT_THAT(why_not(), HasSubstr("without metadata"));
  std::vector<std::span<std::byte>> given;
  options.nixl_agent = [&](std::span<const std::span<std::byte>> memory) {
    given.assign(memory.begin(), memory.end());
    return NixlAgent{"name", {1, 2, 3}};
  };
  EXPECT_THAT(why_not(), "it was made");
  ASSERT_EQ(given.size(), 2 + kAuxItemBytes.size());
  EXPECT_EQ(given[0].data(), pools_[0].data());
  EXPECT_EQ(given[1].size(), kPoolBytes);
  EXPECT_GE(given[2].size(), std::size_t{64} * kSlots);
  options.flavour = Flavour::kMori;
  EXPECT_THAT(why_not(), HasSubstr("not in Mori's"));
}

TEST_F(NodeTest, ArgumentsThatSglangCanNotMeetAreRefused) {
  const auto why_not = [&](const KvArgs& wanted, const DialectOptions& options) {
    const auto node = DialectNode::create(wanted, Options{}, options);
    return node ? "it was made" : node.error().what;
  };
  KvArgs wanted = args();
  std::swap(wanted.regions[0], wanted.regions[1]);
  EXPECT_THAT(why_not(wanted, dialect()), HasSubstr("K of every layer, then V"));
  wanted = args();
  wanted.regions.pop_back();
  EXPECT_THAT(why_not(wanted, dialect()), HasSubstr("one aux region, there are 0"));
  DialectOptions options = dialect();
  options.aux.item_bytes.clear();
  EXPECT_THAT(why_not(args(), options), HasSubstr("0 aux buffers"));
  options = dialect();
  options.host = "0.0.0.0";
  EXPECT_THAT(why_not(args(), options), HasSubstr("numeric"));
}

}  // namespace
}  // namespace kvferry::sglang
