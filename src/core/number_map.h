// A table by numbers that count up from 1 and are never given twice: rooms, attempts, grants,
// tickets. What is open at one time lies within a window of such numbers, so the low bits of a
// number are its place. Neighbours are neighbours in memory, and nothing is hashed; an entry whose
// place is taken by a much older one waits in a table beside it, and so does 0, which a peer may
// name.
//
// A pointer into the table ends with the next insertion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/flat_map.h"

namespace kvferry::core {

// Number: a strong id. Value: movable, and cheap to make by default.
template <typename Number, typename Value>
class NumberMap {
 public:
  // The number's value, which stays what it is when the number is here already.
  Value& emplace(Number number, Value value) {
    if (Value* here = find(number)) {
      return *here;
    }
    if (2 * (size_ + 1) > places_.size() || overflow_.size() * 8 > places_.size()) {
      grow();
    }
    ++size_;
    return put(number, std::move(value));
  }

  // nullptr: it is not here.
  Value* find(Number number) { return const_cast<Value*>(std::as_const(*this).find(number)); }
  const Value* find(Number number) const {
    if (!places_.empty() && number != Number{}) {
      const Place& place = places_[place_of(number)];
      if (place.number == number) {
        return &place.value;
      }
    }
    if (overflow_.empty()) {
      return nullptr;
    }
    const auto found = overflow_.find(number);
    return found == overflow_.end() ? nullptr : &found->second;
  }
  bool contains(Number number) const { return find(number) != nullptr; }

  void erase(Number number) {
    if (places_.empty()) {
      return;
    }
    Place& place = places_[place_of(number)];
    if (place.number == number && number != Number{}) {
      place = Place{};
      --size_;
    } else {
      size_ -= overflow_.erase(number);
    }
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // visit(number, value) of each, or of so many at most, in no order that means anything.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for_some(size_, std::forward<Visit>(visit));
  }
  template <typename Visit>
  void for_some(std::size_t most, Visit&& visit) const {
    for (auto place = places_.begin(); place != places_.end() && most > 0; ++place) {
      if (place->number != Number{}) {
        visit(place->number, place->value);
        --most;
      }
    }
    for (auto entry = overflow_.begin(); entry != overflow_.end() && most > 0; ++entry) {
      visit(entry->first, entry->second);
      --most;
    }
  }

 private:
  struct Place {
    Number number;  // 0: free
    Value value{};
  };
  static constexpr std::size_t kFewestPlaces = 64;

  std::size_t place_of(Number number) const { return number.value() & (places_.size() - 1); }
  Value& put(Number number, Value&& value) {
    Place& place = places_[place_of(number)];
    if (place.number != Number{} || number == Number{}) {
      return overflow_.emplace(number, std::move(value)).first->second;
    }
    place.number = number;
    return place.value = std::move(value);
  }
  void grow() {
    std::vector<Place> former(places_.empty() ? kFewestPlaces : 2 * places_.size());
    former.swap(places_);
    auto waiting = std::exchange(overflow_, {});
    for (Place& place : former) {
      if (place.number != Number{}) {
        put(place.number, std::move(place.value));
      }
    }
    for (auto& [number, value] : waiting) {
      put(number, std::move(value));
    }
  }

  std::vector<Place> places_;  // a power of two of them, or none
  FlatMap<Number, Value> overflow_;
  std::size_t size_ = 0;
};

}  // namespace kvferry::core
