// GGUF files that were spoiled at random: opening one must give an error or a
// model, and never read where the file is not. The seeds are fixed, so a
// failure comes back.

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "runtime/gguf/gguf_header.h"
#include "runtime/model/checkpoint/tensor_names.h"
#include "runtime/model/checkpoint/weight_remarks.h"
#include "runtime/model/model_dir.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_paths.h"

namespace sluice {
namespace {

class FuzzGguf : public testing::Test {
 protected:
  size_t Below(size_t bound) { return random_() % bound; }

  static std::string Golden(const std::string& name) {
    std::ifstream file(TestsDir() + "/golden/gguf/" + name + ".gguf",
                       std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // Changes bytes of the header, most of them in numbers.
  void Spoil(std::string* bytes, size_t header) {
    for (size_t i = 1 + Below(3); i > 0; --i) {
      const size_t at = Below(header - 8);
      switch (Below(5)) {
        case 0:
          (*bytes)[at] = static_cast<char>(Below(256));
          break;
        case 1: {
          const uint64_t numbers[] = {
              0,          1,          UINT64_MAX, INT64_MAX, 1ull << 32,
              1ull << 40, 1ull << 62, UINT32_MAX, 255,       bytes->size(),
              31,         header};
          std::memcpy(bytes->data() + at, &numbers[Below(std::size(numbers))],
                      8);
          break;
        }
        case 2:
          bytes->erase(at, 1 + Below(9));
          break;
        case 3:
          bytes->insert(at, bytes->substr(Below(header - 8), 1 + Below(9)));
          break;
        default:
          if (Below(4) == 0) bytes->resize(Below(bytes->size()));
      }
      if (bytes->size() < header) return;
    }
  }

  // Opens the file and reads all that it describes; whether that went well.
  static bool Try(const std::string& file) {
    const auto model = ModelDir::Open(file);
    (void)Tokenizer::Load(file).ok();
    if (!model.ok()) return false;
    const DecoderSpec& spec = (*model)->spec();
    const auto tensors = (*model)->OpenTensors();
    if (!tensors.ok() || !CheckTensors(spec, **tensors).ok()) return false;
    for (int layer = 0; layer < spec.num_layers; ++layer) {
      for (const TensorRef& ref : LayerTensors(spec, layer)) {
        int64_t elements = 1;
        for (const int64_t n : ref.shape) elements *= n;
        std::vector<float> values(static_cast<size_t>(elements));
        const int64_t rows = ref.shape.size() < 2 ? 1 : ref.shape[0];
        if (!(*tensors)->ReadRows(ref, 0, rows, values.data()).ok()) {
          return false;
        }
      }
    }
    return true;
  }

  std::mt19937 random_{39};  // NOLINT: the same each time
};

TEST_F(FuzzGguf, SpoiledHeaders) {
  constexpr int kRounds = 150;
  TempDir dir;
  int opened = 0;
  const std::vector<std::string> names = {"llama-base", "gemma3-base",
                                          "phi3-longrope"};
  for (const std::string& name : names) {
    const std::string golden = Golden(name);
    ASSERT_FALSE(golden.empty());
    const auto header = ReadGgufHeader(
        golden.size(),
        [&](uint64_t begin, uint64_t end) -> absl::StatusOr<std::string> {
          return golden.substr(begin, end - begin);
        });
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_TRUE(Try(dir.Write("m.gguf", golden)));
    for (int round = 0; round < kRounds; ++round) {
      std::string bytes = golden;
      Spoil(&bytes, header->data_offset);
      SCOPED_TRACE(testing::Message() << name << " round " << round);
      opened += Try(dir.Write("m.gguf", bytes)) ? 1 : 0;
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(opened, 5);
  EXPECT_LT(opened, static_cast<int>(names.size()) * kRounds);
}

}  // namespace
}  // namespace sluice
