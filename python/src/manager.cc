#include "manager.h"

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "args.h"
#include "arguments.h"
#include "bindings.h"
#include "failures.h"
#include "gil.h"
#include "integers.h"
#include "options.h"
#include "values.h"
#include "with_statement.h"

namespace kvferry::python {
namespace {

// Fewer statuses than this are read with the GIL: 4,096 cost 3 us, and who gives it away while
// another thread computes waits for up to that one's switch interval (5 ms) to get it back.
// Measured: 16,384 cost 13 us alone and 61 us on average beside such a thread.
constexpr std::size_t kReleaseFrom = 4'096;

void check_writable(const BoundArgs& args) {
  const bool decode = args.values.role == Role::kDecode;
  for (std::size_t i = 0; i < args.regions.size(); ++i) {
    const BoundRegion& bound = args.regions[i];
    if (bound.memory.readonly && (decode || bound.region.kind == RegionKind::kAux)) {
      refuse(fmt::format("regions[{}] ({}) is read-only memory, and a {} rank writes it", i,
                         to_string(bound.region.kind), to_string(args.values.role)));
    }
  }
}

BoundManager make_manager(const BoundArgs& args, const OptionsLike& options, LiveObjects& live) {
  check_writable(args);
  KvArgs values = args.values;
  for (const BoundRegion& bound : args.regions) values.regions.push_back(bound.region);
  auto manager = unwrap(without_gil([&values, chosen = to_options(options)]() mutable {
    return KvManager::create(std::move(values), std::move(chosen));
  }));
  BoundManager bound{std::make_shared<ManagerCore>(std::move(manager), args.regions)};
  live.add(bound.core);
  return bound;
}

// A one-dimensional contiguous buffer of a caller, for one call.
class FlatBuffer {
 public:
  FlatBuffer(nb::handle object, std::string_view name, bool writable) {
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) {
      PyErr_Clear();
      refuse(fmt::format("{}: a contiguous{} buffer is needed, not {}", name,
                         writable ? ", writable" : "", nb::type_name(object.type()).c_str()));
    }
    if (view_.ndim != 1) {
      const int dimensions = view_.ndim;
      PyBuffer_Release(&view_);
      refuse(fmt::format("{}: one dimension is needed, not {}", name, dimensions));
    }
  }
  FlatBuffer(const FlatBuffer&) = delete;
  FlatBuffer& operator=(const FlatBuffer&) = delete;
  ~FlatBuffer() { PyBuffer_Release(&view_); }

  std::size_t count() const { return static_cast<std::size_t>(view_.shape[0]); }
  std::size_t item_bytes() const { return static_cast<std::size_t>(view_.itemsize); }
  bool is_integer() const { return integer_format(view_).sign != ' '; }
  const char* format() const { return view_.format == nullptr ? "B" : view_.format; }
  template <typename T>
  std::span<T> items() const {
    return {static_cast<T*>(view_.buf), count()};
  }

