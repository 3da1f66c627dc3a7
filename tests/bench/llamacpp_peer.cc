// llama.cpp's library, for quality_llamacpp.py, which compiles and calls this.
//
//   llamacpp_peer version
//   llamacpp_peer quantize FROM TO FTYPE PURE HEAD EMBEDDING
//   llamacpp_peer score GGUF CONTEXT THREADS
//
// quantize: a file of float32 or float16 to FTYPE (a llama_ftype). With PURE 1
// all matrices get that type; HEAD and EMBEDDING are ggml_types, or -1 for what
// llama.cpp takes by itself. It calls what `llama-quantize` calls.
//
// score: reads lines of token ids, each at most CONTEXT of them and a text of
// its own, and prints for each id but a line's first -log of its probability.
// KV is float32, and attention is not the fused one.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "llama.h"

namespace {

int Fail(const std::string& what) {
  std::cerr << what << "\n";
  return 1;
}

int Quantize(char** args) {
  llama_model_quantize_params params = llama_model_quantize_default_params();
  params.ftype = static_cast<llama_ftype>(std::atoi(args[2]));
  params.pure = std::atoi(args[3]) != 0;
  if (const int type = std::atoi(args[4]); type >= 0) {
    params.output_tensor_type = static_cast<ggml_type>(type);
  }
  if (const int type = std::atoi(args[5]); type >= 0) {
    params.token_embedding_type = static_cast<ggml_type>(type);
  }
  if (llama_model_quantize(args[0], args[1], &params) != 0) {
    return Fail(std::string("cannot quantize ") + args[0]);
  }
  return 0;
}

// Returns -log of the probability of `id`, by a softmax in double precision.
double MinusLogProbability(const float* logits, int vocab, int id) {
  const double largest = *std::max_element(logits, logits + vocab);
  double sum = 0;
  for (int i = 0; i < vocab; ++i) sum += std::exp(logits[i] - largest);
  return std::log(sum) + largest - logits[id];
}

int Score(char** args) {
  const int context_size = std::atoi(args[1]);
  llama_model* model =
      llama_model_load_from_file(args[0], llama_model_default_params());
  if (model == nullptr) return Fail(std::string("cannot load ") + args[0]);
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = context_size;
  params.n_threads = params.n_threads_batch = std::atoi(args[2]);
  params.type_k = params.type_v = GGML_TYPE_F32;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  llama_context* context = llama_init_from_model(model, params);
  if (context == nullptr) return Fail(std::string("cannot run ") + args[0]);
  const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
  llama_batch batch = llama_batch_init(context_size, 0, 1);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream numbers(line);
    std::vector<llama_token> ids;
    for (llama_token id; numbers >> id;) ids.push_back(id);
    if (ids.size() > static_cast<size_t>(context_size)) {
      return Fail("a text is longer than the context");
    }
    batch.n_tokens = static_cast<int>(ids.size());
    for (int i = 0; i < batch.n_tokens; ++i) {
      batch.token[i] = ids[i];
      batch.pos[i] = i;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = 1;
    }
    llama_memory_clear(llama_get_memory(context), /*data=*/true);
    if (const int code = llama_decode(context, batch); code != 0) {
      return Fail("llama_decode: " + std::to_string(code));
    }
    for (int i = 0; i + 1 < batch.n_tokens; ++i) {
      std::printf("%.9g\n",
                  MinusLogProbability(llama_get_logits_ith(context, i), vocab,
                                      ids[i + 1]));
    }
  }
  llama_batch_free(batch);
  llama_free(context);
  llama_model_free(model);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  // Each file has a warning or two about what is known here.
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::cerr << text;
      },
      nullptr);
  llama_backend_init();
  if (command == "quantize" && argc == 8) return Quantize(argv + 2);
  if (command == "score" && argc == 5) return Score(argv + 2);
  if (command == "version") {
    std::cout << "llama.cpp " << llama_version() << ", ggml " << ggml_version()
              << " " << ggml_commit() << "\n"
              << llama_print_system_info() << "\n";
    return 0;
  }
  return Fail("see the head of llamacpp_peer.cc");
}
