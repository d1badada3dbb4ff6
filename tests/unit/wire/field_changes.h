// Equality that looks at every field: tests rely on it to compare whole values, so a field that it
// forgot would hide whatever happens to it.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <concepts>
#include <string>
#include <type_traits>
#include <vector>

#include "kvferry/ids.h"

namespace kvferry::test {

// Makes the value another one of its type. Structs of the messages have no change of their own:
// their fields are listed where they are tested, and they change by their first field.
template <typename T>
requires std::is_arithmetic_v<T>
void change(T& value) { value = static_cast<T>(value + 1); }
inline void change(bool& value) { value = !value; }
template <typename T>
requires std::is_enum_v<T>
void change(T& value) { value = static_cast<T>(static_cast<std::underlying_type_t<T>>(value) + 1); }
template <typename Tag, typename Rep>
void change(StrongId<Tag, Rep>& id) {
  id = id.next();
}
template <typename Tag>
void change(Id128<Tag>& id) {
  ++id.low;
}
inline void change(std::string& text) { text += "x"; }
template <typename T>
void change(std::vector<T>& list) {
  list.emplace_back();
}
template <typename T, std::size_t size>
void change(std::array<T, size>& bytes) {
  change(bytes[size - 1]);
}

// Two values that differ in one of the fields are unequal, two that differ in none are equal.
template <typename T, typename... Field>
void expect_each_field_counts(Field T::*... field) {
  int place = 0;
  const auto expect_counts = [&](auto member) {
    T changed{};
    change(changed.*member);
    EXPECT_FALSE(changed == T{}) << "field " << place << " is not compared";
    EXPECT_FALSE(T{} == changed) << "field " << place << " is not compared";
    ++place;
  };
  (expect_counts(field), ...);
  EXPECT_EQ(T{}, T{});
}

}  // namespace kvferry::test
