#include "args.h"

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/operators.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>
#include <utility>

#include "arguments.h"
#include "bindings.h"
#include "failures.h"

namespace kvferry::python {
namespace {

// Half-open ranges and lists of regions, as signatures show them.
class RangeLike : public nb::object {
  NB_OBJECT_DEFAULT(RangeLike, nb::object, "tuple[int, int]", accept_any)
};
class RegionList : public nb::object {
  NB_OBJECT_DEFAULT(RegionList, nb::object, "Sequence[Region]", accept_any)
};
class RegionTuple : public nb::tuple {
  NB_OBJECT_DEFAULT(RegionTuple, nb::tuple, "tuple[Region, ...]", PyTuple_Check)
};

template <typename Range>
Range to_range(nb::handle value, std::string_view name) {
  const nb::object pair = nb::steal(PySequence_Tuple(value.ptr()));
  if (!pair.is_valid() || nb::len(pair) != 2) {
    PyErr_Clear();
    refuse(fmt::format("{}: a pair (begin, end) is needed", name));
  }
  return {to_number<std::uint32_t>(pair[0], fmt::format("{}[0]", name)),
          to_number<std::uint32_t>(pair[1], fmt::format("{}[1]", name))};
}

template <typename Range>
RangeLike to_pair(const Range& range) {
  return nb::borrow<RangeLike>(nb::make_tuple(range.begin, range.end));
}

std::vector<BoundRegion> to_regions(nb::handle list) {
  std::vector<BoundRegion> regions;
  for (const nb::handle item : list) {
    if (!nb::isinstance<BoundRegion>(item)) {
      refuse_type(fmt::format("regions[{}]: a Region is needed, not {}", regions.size(),
                              nb::type_name(item.type()).c_str()));
    }
    regions.push_back(nb::cast<BoundRegion>(item));
  }
  return regions;
}

BoundRegion make_region(RegionKind kind, const Whole& layer, const MemoryLike& memory,
                        const Whole& item_bytes, const Whole& item_count,
                        std::optional<MemoryKind> memory_kind, const Whole& memory_fd,
                        const Whole& memory_fd_offset) {
  BoundRegion bound;
  bound.memory = to_memory(memory);
  Region& region = bound.region;
  region.kind = kind;
  region.layer = to_number<std::uint32_t>(layer, "layer");
  region.base = bound.memory.base;
  region.item_bytes = to_number<std::uint64_t>(item_bytes, "item_bytes");
  if (region.item_bytes == 0) refuse("item_bytes is 0");
  const std::uint64_t fitting = bound.memory.bytes / region.item_bytes;
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  region.item_count = item_count.is_none() ? static_cast<std::uint32_t>(std::min(fitting, kMost))
                                           : to_number<std::uint32_t>(item_count, "item_count");
  if (region.item_count == 0 || region.item_count > fitting) {
    refuse(fmt::format("region: {} items of {} bytes, and the memory has {} bytes",
                       std::max(region.item_count, 1U), region.item_bytes, bound.memory.bytes));
  }
  region.memory = memory_kind.value_or(bound.memory.kind);
  const auto fd = to_number<std::int32_t>(memory_fd, "memory_fd");
  region.memory_fd = fd < 0 ? bound.memory.memory_fd : fd;
  region.memory_fd_offset = to_number<std::uint64_t>(memory_fd_offset, "memory_fd_offset");
  return bound;
}

void bind_region(nb::module_& module) {
  nb::class_<BoundRegion>(module, "Region",
                          R"(Registered memory: item_count items of item_bytes each, back to back.

Ownership: holds a reference to the memory's object, and so does a KvManager that was made with it, until
it is destroyed. Meanwhile a bytearray can't be resized nor a mmap closed (BufferError). Memory given as
(pointer, bytes) is the caller's to keep.)")
      .def(
          "__init__",
          [](BoundRegion* self, RegionKind kind, const Whole& layer, const MemoryLike& memory,
             const Whole& item_bytes, const Whole& item_count,
             std::optional<MemoryKind> memory_kind, const Whole& memory_fd,
             const Whole& memory_fd_offset) {
            new (self) BoundRegion(make_region(kind, layer, memory, item_bytes, item_count,
                                               memory_kind, memory_fd, memory_fd_offset));
          },
          nb::arg("kind"), nb::arg("layer"), nb::arg("memory"), nb::kw_only(),
          nb::arg("item_bytes"), nb::arg("item_count") = nb::none(),
          nb::arg("memory_kind") = nb::none(), nb::arg("memory_fd") = -1,
          nb::arg("memory_fd_offset") = 0,
          R"(layer: global layer number, 0 for aux. item_bytes: bytes of one page (or slot).
item_count: pages (or slots), by default as many as fit.

memory_kind: by default Device for a DLPack object of a device that the host can't read, else Host. A
manager refuses device memory when it is made, and says what can move it.
memory_fd, memory_fd_offset: the sealed memfd that the memory is mapped from and where in it it lies
(SharedPool.region() fills them); -1: none.

Raises InvalidArgument for memory that is too small, not contiguous, or empty.)")
      .def_prop_ro("kind", [](const BoundRegion& self) { return self.region.kind; })
      .def_prop_ro("layer", [](const BoundRegion& self) { return self.region.layer; })
      .def_prop_ro(
          "base",
          [](const BoundRegion& self) {
            return reinterpret_cast<std::uintptr_t>(self.region.base);
          },
          "Address of the first byte.")
      .def_prop_ro("item_bytes", [](const BoundRegion& self) { return self.region.item_bytes; })
      .def_prop_ro("item_count", [](const BoundRegion& self) { return self.region.item_count; })
      .def_prop_ro("memory_kind", [](const BoundRegion& self) { return self.region.memory; })
      .def_prop_ro("memory_fd", [](const BoundRegion& self) { return self.region.memory_fd; })
      .def_prop_ro("memory_fd_offset",
                   [](const BoundRegion& self) { return self.region.memory_fd_offset; })
      .def_prop_ro(
          "readonly", [](const BoundRegion& self) { return self.memory.readonly; },
          "Whether the memory may only be read: good for pages and state of a prefill rank only.")
      .def("__repr__", [](const BoundRegion& self) {
        return fmt::format("<Region {} of layer {}: {} items of {} bytes>",
                           to_string(self.region.kind), self.region.layer, self.region.item_count,
                           self.region.item_bytes);
      });
}

void bind_rank(nb::module_& module) {
  nb::class_<RankCoordinates> type(
      module, "RankCoordinates",
      "This process's place in its engine. tp splits heads, pp layers, dp is a whole replica.");
  type.def(
      "__init__",
      [](RankCoordinates* self, const Whole& tp_rank, const Whole& tp_size, const Whole& pp_rank,
         const Whole& pp_size, const Whole& dp_rank, const Whole& dp_size) {
        new (self) RankCoordinates{to_number<std::uint32_t>(tp_rank, "tp_rank"),
                                   to_number<std::uint32_t>(tp_size, "tp_size"),
                                   to_number<std::uint32_t>(pp_rank, "pp_rank"),
                                   to_number<std::uint32_t>(pp_size, "pp_size"),
                                   to_number<std::uint32_t>(dp_rank, "dp_rank"),
                                   to_number<std::uint32_t>(dp_size, "dp_size")};
      },
      nb::arg("tp_rank") = 0, nb::arg("tp_size") = 1, nb::arg("pp_rank") = 0,
      nb::arg("pp_size") = 1, nb::arg("dp_rank") = 0, nb::arg("dp_size") = 1);
  def_number(type, "tp_rank", &RankCoordinates::tp_rank);
  def_number(type, "tp_size", &RankCoordinates::tp_size);
  def_number(type, "pp_rank", &RankCoordinates::pp_rank);
  def_number(type, "pp_size", &RankCoordinates::pp_size);
  def_number(type, "dp_rank", &RankCoordinates::dp_rank);
  def_number(type, "dp_size", &RankCoordinates::dp_size);
  type.def(nb::self == nb::self, nb::sig("def __eq__(self, other: object, /) -> bool"));
}

void bind_numerics(nb::module_& module) {
  nb::class_<Numerics> type(module, "Numerics",
                            R"(What must match for the bits to be equal, beyond the layout.

A difference warns, and refuses the pair only with Options.require_identical.)");
  type.def(
          "__init__",
          [](Numerics* self, std::string kernel_library, const Whole& threads,
             const Whole& prefill_chunk_tokens, std::string flags) {
            new (self)
                Numerics{std::move(kernel_library), to_number<std::uint32_t>(threads, "threads"),
                         to_number<std::uint32_t>(prefill_chunk_tokens, "prefill_chunk_tokens"),
                         std::move(flags)};
          },
          nb::arg("kernel_library") = "", nb::arg("threads") = 0,
          nb::arg("prefill_chunk_tokens") = 0, nb::arg("flags") = "")
      .def_rw("kernel_library", &Numerics::kernel_library)
      .def_rw("flags", &Numerics::flags)
      .def(nb::self == nb::self, nb::sig("def __eq__(self, other: object, /) -> bool"));
  def_number(type, "threads", &Numerics::threads);
  def_number(type, "prefill_chunk_tokens", &Numerics::prefill_chunk_tokens);
}

// An attribute that is one of KvArgs' own.
template <typename Value, typename... Extra>
void def_value(nb::class_<BoundArgs>& type, const char* name, Value KvArgs::*member,
               const Extra&... extra) {
  type.def_prop_rw(
      name, [member](BoundArgs& self) -> Value& { return self.values.*member; },
      [member](BoundArgs& self, const Value& value) { self.values.*member = value; }, extra...);
}

template <typename... Extra>
void def_count(nb::class_<BoundArgs>& type, const char* name, std::uint32_t KvArgs::*member,
               const Extra&... extra) {
  type.def_prop_rw(
      name, [member](const BoundArgs& self) { return self.values.*member; },
      [member, name](BoundArgs& self, const Whole& value) {
        self.values.*member = to_number<std::uint32_t>(value, name);
      },
      extra...);
}

template <typename Range, typename... Extra>
void def_range(nb::class_<BoundArgs>& type, const char* name, Range KvArgs::*member,
               const Extra&... extra) {
  type.def_prop_rw(
      name, [member](const BoundArgs& self) { return to_pair(self.values.*member); },
      [member, name](BoundArgs& self, const RangeLike& value) {
        self.values.*member = to_range<Range>(value, name);
      },
      extra...);
}

void init_args(BoundArgs* self, Role role, std::string instance, const Whole& engine_epoch,
               const RankCoordinates* rank, std::string model_fingerprint,
               const Whole& page_size_tokens, const Whole& total_layers,
               const Whole& total_kv_heads, const Whole& head_dim, DType dtype,
               const RangeLike& layers, const RangeLike& heads, const Whole& vocab_size,
               const RegionList& regions, const Numerics* numerics) {
  BoundArgs args;
  args.values.role = role;
  args.values.instance = std::move(instance);
  args.values.engine_epoch = EngineEpoch(to_number<std::uint64_t>(engine_epoch, "engine_epoch"));
  if (rank != nullptr) args.values.rank = *rank;
  args.values.model_fingerprint = std::move(model_fingerprint);
  args.values.page_size_tokens = to_number<std::uint32_t>(page_size_tokens, "page_size_tokens");
  args.values.total_layers = to_number<std::uint32_t>(total_layers, "total_layers");
  args.values.total_kv_heads = to_number<std::uint32_t>(total_kv_heads, "total_kv_heads");
  args.values.head_dim = to_number<std::uint32_t>(head_dim, "head_dim");
  args.values.dtype = dtype;
  args.values.layers = to_range<LayerRange>(layers, "layers");
  args.values.heads = to_range<HeadSlice>(heads, "heads");
  args.values.vocab_size = to_number<std::uint32_t>(vocab_size, "vocab_size");
  if (numerics != nullptr) args.values.numerics = *numerics;
  args.regions = to_regions(regions);
  new (self) BoundArgs(std::move(args));
}

void add_shape(nb::class_<BoundArgs>& type) {
  def_value(type, "role", &KvArgs::role);
  def_value(type, "instance", &KvArgs::instance,
            "Name of the engine instance in the registry; empty: one is drawn.");
  type.def_prop_rw(
      "engine_epoch", [](const BoundArgs& self) { return self.values.engine_epoch.value(); },
      [](BoundArgs& self, const Whole& value) {
        self.values.engine_epoch = EngineEpoch(to_number<std::uint64_t>(value, "engine_epoch"));
      },
      "Equal on all ranks of one launch; 0: draw one (one rank only).");
  def_value(type, "rank", &KvArgs::rank);
  def_value(type, "model_fingerprint", &KvArgs::model_fingerprint,
            "Opaque; pairs with unequal ones are refused.");
  def_count(type, "page_size_tokens", &KvArgs::page_size_tokens);
  def_count(type, "total_layers", &KvArgs::total_layers);
  def_count(type, "total_kv_heads", &KvArgs::total_kv_heads);
  def_count(type, "head_dim", &KvArgs::head_dim);
  def_value(type, "dtype", &KvArgs::dtype);
  def_range(type, "layers", &KvArgs::layers, "Half-open range of the layers of this rank.");
  def_range(type, "heads", &KvArgs::heads, "Half-open range of the KV heads of this rank.");
  def_count(type, "vocab_size", &KvArgs::vocab_size, "0: the first token in aux is not checked.");
  def_value(type, "numerics", &KvArgs::numerics);
}

void bind_kv_args(nb::module_& module) {
  nb::class_<BoundArgs> type(
      module, "KvArgs", "What one rank of an engine tells kvferry about itself once, at start.");
  type.def("__init__", &init_args, nb::arg("role") = Role::kPrefill, nb::kw_only(),
           nb::arg("instance") = "", nb::arg("engine_epoch") = 0, nb::arg("rank") = nb::none(),
           nb::arg("model_fingerprint") = "", nb::arg("page_size_tokens") = 0,
           nb::arg("total_layers") = 0, nb::arg("total_kv_heads") = 0, nb::arg("head_dim") = 0,
           nb::arg("dtype") = DType::kF16, nb::arg("layers") = nb::make_tuple(0, 0),
           nb::arg("heads") = nb::make_tuple(0, 0), nb::arg("vocab_size") = 0,
           nb::arg("regions") = nb::tuple(), nb::arg("numerics") = nb::none());
  add_shape(type);
  type.def_prop_rw(
      "regions",
      [](const BoundArgs& self) {
        nb::list list;
        for (const BoundRegion& bound : self.regions) list.append(nb::cast(bound));
        return nb::borrow<RegionTuple>(nb::tuple(list));
      },
      [](BoundArgs& self, const RegionList& regions) { self.regions = to_regions(regions); },
      R"(Order matters and is the same on both sides.

An item of a K or V region is [page_size_tokens][heads of this rank][head_dim]. Takes any sequence.)");
}

}  // namespace

void bind_args(nb::module_& module) {
  module.attr("MAX_REGIONS") = kMaxRegions;
  module.attr("AUX_RECORD_BYTES") = kAuxRecordBytes;
  bind_region(module);
  bind_rank(module);
  bind_numerics(module);
  bind_kv_args(module);
}

}  // namespace kvferry::python
