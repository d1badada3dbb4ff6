// One frame of writes on its way into the pages: claims them, says where the next bytes go, and
// ends as landed, torn or refused. Belongs to one receiving thread at a time; reused from frame to
// frame.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "data_plane/receive_gate.h"

namespace kvferry::data_plane {

class IncomingFrame {
 public:
  // Claims each write of the frame that may land. All of them are under one slot and generation.
  // digests: empty, or one per write, with which its bytes are compared once they are in place.
  // reader is the one of all further calls up to finish().
  void begin(ReceiveGate::Reader& reader, std::shared_ptr<SessionSlots> slots, GrantSlot slot,
             Generation generation, std::span<const IncomingWrite> writes,
             std::span<const std::uint64_t> digests = {});

  bool is_open() const { return slots_ != nullptr; }
  bool payload_complete() const { return position_ == items_.size(); }

  // Moves one part of the payload. fill(span<const iovec>) copies at once what it has into the
  // given places and returns the byte count; 0 or less moves nothing and is returned as it is. It
  // must not wait for anybody, since the thread's mark is up while pages are filled. drop does the
  // same with bytes that nobody wants; it may leave the given place as it is.
  template <typename Fill>
  std::ptrdiff_t move_part(ReceiveGate::Reader& reader, Fill&& fill) {
    return move_part(reader, fill, fill);
  }
  template <typename Fill, typename Drop>
  std::ptrdiff_t move_part(ReceiveGate::Reader& reader, Fill&& fill, Drop&& drop) {
    if (items_[position_].goes_to_page) {
      MarkScope mark(reader, *slots_, slot_, generation_);
      if (mark.is_live()) {
        const std::ptrdiff_t moved = fill(page_part());
        if (moved > 0) advance(static_cast<std::uint64_t>(moved));
        return moved;
      }
    }
    // Fenced since the claim, or never claimed: the mark is clear and the bytes go to scrap.
    if (items_[position_].goes_to_page) drop_rest();
    const std::ptrdiff_t moved = drop(scrap_part(reader));
    if (moved > 0) advance(static_cast<std::uint64_t>(moved));
    return moved;
  }

  // The whole payload has come. valid: the writer stands by its bytes; otherwise all of it is torn.
  // So is each write whose bytes are not those that its digest was made of.
  // Landings and torn copies are told to the sink before this returns, thus before any answer.
  void finish(bool valid);
  // The lane is lost: of an unfinished frame what was touched is torn, what was not is refused.
  void abandon();
  // After the answers were sent; lets go of the session.
  void close();

  // After finish. One answer per write, in order; false while a write is the second copy of a
  // ticket whose first copy is still under way.
  bool answers(std::vector<WriteResult>& out);

 private:
  enum class Answer : std::uint8_t { kKnown, kFirstCopy };
  struct Item {
    IncomingWrite write;
    std::byte* target = nullptr;
    std::uint64_t moved = 0;
    bool goes_to_page = false;      // claimed by this frame and not fenced
    bool touched = false;           // some byte of the page was written
    ClaimTable::ClaimId claim = 0;  // while target is set
    bool is_altered = false;        // see altered_
    Answer answer = Answer::kKnown;
    WriteResult result = WriteResult::kRefused;
  };

  void claim(Item& item, bool live, layout::GrantExtent::LastPlace& last);
  std::span<const iovec> page_part();
  std::span<const iovec> scrap_part(ReceiveGate::Reader& reader);
  void advance(std::uint64_t bytes);
  void skip_complete();
  void drop_rest();
  void compare_digests();
  // Nothing when the grant was fenced meanwhile.
  std::optional<std::uint64_t> digest_in_place(const Item& item);
  void tell_altered();
  void end(bool valid);
  void count_results();
  Landing landing_of(const Item& item) const;

  std::shared_ptr<SessionSlots> slots_;
  ReceiveGate::Reader* reader_ = nullptr;
  GrantSlot slot_;
  Generation generation_;
  std::vector<Item> items_;
  std::vector<std::uint64_t> digests_;  // as sent
  struct Altered {
    std::size_t index = 0;
    std::uint64_t digest = 0;  // of what landed
  };
  std::vector<Altered> altered_;
  std::size_t position_ = 0;
  bool is_finished_ = false;
  std::vector<iovec> parts_;
  std::vector<Landing> landings_;
};

}  // namespace kvferry::data_plane
