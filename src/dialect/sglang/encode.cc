// Message -> frames, as SGLang 0.5.23 sends them: always all frames of the kind.
#include <fmt/format.h>

#include "dialect/sglang/codec.h"

namespace kvferry::sglang {
namespace {

template <typename T>
void append_little_endian(Frame& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    out.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
  }
}

template <typename T>
Frame packed(const PerComponent<T>& lists) {
  Frame out;
  if (lists.empty()) {
    return out;
  }
  append_little_endian(out, static_cast<std::uint32_t>(lists.size()));
  for (const std::vector<T>& list : lists) {
    append_little_endian(out, static_cast<std::uint32_t>(list.size() * sizeof(T)));
  }
  for (const std::vector<T>& list : lists) {
    for (const T value : list) {
      append_little_endian(out, value);
    }
  }
  return out;
}

class FrameWriter {
 public:
  FrameWriter& text(std::string_view text) {
    frames_.emplace_back(text.begin(), text.end());
    return *this;
  }
  template <typename Number>
  FrameWriter& number(Number value) {
    return text(fmt::format("{}", value));
  }
  template <typename Number>
  FrameWriter& number_or_empty(const std::optional<Number>& value) {
    return value ? number(*value) : text({});
  }
  FrameWriter& room(RoomId room) { return number(room.value()); }
  FrameWriter& endpoint(const RankEndpoint& endpoint) {
    return text(endpoint.ip).number(endpoint.port);
  }
  FrameWriter& bytes(Frame bytes) {
    frames_.push_back(std::move(bytes));
    return *this;
  }
  template <typename T>
  FrameWriter& list(const std::vector<T>& values) {
    Frame out;
    out.reserve(values.size() * sizeof(T));
    for (const T value : values) {
      append_little_endian(out, value);
    }
    return bytes(std::move(out));
  }
  FrameWriter& pages(const std::vector<PageIndex>& pages) {
    Frame out;
    out.reserve(pages.size() * sizeof(PageIndex));
    for (const PageIndex page : pages) {
      append_little_endian(out, page.value());
    }
    return bytes(std::move(out));
  }
  template <typename T>
  FrameWriter& lists(const PerComponent<T>& lists) {
    return bytes(packed(lists));
  }
  // Base and size of the ring, both absent without one.
  FrameWriter& ring(const StagingRing& ring) {
    if (ring.pointer == 0) {
      return text({}).text({});
    }
    return list(std::vector<std::uint64_t>{ring.pointer}).number(ring.bytes);
  }

  Frames take() { return std::move(frames_); }

 private:
  Frames frames_;
};

// One overload for each kind.
struct Encoder {
  Flavour flavour = Flavour::kMooncake;
  FrameWriter out;

  void operator()(const MooncakeRegistration& in) {
    const DecodeMemory& memory = in.memory;
    out.text(kNoRoom).endpoint(in.endpoint).text(in.session);
    out.list(memory.kv_pointers).list(memory.aux_pointers).lists(memory.state_pointers);
    out.number(in.tp_rank).number(in.tp_size).number(memory.kv_item_bytes);
    out.lists(memory.state_item_bytes).lists(memory.state_dims);
    out.list(memory.kv_layers).lists(memory.state_layers);
    out.ring(memory.staging).number(in.dcp_size).number(in.dcp_rank);
    out.list(memory.staging.slot_layers).list(memory.kv_item_bytes_of);
  }

  void operator()(const NixlRegistration& in) {
    const DecodeMemory& memory = in.memory;
    out.text(kNixlGuard).text(kNoRoom).endpoint(in.endpoint).text(in.agent);
    out.bytes(in.agent_metadata);
    out.list(memory.kv_pointers).list(memory.aux_pointers).lists(memory.state_pointers);
    out.number(in.gpu).number(in.tp_size).number(in.tp_rank).number(memory.kv_item_bytes);
    out.lists(memory.state_item_bytes).lists(memory.state_dims);
    out.ring(memory.staging).number_or_empty(in.kv_slots);
    std::string kinds;
    for (const NixlMemory kind : in.kv_memory_kinds) {
      kinds += kinds.empty() ? "" : ",";
      kinds += kind == NixlMemory::kVram ? "VRAM" : "DRAM";
    }
    out.text(kinds).list(memory.kv_item_bytes_of);
    out.lists(memory.state_layers).list(memory.kv_layers);
    out.number(in.dcp_size).number(in.dcp_rank).lists(in.state_bytes);
  }

