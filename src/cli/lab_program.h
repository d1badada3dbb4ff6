// Commands that kvferry-lab carries out, which lies beside this program: the product has no
// simulator in it, and nothing of what can be switched off.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvferry::cli {

// The command line of this process without the program's name.
std::vector<std::string> own_words();

// Goes on as kvferry-lab with these words. Returns, with an exit code, only when that can't be
// started; command is what was asked for, for the message.
int become_lab(std::string_view command, std::vector<std::string> words);

}  // namespace kvferry::cli
