#include "common/flags/foreign_flags.h"

#include "absl/strings/str_cat.h"
#include "common/text/text.h"

namespace sluice {
namespace {

constexpr char kNoGraphs[] = "there is nothing of that kind here; leave it out";
constexpr char kTiers[] =
    "what does not fit goes to host memory and to disk: say how much there is "
    "with --host-memory 8GiB and --disk-dir DIR";

struct Foreign {
  const char* flag;
  const char* instead;
};

constexpr Foreign kForeign[] = {
    {"--block-size", "pages of the KV cache have one size; leave it out"},
    {"--chat-template",
     "the model directory's is taken: put chat_template.jinja there"},
    {"--cpu-offload-gb", kTiers},
    {"--ctx-size", "here that is --max-model-len"},
    {"--data-parallel-size",
     "start as many `sluice run` or clusters, each with a part of the input"},
    {"--disable-log-requests", "requests are not logged; leave it out"},
    {"--disable-log-stats", "leave it out; -q is quiet"},
    {"--distributed-executor-backend",
     "leave it out: `sluice run --workers N` splits in one process, "
     "sluice-coordinator and sluice-worker over machines"},
    {"--download-dir",
     "models are not downloaded: `hf download ID` does, then --model ID"},
    {"--enable-chunked-prefill",
     "prompts are cut by --max-step-tokens in any case; leave it out"},
    {"--enable-lora", "adapters are not supported: merge them into the model"},
    {"--enable-prefix-caching",
     "prompts that begin alike have it, unless --share-prefixes is off; leave "
     "it out"},
    {"--enforce-eager", kNoGraphs},
    {"--gpu-layers", "here that is --policy w=DEVICE/HOST/DISK, in per cent"},
    {"--gpu-memory-utilization",
     "say it in bytes: --device-memory 20GiB; by default all is taken that is "
     "free, but for about 1 GiB"},
    {"--max-new-tokens", "here that is --max-tokens"},
    {"--max-num-seqs", "here that is --gbs"},
    {"--n-gpu-layers", "here that is --policy w=DEVICE/HOST/DISK, in per cent"},
    {"--n-predict", "here that is --max-tokens"},
    {"--num-gpu-blocks-override", kNoGraphs},
    {"--pipeline-parallel-size",
     "here that is `sluice run --workers N`, or N times sluice-worker"},
    {"--prompt", "write prompts to a file, one a line: -i prompts.txt"},
    {"--quantization",
     "here that is --policy compress-weights=int8 (or int4), of `sluice run` "
     "and of sluice-coordinator"},
    {"--kv-cache-dtype",
     "here that is --policy compress-kv=int8 (or int4), of `sluice run` and of "
     "sluice-coordinator"},
    {"--max-num-batched-tokens", "here that is --max-step-tokens"},
    {"--revision",
     "here that is --model ID@REVISION, of the Hugging Face cache (`hf "
     "download ID --revision REVISION` gets it)"},
    {"--swap-space", kTiers},
    {"--tensor-parallel-size",
     "here that is --tensor-parallel, of `sluice run` and of sluice-worker"},
    {"--tokenizer",
     "the tokenizer is the model directory's: put tokenizer.json there"},
    {"--tokenizer-mode",
     "the tokenizer is the model directory's; leave it out"},
    {"--trust-remote-code",
     "no code that comes with a model is run; leave it out"},
    {"-c", "here that is --max-model-len"},
    {"-m", "here that is --model"},
    {"-n", "here that is --max-tokens"},
    {"-ngl", "here that is --policy w=DEVICE/HOST/DISK, in per cent"},
    {"-p", "write prompts to a file, one a line: -i prompts.txt"},
    {"-pp", "here that is --workers"},
    {"-tp", "layers are split here, not tensors: --workers N"},
};

// Adds a hidden flag whose int8 and int4 set a key of --policy, and whose
// `nothing` is the default.
void AddFormat(CLI::App* app, const std::string& flag, const std::string& key,
               const std::string& nothing, std::vector<std::string>* policy) {
  app->add_option_function<std::string>(
         flag,
         [key, nothing, policy](const std::string& format) {
           if (format != nothing) {
             policy->push_back(absl::StrCat(key, "=", format));
           }
         })
      ->check([flag, nothing, key](const std::string& format) -> std::string {
        if (format == nothing || format == "int8" || format == "int4") {
          return "";
        }
        return absl::StrCat(
            flag, " \"", EscapeForTerminal(format), "\" is none of ", nothing,
            ", int8 and int4 (which are --policy ", key, "=int8 and int4)");
      })
      ->group("");
}

}  // namespace

void AddFormatAliases(CLI::App* app, std::vector<std::string>* policy) {
  AddFormat(app, "--kv-cache-dtype", "compress-kv", "auto", policy);
  AddFormat(app, "--quantization", "compress-weights", "none", policy);
}

std::string ForeignFlag(const CLI::App& app, const std::string& flag) {
  for (const Foreign& foreign : kForeign) {
    if (flag == foreign.flag) return foreign.instead;
  }
  // These are flags of a server, which `sluice` is not.
  if (flag == "--host" || flag == "--port") {
    return absl::StrCat("`", app.get_name(), "` opens no port; ",
                        "sluice-coordinator --host and --port do, and "
                        "--coordinator HOST:PORT says where it is");
  }
  return "";
}

}  // namespace sluice