  void operator()(const MooncakeMetadata& in) {
    const RoomTarget& target = in.target;
    out.room(target.room).endpoint(target.endpoint).text(in.session).pages(target.pages);
    out.number_or_empty(in.aux_index).lists(target.state_indices);
    out.number(target.decode_ranks).number(target.prefix_tokens).pages(in.device_pages);
  }

  void operator()(const NixlMetadata& in) {
    const RoomTarget& target = in.target;
    out.text(kNixlGuard).room(target.room).endpoint(target.endpoint).text(in.agent);
    out.pages(target.pages).number(in.aux_index).number(target.decode_ranks);
    out.lists(target.state_indices).number(target.prefix_tokens).number(in.is_dummy ? 1 : 0);
  }

  void operator()(const RoomStatus& in) {
    if (flavour == Flavour::kNixl) {
      out.text("KV_STATUS");
    } else if (flavour == Flavour::kMori) {
      out.text(kMoriGuard);
    }
    out.room(in.room).number(static_cast<unsigned>(in.status)).number(in.prefill_rank);
    // Versions before 0.5.23 die of a fourth frame in Mooncake's flavour.
    if (flavour != Flavour::kMooncake) {
      out.text(in.reason);
    }
  }

  void operator()(const AbortRoom& in) {
    out.text("ABORT").room(in.room);
    if (in.endpoint) {
      out.endpoint(*in.endpoint);
      if (in.generation) {
        out.number(*in.generation);
      }
    }
  }

  void operator()(const AbortAck& in) {
    out.text("ABORT_ACK").room(in.room);
    if (in.prefill_rank) {
      out.number(*in.prefill_rank);
      if (in.generation) {
        out.number(*in.generation);
      }
    }
  }

  void operator()(const AuxData& in) {
    const auto length = static_cast<std::uint32_t>(in.bytes.size());
    Frame big_endian;
    for (const unsigned shift : {24U, 16U, 8U, 0U}) {
      big_endian.push_back(static_cast<std::uint8_t>(length >> shift));
    }
    out.text("AUX_DATA").room(in.room).number(in.buffer).number(in.aux_index);
    out.bytes(std::move(big_endian)).bytes(in.bytes);
  }

  void operator()(const ChunkReady& in) {
    out.text("CHUNK_READY").room(in.room).number(in.chunk).number(in.first_page);
    out.number(in.page_count).text(in.writer);
    if (in.prefill_rank) {
      out.number(*in.prefill_rank);
    }
  }

  void operator()(const StagingRequest& in) {
    out.text("STAGING_REQ").room(in.room).number(in.chunk).number(in.page_count).text(in.session);
    if (in.pp_rank) {
      out.number(*in.pp_rank);
    }
  }

  void operator()(const StagingResponse& in) {
    out.text("STAGING_RSP").room(in.room).number(in.chunk).number(in.offset).number(in.round);
    out.number(in.end).text(in.session);
  }

  void operator()(const Watermark& in) {
    out.text("WATERMARK").number(in.round).number(in.tail).text(in.session);
  }

  void operator()(const AwaitPrefill& in) {
    out.text("BOOTSTRAP").room(in.room).endpoint(in.endpoint);
  }
};

}  // namespace

Frames encode(Flavour flavour, const Message& message) {
  Encoder encoder{flavour, {}};
  std::visit(encoder, message);
  return encoder.out.take();
}

Frame pack_lists(const PerComponent<std::uint32_t>& lists) { return packed(lists); }
Frame pack_lists(const PerComponent<std::uint64_t>& lists) { return packed(lists); }

}  // namespace kvferry::sglang
