// The time that a model's matrix products alone would take with oneDNN at its
// best: plain matmul primitives with weights in oneDNN's own layout, threaded
// by its own OpenMP over all cores. Each layer has weights of its own, as in a
// model. Prints a JSON object.
//
//   gemm_bound [dtype] [layers] [hidden] [q_width] [kv_width] [inner] [gated]
//              [vocab] [sequences] [prompt] [new] [prefill_rows]

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <vector>

namespace {

using dnnl::memory;

double Now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct Spread {
  double median, least, most;
};

struct Product {
  const char* name;
  int n, k;
};

// Seconds that one pass of [rows, k] through `copies` different matrices takes,
// per matrix.
Spread Measure(const Product& p, int rows, int copies, bool bf16,
               std::string* implementation) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const auto type = bf16 ? memory::data_type::bf16 : memory::data_type::f32;
  const memory::desc src({rows, p.k}, type, memory::format_tag::ab);
  const memory::desc dst({rows, p.n}, memory::data_type::f32,
                         memory::format_tag::ab);
  const memory::desc any({p.k, p.n}, type, memory::format_tag::any);
  const dnnl::matmul::primitive_desc desc({src, any, dst}, engine);
  const dnnl::matmul matmul(desc);
  *implementation = desc.impl_info_str();
  memory a(src, engine), c(dst, engine);
  std::memset(a.get_data_handle(), 0, src.get_size());
  std::vector<float> values(static_cast<size_t>(p.n) * p.k);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i % 257) / 257 - 0.5f;
  }
  memory source({{p.k, p.n}, memory::data_type::f32, memory::format_tag::ba},
                engine, values.data());
  std::vector<memory> weights;
  for (int i = 0; i < copies; ++i) {
    weights.emplace_back(desc.weights_desc(), engine);
    dnnl::reorder(source, weights.back())
        .execute(stream, source, weights.back());
  }
  {
    std::vector<float> input(static_cast<size_t>(rows) * p.k, 0.25f);
    memory from({{rows, p.k}, memory::data_type::f32, memory::format_tag::ab},
                engine, input.data());
    dnnl::reorder(from, a).execute(stream, from, a);
  }
  const auto pass = [&] {
    for (memory& w : weights) {
      matmul.execute(
          stream,
          {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, c}});
    }
    stream.wait();
  };
  pass();
  const double start = Now();
  pass();
  const double once = std::max(Now() - start, 1e-6);
  const int passes = std::max(1, static_cast<int>(0.05 / once));
  std::vector<double> times;
  for (int round = 0; round < 9; ++round) {
    const double begin = Now();
    for (int i = 0; i < passes; ++i) pass();
    times.push_back((Now() - begin) / passes / copies);
  }
  std::sort(times.begin(), times.end());
  return {times[4], times.front(), times.back()};
}

}  // namespace

int main(int argc, char** argv) {
  const auto arg = [&](int i, int fallback) {
    return argc > i ? std::atoi(argv[i]) : fallback;
  };
  const bool bf16 = argc <= 1 || std::strcmp(argv[1], "float32") != 0;
  const int layers = arg(2, 12), hidden = arg(3, 768), q = arg(4, 768),
            kv = arg(5, 768), inner = arg(6, 2048), gated = arg(7, 1),
            vocab = arg(8, 32000), sequences = arg(9, 64),
            prompt = arg(10, 128), fresh = arg(11, 32),
            prefill_rows = arg(12, 2048);
  const Product products[] = {{"qkv", q + 2 * kv, hidden},
                              {"out", hidden, q},
                              {"up", inner * (gated != 0 ? 2 : 1), hidden},
                              {"down", hidden, inner}};
  const Product head = {"head", vocab, hidden};
  double prefill = 0, decode = 0;
  try {
    std::printf("{\"dtype\": \"%s\", \"threads\": %d, \"products\": [",
                bf16 ? "bfloat16" : "float32", omp_get_max_threads());
    const char* comma = "";
    const auto measure = [&](const Product& p, int rows, int copies) {
      std::string implementation;
      const Spread s = Measure(p, rows, copies, bf16, &implementation);
      const double flops = 2.0 * rows * p.n * p.k;
      std::printf(
          "%s\n  {\"name\": \"%s\", \"rows\": %d, \"n\": %d, \"k\": %d, "
          "\"implementation\": \"%s\", \"seconds\": %.6g, \"least\": %.6g, "
          "\"most\": %.6g, \"gflops\": %.1f}",
          comma, p.name, rows, p.n, p.k, implementation.c_str(), s.median,
          s.least, s.most, flops / s.median / 1e9);
      comma = ",";
      return s.median;
    };
    const double sweeps =
        static_cast<double>(sequences) * prompt / prefill_rows;
    for (const Product& p : products) {
      prefill += measure(p, prefill_rows, layers) * layers * sweeps;
      decode += measure(p, sequences, layers) * layers * (fresh - 1);
    }
    const double logits = measure(head, sequences, 1);
    prefill += logits;
    decode += logits * (fresh - 1);
  } catch (const dnnl::error& e) {
    std::fprintf(stderr, "oneDNN: %s\n", e.what());
    return 1;
  }
  std::printf(
      "],\n \"prefill_seconds\": %.4f, \"decode_seconds\": %.4f, "
      "\"generation_tokens_per_second\": %.1f}\n",
      prefill, decode, sequences * fresh / (prefill + decode));
  return 0;
}
