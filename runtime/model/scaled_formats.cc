#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/model/code_format.h"

namespace sluice {
namespace {

using Code = ScaledCodes::Code;

constexpr DType kScales[] = {DType::kFloat32, DType::kBFloat16,
                             DType::kFloat16};
constexpr int32_t kGroups[] = {0, 32, 64, 128};
constexpr int32_t kSharedGroup = 128;  // the inputs of a block of FP8
constexpr int32_t kNoGroup = 8;        // whole bytes, whatever the code

std::string NameOf(const ScaledCodes& scaled) {
  const char* const codes[] = {"E4M3", "INT4", "INT8"};
  const char* const scales[] = {"F32", "BF16", "F16"};
  std::string name = absl::StrCat(codes[static_cast<int>(scaled.code)], "_",
                                  scales[static_cast<int>(scaled.scale)]);
  if (scaled.group > 0) {
    absl::StrAppend(&name, scaled.shared ? "_B" : "_G", scaled.group);
  }
  if (scaled.zero_bits > 0) absl::StrAppend(&name, "_Z", scaled.zero_bits);
  return absl::StrCat(name, scaled.any_order ? "_ANY" : "");
}

// The formats, with what they point to.
struct Table {
  std::vector<std::unique_ptr<const ScaledCodes>> scaled;
  std::vector<std::unique_ptr<const std::string>> names;
  std::vector<CodeFormat> formats;

  void Add(const ScaledCodes& codes) {
    scaled.push_back(std::make_unique<const ScaledCodes>(codes));
    names.push_back(std::make_unique<const std::string>(NameOf(codes)));
    formats.push_back(
        {.kind = CodeKind::kScaled,
         .name = *names.back(),
         .bits = codes.code == Code::kInt4 ? 4 : 8,
         .block = codes.group == 0 || codes.any_order ? kNoGroup : codes.group,
         .group = codes.group,
         .halves = 0,
         .bytes = 0,
         .split = nullptr,
         .scaled = scaled.back().get()});
  }
};

Table MakeTable() {
  Table table;
  for (const DType scale : kScales) {
    table.Add({Code::kE4M3, kSharedGroup, scale, 0, true, false});
    for (const int32_t group : kGroups) {
      table.Add({Code::kE4M3, group, scale, 0, false, false});
      for (const Code code : {Code::kInt4, Code::kInt8}) {
        for (const int zero_bits : {0, 4, 8}) {
          if (code == Code::kInt8 && zero_bits == 4) continue;
          table.Add({code, group, scale, zero_bits, false, false});
          if (group > 0) {
            table.Add({code, group, scale, zero_bits, false, true});
          }
        }
      }
    }
  }
  return table;
}

}  // namespace

std::span<const CodeFormat> ScaledFormats() {
  static const Table* const table = new Table(MakeTable());
  return table->formats;
}

const CodeFormat* FindScaledFormat(const ScaledCodes& scaled) {
  for (const CodeFormat& format : ScaledFormats()) {
    if (*format.scaled == scaled) return &format;
  }
  return nullptr;
}

}  // namespace sluice
