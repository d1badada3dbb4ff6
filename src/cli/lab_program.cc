#include "cli/lab_program.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "cli/command.h"

namespace kvferry::cli {
namespace {

constexpr const char* kLabProgram = "kvferry-lab";

}  // namespace

std::vector<std::string> own_words() {
  std::ifstream file("/proc/self/cmdline");
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  if (!words.empty()) words.erase(words.begin());
  return words;
}

int become_lab(std::string_view command, std::vector<std::string> words) {
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  std::string lab = (program.parent_path() / kLabProgram).string();
  std::vector<char*> argv = {lab.data()};
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(lab.c_str(), argv.data());
  fmt::print(stderr,
             "{}: {} can't be started: {}; it is a program of its own, which `make` builds beside "
             "this one\n",
             command, lab, std::strerror(errno));
  return kExitFalse;
}

}  // namespace kvferry::cli
