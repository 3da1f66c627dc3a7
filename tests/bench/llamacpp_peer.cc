// llama.cpp's library, for quality_llamacpp.py, which compiles and calls this.
//
//   llamacpp_peer version
//   llamacpp_peer quantize FROM TO FTYPE PURE HEAD EMBEDDING
//   llamacpp_peer score GGUF CONTEXT THREADS
//   llamacpp_peer tokenize GGUF
//   llamacpp_peer generate GGUF CONTEXT THREADS NEW
//
// quantize: a file to FTYPE (a llama_ftype; 0: float32). With PURE 1
// all matrices get that type; HEAD and EMBEDDING are ggml_types, or -1 for what
// llama.cpp takes by itself. It calls what `llama-quantize` calls.
//
// score: reads lines of token ids, each at most CONTEXT of them and a text of
// its own, and prints for each id but a line's first -log of its probability.
// KV is float32, and attention is not the fused one.
//
// tokenize: reads texts, each a line of hexadecimal digits, and prints the ids
// of each on a line: special tokens that the text has, but none around it.
//
// generate: reads lines of token ids and prints for each, on a line, what the
// likeliest NEW ids that follow were chosen from, a word for each: the eight of
// the largest logits as ID:BYTES:LOGIT, joined by commas, with the bytes in
// hexadecimal, or "end". Stops at an answer's end.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <numeric>
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
  params.allow_requantize = true;
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

// Returns a context for `model`, or null: args are its CONTEXT and THREADS.
llama_context* MakeContext(llama_model* model, char** args) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = std::atoi(args[0]);
  params.n_threads = params.n_threads_batch = std::atoi(args[1]);
  params.type_k = params.type_v = GGML_TYPE_F32;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  return llama_init_from_model(model, params);
}

int Tokenize(char** args) {
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  llama_model* model = llama_model_load_from_file(args[0], params);
  if (model == nullptr) return Fail(std::string("cannot load ") + args[0]);
  const llama_vocab* vocab = llama_model_get_vocab(model);
  for (std::string line; std::getline(std::cin, line);) {
    std::string text;
    for (size_t i = 0; i + 1 < line.size(); i += 2) {
      text += static_cast<char>(std::stoi(line.substr(i, 2), nullptr, 16));
    }
    std::vector<llama_token> ids(text.size() + 8);
    const int count = llama_tokenize(
        vocab, text.data(), static_cast<int32_t>(text.size()), ids.data(),
        static_cast<int32_t>(ids.size()), /*add_special=*/false,
        /*parse_special=*/true);
    for (int i = 0; i < count; ++i) std::printf("%d ", ids[i]);
    std::printf("\n");
  }
  llama_model_free(model);
  return 0;
}

// Prints a word of `generate`; returns the likeliest id.
llama_token PrintLargest(const llama_vocab* vocab, const float* logits) {
  std::vector<llama_token> ids(llama_vocab_n_tokens(vocab));
  std::iota(ids.begin(), ids.end(), 0);
  std::partial_sort(
      ids.begin(), ids.begin() + 8, ids.end(),
      [&](llama_token a, llama_token b) { return logits[a] > logits[b]; });
  for (int i = 0; i < 8; ++i) {
    std::printf("%s%d:", i == 0 ? "" : ",", ids[i]);
    char piece[256];
    const int bytes = llama_token_to_piece(vocab, ids[i], piece, sizeof piece,
                                           0, /*special=*/true);
    if (llama_vocab_is_eog(vocab, ids[i])) {
      std::printf("end");
    } else {
      for (int b = 0; b < bytes; ++b) {
        std::printf("%02x", static_cast<unsigned char>(piece[b]));
      }
    }
    std::printf(":%.9g", logits[ids[i]]);
  }
  std::printf(" ");
  return ids[0];
}

int Generate(char** args) {
  llama_model* model =
      llama_model_load_from_file(args[0], llama_model_default_params());
  if (model == nullptr) return Fail(std::string("cannot load ") + args[0]);
  llama_context* context = MakeContext(model, args + 1);
  if (context == nullptr) return Fail(std::string("cannot run ") + args[0]);
  const llama_vocab* vocab = llama_model_get_vocab(model);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream numbers(line);
    std::vector<llama_token> ids;
    for (llama_token id; numbers >> id;) ids.push_back(id);
    llama_memory_clear(llama_get_memory(context), /*data=*/true);
    for (int i = 0; i < std::atoi(args[3]); ++i) {
      if (llama_decode(context, llama_batch_get_one(
                                    ids.data(),
                                    static_cast<int32_t>(ids.size()))) != 0) {
        return Fail("llama_decode");
      }
      const llama_token id =
          PrintLargest(vocab, llama_get_logits_ith(context, -1));
      if (llama_vocab_is_eog(vocab, id)) break;
      ids = {id};
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  llama_free(context);
  llama_model_free(model);
  return 0;
}

int Score(char** args) {
  const int context_size = std::atoi(args[1]);
  llama_model* model =
      llama_model_load_from_file(args[0], llama_model_default_params());
  if (model == nullptr) return Fail(std::string("cannot load ") + args[0]);
  llama_context* context = MakeContext(model, args + 1);
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
  if (command == "tokenize" && argc == 3) return Tokenize(argv + 2);
  if (command == "generate" && argc == 6) return Generate(argv + 2);
  if (command == "version") {
    std::cout << "llama.cpp " << llama_version() << ", ggml " << ggml_version()
              << " " << ggml_commit() << "\n"
              << llama_print_system_info() << "\n";
    return 0;
  }
  return Fail("see the head of llamacpp_peer.cc");
}
