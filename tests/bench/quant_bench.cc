// Measures what quantized weights cost: rates of packing and of dequantizing,
// in weights per second and core, and of products with weights in each format.
// Matrices change from call to call, as the layers of a model do, so that
// weights come from memory. Prints a JSON object; median and spread of nine
// rounds.
//
//   quant_bench [dtype] [threads]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "runtime/kernels/cpu/gemm.h"
#include "runtime/memory/host_buffer.h"

namespace sluice {
namespace {

double Now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct Spread {
  double median, least, most;
};

// Seconds of one call, each round being at least 30 ms.
Spread Measure(const std::function<void()>& call) {
  call();
  const double start = Now();
  call();
  const double once = std::max(Now() - start, 1e-7);
  const int calls = std::max(1, static_cast<int>(0.03 / once));
  std::vector<double> times;
  for (int round = 0; round < 9; ++round) {
    const double begin = Now();
    for (int i = 0; i < calls; ++i) call();
    times.push_back((Now() - begin) / calls);
  }
  std::sort(times.begin(), times.end());
  return {times[4], times.front(), times.back()};
}

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

// Work per second, of work done in one call.
void Print(const char* comma, const char* what, WeightFormat format, int n,
           int k, int rows, double work, const Spread& s) {
  std::printf(
      "%s\n  {\"what\": \"%s\", \"format\": \"%s\", \"n\": %d, \"k\": %d, "
      "\"rows\": %d, \"giga_per_second\": %.3f, \"least\": %.3f, \"most\": "
      "%.3f}",
      comma, what, std::string(WeightFormatName(format)).c_str(), n, k, rows,
      work / s.median / 1e9, work / s.most / 1e9, work / s.least / 1e9);
  std::fflush(stdout);
}

// Bytes of weights that no cache holds.
constexpr size_t kBeyondCache = size_t{96} << 20;

void Run(DType dtype, int threads) {
  ComputePool pool(threads);
  MemoryBudget budget(Tier::kHost, uint64_t{8} << 30);
  auto made = GemmEngine::Create(dtype, &pool);
  Check(made.status());
  GemmEngine& engine = **made;
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.02f);
  std::printf("{\"dtype\": \"%s\", \"threads\": %d, \"rates\": [",
              std::string(DTypeName(dtype)).c_str(), threads);
  const char* comma = "";
  for (const int n : {2048, 5632}) {
    const int k = 2048;
    std::vector<float> w(static_cast<size_t>(n) * k);
    for (float& x : w) x = normal(random);
    auto full = engine.Layout(n, k, WeightFormat::kFull, 0);
    Check(full.status());
    auto dequantized = HostBuffer::Create("full", full->bytes, &budget);
    Check(dequantized.status());
    for (const WeightFormat format :
         {WeightFormat::kFull, WeightFormat::kInt8, WeightFormat::kInt4}) {
      auto layout = engine.Layout(n, k, format, 0);
      Check(layout.status());
      const size_t copies = kBeyondCache / layout->bytes + 1;
      auto memory =
          HostBuffer::Create("images", copies * layout->bytes, &budget);
      Check(memory.status());
      std::byte* packed = memory->as<std::byte>();
      const double weights = static_cast<double>(n) * k;
      // Packing: one thread, one panel.
      const Spread pack =
          Measure([&] { Check(engine.Pack(*layout, 0, w.data(), 0, packed)); });
      Print(comma, "pack, weights per core", format, n, k, 0,
            static_cast<double>(layout->panel_end(0)) * k, pack);
      comma = ",";
      pool.ParallelFor(layout->num_panels(), [&](int panel, int thread) {
        Check(engine.Pack(
            *layout, panel,
            w.data() + static_cast<size_t>(layout->panel_begin(panel)) * k,
            thread, packed + layout->panel_offset(panel)));
      });
      for (size_t i = 1; i < copies; ++i) {
        std::memcpy(packed + i * layout->bytes, packed, layout->bytes);
      }
      size_t turn = 0;
      const auto next = [&] {
        return PackedView::Whole(packed + turn++ % copies * layout->bytes);
      };
      if (format != WeightFormat::kFull) {
        const Spread all = Measure([&] {
          Check(engine.Dequantize(*layout, next(), *full,
                                  dequantized->as<std::byte>(), 0,
                                  layout->num_panels()));
        });
        Print(comma, "dequantize a matrix to memory, weights per core", format,
              n, k, 0, weights / threads, all);
        const Spread one = Measure([&] {
          Check(engine.Dequantize(*layout, PackedView::Whole(packed), *full,
                                  dequantized->as<std::byte>(), 0, 1));
        });
        Print(comma, "dequantize a panel in the cache, weights per core",
              format, n, k, 0, static_cast<double>(layout->panel_end(0)) * k,
              one);
      }
      for (const int rows : {1, 8, 64, 512}) {
        const int padded = (rows + GemmEngine::kTileRows - 1) /
                           GemmEngine::kTileRows * GemmEngine::kTileRows;
        auto a = HostBuffer::Create(
            "a", static_cast<size_t>(padded) * k * engine.element_bytes(),
            &budget);
        Check(a.status());
        std::vector<float> out(static_cast<size_t>(rows) * n);
        const Spread product = Measure([&] {
          Check(engine.Multiply(
              *layout, next(), a->data(), rows,
              [&](int32_t row, int32_t count, int32_t col, int32_t cols,
                  float* tile) {
                for (int32_t i = 0; i < count; ++i) {
                  std::memcpy(
                      out.data() + static_cast<size_t>(row + i) * n + col,
                      tile + i * cols, cols * sizeof(float));
                }
              }));
        });
        Print(comma, "product, flops", format, n, k, rows, 2 * weights * rows,
              product);
      }
    }
  }
  std::printf("]}\n");
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  sluice::Run(argc > 1 && std::strcmp(argv[1], "float32") == 0
                  ? sluice::DType::kFloat32
                  : sluice::DType::kBFloat16,
              argc > 2 ? std::max(1, std::atoi(argv[2])) : 1);
}