 private:
  Py_buffer view_{};
};

// Through a part on the stack, so that wider statuses cost no memory either.
void poll_wide(const KvManager& manager, std::span<const std::uint64_t> ids,
               std::span<std::uint32_t> statuses) {
  std::array<KvPoll, 1'024> part;
  for (std::size_t done = 0; done < ids.size();) {
    const std::size_t count = std::min(part.size(), ids.size() - done);
    manager.poll_many(ids.subspan(done, count), std::span(part).first(count));
    for (std::size_t i = 0; i < count; ++i) {
      statuses[done + i] = static_cast<std::uint32_t>(part[i]);
    }
    done += count;
  }
}

void poll_many(const BoundManager& self, const BufferLike& ids, const BufferLike& statuses) {
  const KvManager& manager = self.core->use();
  const FlatBuffer in(ids, "ids", false);
  const FlatBuffer out(statuses, "statuses", true);
  if (!in.is_integer() || in.item_bytes() != 8) {
    refuse(fmt::format("ids: uint64 is needed, not format '{}'", in.format()));
  }
  if (!out.is_integer() || (out.item_bytes() != 1 && out.item_bytes() != 4)) {
    refuse(fmt::format("statuses: uint8 or uint32 is needed, not format '{}'", out.format()));
  }
  if (in.count() != out.count()) {
    refuse(fmt::format("statuses: {} places for {} ids", out.count(), in.count()));
  }
  const auto read = [&] {
    if (out.item_bytes() == 1) {
      manager.poll_many(in.items<const std::uint64_t>(), out.items<KvPoll>());
    } else {
      poll_wide(manager, in.items<const std::uint64_t>(), out.items<std::uint32_t>());
    }
  };
  if (in.count() < kReleaseFrom) {
    read();
  } else {
    without_gil(read);
  }
}

void bind_reports(nb::module_& module) {
  nb::class_<MetricSample>(module, "MetricSample",
                           "One counter or gauge; docs/metrics.md has the names.")
      .def_ro("name", &MetricSample::name, R"(Without the "kvferry_" prefix.)")
      .def_ro("labels", &MetricSample::labels, "Prometheus syntax without braces; may be empty.")
      .def_ro("value", &MetricSample::value)
      .def_ro("is_counter", &MetricSample::is_counter);
  nb::class_<ReadinessCheck>(
      module, "ReadinessCheck",
      "One of the things that must be sound for this server to take requests.")
      .def_ro("name", &ReadinessCheck::name)
      .def_ro("ok", &ReadinessCheck::ok)
      .def_ro("detail", &ReadinessCheck::detail, "What is wrong; empty when ok.");
  nb::class_<PairState>(module, "PairState",
                        "One prefill and one decode process that have a session, or want one.")
      .def_ro("peer", &PairState::peer, "Endpoint.")
      .def_ro("instance", &PairState::instance, "The peer's instance name; empty while unknown.")
      .def_ro("ready", &PairState::ready)
      .def_ro("reason", &PairState::reason, "Last cause when not ready.")
      .def_ro("last_heard_ms", &PairState::last_heard_ms,
              "Age of the last sign of life; -1: never.")
      .def_ro("path", &PairState::path,
              R"(Prefill: how its bytes travel, "shm" or "tcp"; empty without a session.)")
      .def_ro("path_why", &PairState::path_why, "Why not a path that was preferred.");
  nb::class_<ReleasedPages>(
      module, "ReleasedPages",
      "Pages and slots that left a grant or a source hold and are the caller's again.")
      .def_ro("owner", &ReleasedPages::owner, "KvReceiver.id() or KvSender.id().")
      .def_prop_ro("room", [](const ReleasedPages& self) { return self.room.value(); })
      .def_ro("binding", &ReleasedPages::binding)
      .def_prop_ro(
          "pages",
          [](const ReleasedPages& self) {
            std::vector<std::uint32_t> pages;
            pages.reserve(self.pages.size());
            for (const PageIndex page : self.pages) pages.push_back(page.value());
            return nb::borrow<U32Array>(to_array(std::span<const std::uint32_t>(pages)));
          },
          "array('I'), made anew. Decode: granted pages. Prefill: pages given to send().")
      .def_ro("aux_slot", &ReleasedPages::aux_slot, "-1: none.")
      .def_prop_ro(
          "state_slots",
          [](const ReleasedPages& self) {
            return nb::borrow<U32Array>(to_array(std::span<const std::uint32_t>(self.state_slots)));
          },
          "array('I'), made anew.");
}

using ManagerClass = nb::class_<BoundManager>;

void add_polling(ManagerClass& type) {
  type.def("poll_many", &poll_many, nb::arg("ids"), nb::arg("statuses"),
           R"(Fills statuses[i] with the status of handle ids[i], without allocating.

ids: one-dimensional, contiguous, uint64 (KvSender.id(), KvReceiver.id()). statuses: as long as ids,
contiguous, writable, uint8 or uint32 (numpy.empty(n, "u1")). An id that is unknown or was cleared reads
Failed. A receiver's Success passes its pages as poll() does.)")
      .def(
          "take_changed",
          [](const BoundManager& self) -> nb::object {
            KvManager& manager = self.core->use();
            const auto changed = without_gil([&] { return manager.take_changed(); });
            return changed ? to_array(std::span<const std::uint64_t>(*changed)) : nb::none();
          },
          nb::sig("def take_changed(self) -> array.array[int] | None"),
          R"(The handles with a new status since the last call, in order.

As array('Q'), which poll_many() takes; one handle perhaps more than once. None: look at every handle once
(the first call, too many changes, or the manager has stopped).)")
      .def(
          "take_released",
          [](const BoundManager& self) {
            KvManager& manager = self.core->use();
            return without_gil([&] {
              auto released = manager.take_released();
              // A scheduler calls this in each of its turns. Who waits for the interpreter is awake
              // only now; without this the caller would have it back before.
              std::this_thread::yield();
              return released;
            });
          },
          "Pages released since the last call, in order. The caller owns them from here on.")
      .def(
          "event_fd", [](const BoundManager& self) { return self.core->use().event_fd(); },
          R"(A file descriptor for schedulers that sleep when idle; the manager's own.

Readable (poll, level-triggered) while take_released() has something or a status changed since the last
drain_event_fd().)")
      .def("drain_event_fd", [](const BoundManager& self) { self.core->use().drain_event_fd(); });
}

// A call of the manager's that only reads, with the GIL released, since it waits for locks.
template <auto Method>
auto read(const BoundManager& self) {
  const KvManager& manager = self.core->use();
  return without_gil([&] { return (manager.*Method)(); });
}

void add_reports(ManagerClass& type) {
  type.def("pairs", &read<&KvManager::pairs>)
      .def("metrics", &read<&KvManager::metrics>)
      .def("dump_status", &read<&KvManager::dump_status>,
           "Rooms, sessions, grants and queues as one JSON object, in text.")
      .def("readiness", &read<&KvManager::readiness>,
           "Each check with its state; take new requests only while all are ok.")
      .def("readiness_problems", &read<&KvManager::readiness_problems>,
           "The details of those that are not ok.")
      .def(
          "args",
          [](const BoundManager& self) {
            BoundArgs args{self.core->use().args(), self.core->regions()};
            args.values.regions.clear();
            return args;
          },
          "A copy, with what create drew (instance, engine_epoch).")
      .def(
          "options", [](const BoundManager& self) { return Options(self.core->use().options()); },
          "A copy.")
      .def("control_endpoint", &read<&KvManager::control_endpoint>, "host:port that peers dial.");
}

void add_aux(ManagerClass& type) {
  type.def(
          "write_aux",
          [](const BoundManager& self, const Whole& aux_slot, const Whole& room,
             const BindingLike& binding, const AuxRecord& record) {
            KvManager& manager = self.core->use();
            check(manager.write_aux(to_number<std::uint32_t>(aux_slot, "aux_slot"),
                                    RoomId(to_number<std::uint64_t>(room, "room")),
                                    to_binding(binding), record));
          },
          nb::arg("aux_slot"), nb::arg("room"), nb::arg("binding"), nb::arg("record"),
          R"(Writes the record, with room, binding and CRC, into a slot of this rank's aux region.

Prefill only; before the last send().)")
      .def(
          "read_aux",
          [](const BoundManager& self, const Whole& aux_slot, const Whole& room,
             const BindingLike& binding) {
            const KvManager& manager = self.core->use();
            return unwrap(manager.read_aux(to_number<std::uint32_t>(aux_slot, "aux_slot"),
                                           RoomId(to_number<std::uint64_t>(room, "room")),
                                           to_binding(binding)));
          },
          nb::arg("aux_slot"), nb::arg("room"), nb::arg("binding"),
          R"(Reads and checks a record. Decode only; after Success.

Raises KvferryError (AuxInvalid) for one that is not whole.)");
}

void add_life(ManagerClass& type, const std::shared_ptr<LiveObjects>& live) {
  type.def(
          "__init__",
          [live](BoundManager* self, const BoundArgs& args, const OptionsLike& options) {
            new (self) BoundManager(make_manager(args, options, *live));
          },
          nb::arg("args"), nb::arg("options") = nb::none(),
          R"(Validates, binds, registers at the bootstrap servers (in the background), starts the threads.

args and options are copied; the memory of args.regions is kept referenced.)")
      .def_static(
          "create",
          [live](const BoundArgs& args, const OptionsLike& options) {
            return make_manager(args, options, *live);
          },
          nb::arg("args"), nb::arg("options") = nb::none(), "As KvManager(); C++'s name.")
      .def(
          "keep_paired",
          [](const BoundManager& self, const std::string& bootstrap_address) {
            KvManager& manager = self.core->use();
            check(without_gil([&] { return manager.keep_paired(bootstrap_address); }));
          },
          nb::arg("bootstrap_address"),
          R"(Opens sessions to every prefill rank that this registry (host:port) lists and keeps them open.

Ahead of any room. Decode only.)")
      .def(
          "stop", &BoundManager::stop,
          R"(Fails all rooms with ShuttingDown, ends all sessions and joins the threads. Idempotent.

The regions' memory stays referenced until the manager is destroyed.)");
  def_with(type, "def __enter__(self) -> KvManager");
}

}  // namespace

void bind_manager(nb::module_& module, const std::shared_ptr<LiveObjects>& live) {
  bind_reports(module);
  ManagerClass type(
      module, "KvManager",
      R"(One per rank and process: owns the protocol's thread, the control link, the transport and every room's
state. Senders and receivers are thin handles into it, and keep it alive.

No call waits for a peer or a socket, apart from stop(), which joins the manager's threads and ends within
Options.stop_timeout_ms however many peers are dead; destruction and the interpreter's exit call it. A
forked child can't use its parent's manager: every call there raises KvferryError (WrongState), and
destroying it there does nothing.)");
  add_life(type, live);
  add_polling(type);
  add_reports(type);
  add_aux(type);
}

}  // namespace kvferry::python
