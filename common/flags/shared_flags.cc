#include "common/flags/shared_flags.h"

#include "absl/strings/str_cat.h"
#include "common/flags/checks.h"
#include "common/host/logging.h"

namespace sluice {

CLI::Option* AddCoordinatorAddress(CLI::App* app, std::string* address) {
  return app
      ->add_option("--coordinator", *address, "the coordinator's host:port")
      ->capture_default_str()
      ->envname("SLUICE_COORDINATOR");
}

CLI::Option* AddDevice(CLI::App* app, std::string* device) {
  return app
      ->add_option("--device", *device,
                   "what computes: cpu; cuda, the first GPU, or cuda:N; "
                   "cuda:0,cuda:1, tensor parallel; "
                   "cpu-discrete, for tests: the CPU with device memory of its "
                   "own")
      ->capture_default_str();
}

CLI::Option* AddTensorParallel(CLI::App* app, std::string* ranks) {
  return app
      ->add_option("--tensor-parallel", *ranks,
                   "ranks that compute each layer together: GPUs from "
                   "--device on, or shares of the cores, by NUMA nodes if "
                   "there are as many; auto: as many as the plan finds best, "
                   "up to the GPUs of --device, or the NUMA nodes; auto:N: up "
                   "to N")
      ->capture_default_str();
}

CLI::Option* AddDiskDir(CLI::App* app, std::string* dir) {
  return app
      ->add_option("--disk-dir", *dir,
                   "where weights and KV cache that don't fit into memory are "
                   "kept; default: nowhere")
      ->type_name("DIR");
}

CLI::Option* AddDType(CLI::App* app, std::string* dtype) {
  return app
      ->add_option("--dtype", *dtype,
                   "auto (the model's), float32, bfloat16 or, on GPUs, float16")
      ->capture_default_str();
}

CLI::Option* AddLoadFormat(CLI::App* app, std::string* format) {
  return app
      ->add_option("--load-format", *format,
                   "auto, or dummy: random weights, for which config.json is "
                   "enough")
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->capture_default_str();
}

void LogFlags::AddTo(CLI::App* app) {
  app->add_option("--log-level", level, "debug, info, warning or error")
      ->capture_default_str()
      ->envname("SLUICE_LOG_LEVEL");
  app->add_option("--log-format", format,
                  "text, or json: an object on each line of stderr")
      ->capture_default_str()
      ->envname("SLUICE_LOG_FORMAT");
}

std::string LogFlags::Apply(const std::string& component) const {
  if (!SetLogLevel(level)) {
    return absl::StrCat("--log-level \"", level,
                        "\" is none of debug, info, warning, error");
  }
  if (!SetLogFormat(format, component)) {
    return absl::StrCat("--log-format \"", format, "\" is none of text, json");
  }
  return "";
}

CLI::Option* AddMetricsPort(CLI::App* app, int* port) {
  return app
      ->add_option("--metrics-port", *port, "Prometheus port; 0: any free one")
      ->check(WholeFrom(0, 65535))
      ->capture_default_str();
}

CLI::Option* AddModel(CLI::App* app, std::string* model,
                      const std::string& which, const std::string& otherwise) {
  return app
      ->add_option("--model", *model,
                   absl::StrCat("model directory", which,
                                ", or org/name[@revision], a model in the "
                                "Hugging Face cache",
                                otherwise))
      ->type_name("MODEL");
}

CLI::Option* AddPort(CLI::App* app, int* port) {
  return app->add_option("--port", *port, "gRPC port; 0: any free one")
      ->check(WholeFrom(0, 65535))
      ->capture_default_str();
}

}  // namespace sluice
