#include "lab/missing.h"

#include <fmt/format.h>

#include <optional>
#include <string>

#include "lab/mutants.h"
#include "runtime/core_guards.h"

namespace kvferry::lab {
namespace {

// A switch and no array: the compiler refuses it when the enum has a guard without a mutant.
std::optional<RuntimeMutant> mutant_of(RuntimeGuard missing) {
  const auto mutant = [&](std::string_view name, std::string_view without) {
    return RuntimeMutant{name, without, missing};
  };
  switch (missing) {
    case RuntimeGuard::kNone:
      return std::nullopt;
    case RuntimeGuard::kWholeMessages:
      return mutant("message-parts", "Messages leave in parts, from many threads.");
    case RuntimeGuard::kMalformedDropped:
      return mutant("malformed-kills", "A malformed message ends the thread that reads it.");
    case RuntimeGuard::kFreshSocket:
      return mutant("kept-socket", "A socket is kept for its address, whoever lives there.");
    case RuntimeGuard::kFullIsAValue:
      return mutant("full-blocks", "A full socket keeps the control thread waiting.");
    case RuntimeGuard::kReceiveCheck:
      return mutant("receive-unchecked", "Bytes are copied whatever became of their grant.");
    case RuntimeGuard::kCallsNeverWait:
      return mutant("calls-wait", "A call waits until the control thread carried it out.");
    case RuntimeGuard::kRegistersAgain:
      return mutant("registers-once", "A rank that its registry has lost stays unknown.");
  }
  return std::nullopt;
}

}  // namespace

std::vector<RuntimeMutant> runtime_mutants() {
  std::vector<RuntimeMutant> out;
  // Numbers past the enum's last are no mutants.
  for (unsigned number = 1; number <= 0xFF; ++number) {
    if (auto mutant = mutant_of(static_cast<RuntimeGuard>(number))) out.push_back(*mutant);
  }
  return out;
}

Status run_without(std::string_view name) {
  if (name.empty()) return {};
  std::string names;
  for (const RuntimeMutant& mutant : runtime_mutants()) {
    if (mutant.name == name) {
      missing_runtime_guard = mutant.missing;
      return {};
    }
    names += fmt::format("{}, ", mutant.name);
  }
  for (const Mutant& mutant : all_mutants()) {
    if (mutant.missing.core == core::Guard::kNone) continue;
    if (mutant.name == name) {
      runtime::missing_core_guard = mutant.missing.core;
      return {};
    }
    names += fmt::format("{}, ", mutant.name);
  }
  names.resize(names.size() - 2);
  return fail(FailureCode::kInvalidArgument,
              fmt::format("'{}' is no guard of a process; there are {}", name, names));
}

}  // namespace kvferry::lab
