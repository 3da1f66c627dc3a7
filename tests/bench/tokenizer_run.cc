// Runs a model directory's tokenizer, beside which others can be held.
//
//   tokenizer_run DIR < TEXTS        a JSON string a line; writes a line for
//                                    each: {"ids", "ids_no_special",
//                                    "decoded", "decoded_special"}, or
//                                    {"error"}
//   tokenizer_run DIR --time FILE    encodes a file as one text, and as lines,
//                                    by one thread, and says how fast

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace {

using sluice::Tokenizer;

nlohmann::json Answer(const Tokenizer& tokenizer, const std::string& text) {
  const auto ids = tokenizer.Encode(text, /*add_special_tokens=*/true);
  const auto plain = tokenizer.Encode(text, /*add_special_tokens=*/false);
  if (!ids.ok() || !plain.ok()) {
    return {{"error", std::string(ids.status().message())}};
  }
  return {{"ids", *ids},
          {"ids_no_special", *plain},
          {"decoded", tokenizer.Decode(*plain, true)},
          {"decoded_special", tokenizer.Decode(*ids, false)}};
}

// Returns MB/s, the best of three runs, and the number of tokens.
template <typename Texts>
std::pair<double, size_t> Measure(const Tokenizer& tokenizer,
                                  const Texts& texts) {
  double best = 0;
  size_t tokens = 0;
  for (int run = 0; run < 3; ++run) {
    size_t bytes = 0;
    tokens = 0;
    const auto begin = std::chrono::steady_clock::now();
    for (const auto& text : texts) {
      const auto ids = tokenizer.Encode(text, /*add_special_tokens=*/false);
      bytes += text.size();
      tokens += ids.ok() ? ids->size() : 0;
    }
    const std::chrono::duration<double> time =
        std::chrono::steady_clock::now() - begin;
    best = std::max(best, static_cast<double>(bytes) / 1e6 / time.count());
  }
  return {best, tokens};
}

int Time(const Tokenizer& tokenizer, const char* file) {
  std::ifstream in(file, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)),
                         std::istreambuf_iterator<char>());
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  const auto whole = Measure(tokenizer, std::vector<std::string>{text});
  const auto by_line = Measure(tokenizer, lines);
  std::cout << "whole " << whole.first << " MB/s, " << whole.second
            << " tokens; lines " << by_line.first << " MB/s, " << by_line.second
            << " tokens\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const bool time = argc == 4 && std::string(argv[2]) == "--time";
  if (argc != 2 && !time) {
    std::cerr << "usage: tokenizer_run DIR [--time FILE]\n";
    return 2;
  }
  const auto tokenizer = Tokenizer::Load(argv[1]);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status() << "\n";
    return 1;
  }
  if (time) return Time(**tokenizer, argv[3]);
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto text = nlohmann::json::parse(line).get<std::string>();
    std::cout << Answer(**tokenizer, text).dump() << "\n";
  }
  return 0;
}
