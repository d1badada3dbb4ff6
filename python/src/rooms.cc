#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "bindings.h"
#include "failures.h"
#include "gil.h"
#include "integers.h"
#include "kvferry/kv_receiver.h"
#include "kvferry/kv_sender.h"
#include "manager.h"
#include "values.h"

namespace kvferry::python {
namespace {

// What Python's KvSender or KvReceiver holds.
template <typename Handle>
class Room {
 public:
  Room(const BoundManager& manager, RoomId room, Binding binding) : core_(manager.core) {
    KvManager& owner = core_->use();
    handle_ = without_gil([&] { return std::make_unique<Handle>(owner, room, binding); });
  }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  ~Room() {
    if (core_->forked()) {
      static_cast<void>(handle_.release());
      return;
    }
    // Takes a lock that the protocol's thread holds at times.
    without_gil([this] { handle_.reset(); });
  }

  Handle& use() const {
    static_cast<void>(core_->use());
    return *handle_;
  }
  const ManagerCore& core() const { return *core_; }

 private:
  std::shared_ptr<ManagerCore> core_;
  std::unique_ptr<Handle> handle_;
};

using Sender = Room<KvSender>;
using Receiver = Room<KvReceiver>;

std::vector<PageIndex> to_pages(const ManagerCore& core, nb::handle list) {
  const ManagerCore::Allowed& allowed = core.pages();
  const std::vector<std::uint32_t> numbers = to_numbers(list, "pages", allowed.count, allowed.text);
  std::vector<PageIndex> pages;
  pages.reserve(numbers.size());
  for (const std::uint32_t number : numbers) pages.emplace_back(number);
  return pages;
}

std::vector<std::uint32_t> to_state_slots(const ManagerCore& core, nb::handle list) {
  const ManagerCore::Allowed& allowed = core.state_slots();
  return to_numbers(list, "state_slots", allowed.count, allowed.text);
}

// What both ends of a room have.
template <typename Handle>
void add_common(nb::class_<Room<Handle>>& type) {
  using Self = Room<Handle>;
  type.def(
          "__init__",
          [](Self* self, const BoundManager& manager, const Whole& room,
             const BindingLike& binding) {
            new (self)
                Self(manager, RoomId(to_number<std::uint64_t>(room, "room")), to_binding(binding));
          },
          nb::arg("manager"), nb::arg("room"), nb::arg("binding"),
          R"(Opens the room here.

A second open with the same room and binding is Failed with DuplicateRoom while the first has no terminal
status.)")
      .def(
          "abort",
          [](const Self& self, const std::string& reason) {
            Handle& handle = self.use();
            without_gil([&] { handle.abort(reason); });
          },
          nb::arg("reason") = "aborted by the caller",
          "Fails the room on all ranks at once with Aborted. Its pages come back later.")
      .def(
          "clear",
          [](const Self& self) {
            Handle& handle = self.use();
            without_gil([&] { handle.clear(); });
          },
          R"(Drops the handle. An unfinished room is aborted; what is owed to peers goes on.

A receiver's pages of a Success that was never read come back through KvManager.take_released().)")
      .def(
          "failure", [](const Self& self) { return self.use().failure(); },
          nb::sig("def failure(self) -> Failure | None"), "First cause, once poll() is Failed.")
      .def(
          "id", [](const Self& self) { return self.use().id(); },
          R"(Names this handle in poll_many() and ReleasedPages.

Never reused, by a sender or by a receiver.)");
}

void bind_sender(nb::module_& module) {
  nb::class_<Sender> type(module, "KvSender",
                          "Prefill side of one room on one rank. Destroying it is clear().");
  add_common(type);
  type.def(
          "init",
          [](const Sender& self, const Whole& page_count, const Whole& aux_slot) {
            KvSender& sender = self.use();
            const auto pages = to_number<std::uint32_t>(page_count, "page_count");
            const auto slot = to_number<std::int64_t>(aux_slot, "aux_slot");
            check(without_gil([&] { return sender.init(pages, slot); }));
          },
          nb::arg("page_count"), nb::arg("aux_slot") = -1,
          R"(How many pages will be sent in all (0: aux only), and the aux slot that holds the record.

By the time of the last send(); -1: this rank sends no aux.)")
      .def(
          "send",
          [](const Sender& self, const WholeList& pages, const WholeList& state_slots) {
            KvSender& sender = self.use();
            const auto chunk = to_pages(self.core(), pages);
            const auto states = to_state_slots(self.core(), state_slots);
            check(without_gil([&] { return sender.send(chunk, states); }));
          },
          nb::arg("pages"), nb::arg("state_slots") = nb::tuple(),
          R"(Sends the next chunk: pages of this rank's regions, in prompt order.

They go to the next pages of the grant, past its decode prefix. The call that brings the sum to page_count
is the last: aux and state follow it (with page_count 0: one call without pages).

Ownership: the pages belong to kvferry until KvManager.take_released() hands them back; the engine may go
on reading them. The list itself is copied.)")
      // A load, 35 ns with the call around it, so that the GIL stays: giving it away and taking it
      // costs 40 ns alone, and 500 ns on average beside a thread that computes (up to 5 ms).
      .def(
          "poll", [](const Sender& self) { return self.use().poll(); }, "A load.")
      .def(
          "landed_bytes", [](const Sender& self) { return self.use().landed_bytes(); },
          "Bytes of this room known to be at their target so far; a load.")
      .def(
          "decode_prefix_pages",
          [](const Sender& self) { return self.use().decode_prefix_pages(); },
          "Pages that decode already has; 0 before WaitingForInput.");
}

void send_metadata(const Receiver& self, const WholeList& pages, const Whole& aux_slot,
                   const WholeList& state_slots, const Whole& decode_prefix_tokens,
                   const Whole& expected_grants) {
  KvReceiver& receiver = self.use();
  const auto granted = to_pages(self.core(), pages);
  const auto slot = to_number<std::int64_t>(aux_slot, "aux_slot");
  const auto states = to_state_slots(self.core(), state_slots);
  const auto prefix = to_number<std::uint32_t>(decode_prefix_tokens, "decode_prefix_tokens");
  const auto grants = to_number<std::uint32_t>(expected_grants, "expected_grants");
  check(without_gil([&] { return receiver.send_metadata(granted, slot, states, prefix, grants); }));
}

void bind_receiver(nb::module_& module) {
  nb::class_<Receiver> type(module, "KvReceiver",
                            "Decode side of one room on one rank. Destroying it is clear().");
  add_common(type);
  type.def(
          "init",
          [](const Receiver& self, std::string bootstrap_address, std::string prefill_instance,
             const Whole& prefill_dp_rank) {
            KvReceiver& receiver = self.use();
            const auto replica = to_number<std::uint32_t>(prefill_dp_rank, "prefill_dp_rank");
            check(without_gil([&] {
              return receiver.init(std::move(bootstrap_address), std::move(prefill_instance),
                                   replica);
            }));
          },
          nb::arg("bootstrap_address"), nb::arg("prefill_instance") = "",
          nb::arg("prefill_dp_rank") = 0,
          R"(Where the prefill ranks of this room are found.

A registry (host:port, checked against bootstrap_addresses and bootstrap_allow) and the instance in it;
empty: the only one that it lists. prefill_dp_rank chooses the replica.)")
      .def(
          "send_metadata", &send_metadata, nb::arg("pages"), nb::arg("aux_slot") = -1,
          nb::arg("state_slots") = nb::tuple(), nb::arg("decode_prefix_tokens") = 0,
          nb::arg("expected_grants") = 1,
          R"(Grants pages to the prefill ranks. Page i of the prompt, past the prefix, lands in pages[i].

decode_prefix_tokens: prompt tokens that are here already, a multiple of the page size. expected_grants:
how many decode ranks grant to the same senders (all ranks of this engine). May be called before
WaitingForInput; it is kept until then.

Ownership: pages, aux slot and state slots belong to kvferry from here on. They become the caller's when
poll() (or poll_many()) returns Success, else they come back through KvManager.take_released().)")
      .def(
          "poll", [](const Receiver& self) { return self.use().poll(); },
          "A load. The first call that returns Success passes the pages to the caller.")
      .def(
          "attempt", [](const Receiver& self) { return self.use().attempt().value(); },
          R"(Which life of the room this is, drawn when its pages are granted; 0 until then.)");
}

}  // namespace

void bind_rooms(nb::module_& module) {
  bind_sender(module);
  bind_receiver(module);
}

}  // namespace kvferry::python
