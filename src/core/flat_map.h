// Hash tables without a node for each entry. References and iterators into one end with the next
// insertion, unlike std::unordered_map's: what must stay in place is held by a pointer.
#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <boost/unordered/unordered_flat_set.hpp>
#include <functional>

namespace kvferry::core {

template <typename Key, typename Value>
using FlatMap = boost::unordered_flat_map<Key, Value, std::hash<Key>>;

template <typename Key>
using FlatSet = boost::unordered_flat_set<Key, std::hash<Key>>;

}  // namespace kvferry::core
