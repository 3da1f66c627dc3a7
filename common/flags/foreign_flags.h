#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace sluice {

// The hint for a flag of vLLM or llama.cpp that `app` lacks: the equivalent
// here, or the reason why there is none. "" for a flag that is none of theirs.
// Flags with exactly the meaning of one here are aliases of it (command_line.h)
// and never get here.
std::string ForeignFlag(const CLI::App& app, const std::string& flag);

// vLLM's --kv-cache-dtype and --quantization, for programs with a --policy: the
// equivalent is added to `policy`.
void AddFormatAliases(CLI::App* app, std::vector<std::string>* policy);

}  // namespace sluice
