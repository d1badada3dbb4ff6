#include <nanobind/nanobind.h>

#include "bindings.h"
#include "kvferry/kv_args.h"
#include "kvferry/kv_poll.h"
#include "kvferry/status.h"

namespace kvferry::python {
namespace {

void bind_poll(nb::module_& module) {
  nb::enum_<KvPoll>(
      module, "KvPoll",
      R"(Status of one room on one rank; the minimum over the ranks is the room's verdict.

Failed, though numbered 0, is an end: a status never leaves Failed or Success.)",
      nb::is_arithmetic())
      .value("Failed", KvPoll::kFailed)
      .value("Bootstrapping", KvPoll::kBootstrapping,
             "Peers are being resolved and sessions opened.")
      .value("WaitingForInput", KvPoll::kWaitingForInput,
             "Decode: pages may be granted. Prefill: every decode rank's grant is here.")
      .value("Transferring", KvPoll::kTransferring)
      .value("Success", KvPoll::kSuccess);
  module.def("is_terminal", &is_terminal, nb::arg("status"), "Whether this is Failed or Success.");
}

void bind_layout_enums(nb::module_& module) {
  nb::enum_<Role>(module, "Role", nb::is_arithmetic())
      .value("Prefill", Role::kPrefill)
      .value("Decode", Role::kDecode);
  nb::enum_<DType>(module, "DType", nb::is_arithmetic())
      .value("U8", DType::kU8)
      .value("F16", DType::kF16)
      .value("BF16", DType::kBF16)
      .value("F32", DType::kF32)
      .value("F8E4M3", DType::kF8E4M3)
      .value("F8E5M2", DType::kF8E5M2);
  nb::enum_<MemoryKind>(module, "MemoryKind", nb::is_arithmetic())
      .value("Host", MemoryKind::kHost)
      .value("Device", MemoryKind::kDevice);
  nb::enum_<RegionKind>(module, "RegionKind",
                        R"(What a region holds.

Key, Value and Other (layouts whose K and V are not apart, as MLA) have one item per page; Aux and
State have one item per slot.)",
                        nb::is_arithmetic())
      .value("Key", RegionKind::kKey)
      .value("Value", RegionKind::kValue)
      .value("Other", RegionKind::kOther)
      .value("Aux", RegionKind::kAux)
      .value("State", RegionKind::kState);
  module.def("dtype_bytes", &dtype_bytes, nb::arg("dtype"), "Bytes of one element.");
  module.def("holds_pages", &holds_pages, nb::arg("kind"),
             "Whether such a region has one item per page.");
}

void bind_failure_enums(nb::module_& module) {
  nb::enum_<FailureWhere>(module, "FailureWhere",
                          "Where the cause lies, seen from who reports it first.",
                          nb::is_arithmetic())
      .value("Local", FailureWhere::kLocal)
      .value("Path", FailureWhere::kPath)
      .value("Peer", FailureWhere::kPeer);
  nb::enum_<FailureCode>(
      module, "FailureCode",
      "Why a call or a room failed. The numbers cross the wire and never change.",
      nb::is_arithmetic())
      .value("Unspecified", FailureCode::kUnspecified, "A code that this version does not know.")
      .value("Aborted", FailureCode::kAborted, "abort() was called on this or on another rank.")
      .value("InvalidArgument", FailureCode::kInvalidArgument)
      .value("DuplicateRoom", FailureCode::kDuplicateRoom, "Room and binding are still open here.")
      .value("GrantTooLarge", FailureCode::kGrantTooLarge,
             "The page list is over the limit of one control message.")
      .value("WrongState", FailureCode::kWrongState, "The call does not fit the room's state.")
      .value("BootstrapFailed", FailureCode::kBootstrapFailed,
             "The bootstrap server is unreachable or answered nonsense.")
      .value("PrefillUnknown", FailureCode::kPrefillUnknown,
             "The registry has no such prefill instance or rank.")
      .value("PeerUnreachable", FailureCode::kPeerUnreachable, "No session within the deadline.")
      .value("PeerLost", FailureCode::kPeerLost,
             "The session ended: its connection was gone past its grace, or silence.")
      .value("PeerRestarted", FailureCode::kPeerRestarted,
             "Another incarnation answers at the peer's endpoint.")
      .value("LayoutMismatch", FailureCode::kLayoutMismatch,
             "The text names the field and both values.")
      .value("NumericsMismatch", FailureCode::kNumericsMismatch,
             "As LayoutMismatch, only when identity is required.")
      .value("SessionRefused", FailureCode::kSessionRefused, "Version, role or authentication.")
      .value("EngineEpochMismatch", FailureCode::kEngineEpochMismatch,
             "Ranks of two launches of an engine were mixed.")
      .value("RoomTimeout", FailureCode::kRoomTimeout,
             "The room's deadline passed; the text names the state that it was in.")
      .value("WriteRefused", FailureCode::kWriteRefused, "The target refused a write.")
      .value("WriteTorn", FailureCode::kWriteTorn, "Some bytes of a write landed and no more will.")
      .value("WriteUnknown", FailureCode::kWriteUnknown,
             "A write's outcome is not known by its deadline.")
      .value("DoneMismatch", FailureCode::kDoneMismatch,
             "Counts differ from what was granted or landed.")
      .value("AuxInvalid", FailureCode::kAuxInvalid, "Aux length, CRC, room, binding or token.")
      .value("RoomUnknown", FailureCode::kRoomUnknown,
             "A grant whose room was not opened here in time.")
      .value("OutsideGrant", FailureCode::kOutsideGrant,
             "A landing or send outside the granted pages.")
      .value("QuarantineFull", FailureCode::kQuarantineFull)
      .value("TableFull", FailureCode::kTableFull)
      .value("QueueFull", FailureCode::kQueueFull)
      .value("ShuttingDown", FailureCode::kShuttingDown)
      .value("ControlThreadDead", FailureCode::kControlThreadDead)
      .value("FenceOverdue", FailureCode::kFenceOverdue)
      .value("OperatingSystem", FailureCode::kOperatingSystem,
             "A system call failed; the text has the call and the reason.")
      .value("Malformed", FailureCode::kMalformed, "Peer input that could not be parsed.")
      .value("Unauthorized", FailureCode::kUnauthorized)
      .value("Conflict", FailureCode::kConflict,
             "Registry: the rank has another owner, or the incarnation was superseded.");
}

}  // namespace

void bind_enums(nb::module_& module) {
  bind_poll(module);
  bind_layout_enums(module);
  bind_failure_enums(module);
}

}  // namespace kvferry::python
