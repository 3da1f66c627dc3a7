#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace sluice {

// What to say of a flag that other programs of the field have (vLLM, llama.cpp)
// and `app` does not: what does the same here, or why nothing does. "" for a
// flag that is none of theirs. Those that mean the same as one of ours are
// aliases of it (command_line.h) and never come here.
std::string ForeignFlag(const CLI::App& app, const std::string& flag);

// vLLM's --kv-cache-dtype and --quantization, for programs with a --policy:
// what the same is here goes to `policy`.
void AddFormatAliases(CLI::App* app, std::vector<std::string>* policy);

}  // namespace sluice
