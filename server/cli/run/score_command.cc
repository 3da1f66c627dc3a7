// `sluice score` computes the perplexity of a text by a coordinator and its
// workers in this process. Its windows are requests of one job like any others.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <streambuf>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/flags/command_line.h"
#include "common/host/logging.h"
#include "common/host/stop_signals.h"
#include "common/metrics/metrics_server.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "common/threads/clock.h"
#include "common/threads/mutex.h"
#include "server/cli/commands.h"
#include "server/cli/jobs/job_io.h"
#include "server/cli/jobs/output_file.h"
#include "server/cli/jobs/progress.h"
#include "server/cli/run/cluster_flags.h"
#include "server/cli/run/run_state.h"
#include "server/cli/run/score_windows.h"
#include "server/local_cluster.h"

namespace sluice {
namespace {

constexpr int32_t kDefaultContext = 2048;
// The largest text that is tokenized at once.
constexpr size_t kMaxTextBytes = size_t{64} << 20;

struct ScoreFlags {
  ClusterFlags cluster;
  std::vector<std::string> inputs;
  int32_t context = 0, stride = 0;
  std::string bos = "each";
  bool json = false, quiet = false;
};

absl::StatusOr<WindowStart> ParseStart(const std::string& name) {
  if (name == "each") return WindowStart::kEach;
  if (name == "first") return WindowStart::kFirst;
  if (name == "none") return WindowStart::kNone;
  return InvalidArgument("--bos \"", name, "\" is none of each, first, none");
}

absl::StatusOr<std::string> ReadText(const std::string& path,
                                     const StopSignals& signals) {
  SLUICE_ASSIGN_OR_RETURN(auto file, InputFile::Open(path, &signals));
  std::string text;
  std::vector<char> buffer(1 << 20);
  while (file->stream()) {
    file->stream().read(buffer.data(),
                        static_cast<std::streamsize>(buffer.size()));
    text.append(buffer.data(), static_cast<size_t>(file->stream().gcount()));
    if (text.size() > kMaxTextBytes) {
      return InvalidArgument(path, " has more than ", kMaxTextBytes >> 20,
                             " MiB; cut it into several files");
    }
  }
  SLUICE_RETURN_IF_ERROR(file->stream().status());
  if (text.empty()) {
    return InvalidArgument(path, " is empty: there is nothing to score");
  }
  return text;
}

// The tokens that the tokenizer puts before a text: usually BOS.
absl::StatusOr<std::vector<int32_t>> StartTokens(const Tokenizer& tokenizer) {
  constexpr char kProbe[] = "a";
  SLUICE_ASSIGN_OR_RETURN(std::vector<int32_t> with,
                          tokenizer.Encode(kProbe, true));
  SLUICE_ASSIGN_OR_RETURN(const std::vector<int32_t> without,
                          tokenizer.Encode(kProbe, false));
  const auto text =
      std::search(with.begin(), with.end(), without.begin(), without.end());
  with.erase(text == with.end() ? with.begin() : text, with.end());
  return with;
}

// The job's lines, made as they are read; the data for reading the results is
// kept.
class RequestLines : public std::streambuf {
 public:
  struct Window {
    int32_t ids;
    int32_t first_counted;
  };
  explicit RequestLines(WindowCutter* cutter) : cutter_(cutter) {}
  const std::vector<Window>& windows() const { return windows_; }

 protected:
  int_type underflow() override {
    ScoreWindow window;
    if (!cutter_->Next(&window)) return traits_type::eof();
    windows_.push_back(
        {static_cast<int32_t>(window.ids.size()), window.first_counted});
    line_ = ScoreRequestLine(window);
    setg(line_.data(), line_.data(), line_.data() + line_.size());
    return traits_type::to_int_type(line_.front());
  }

 private:
  WindowCutter* const cutter_;
  std::vector<Window> windows_;
  std::string line_;
};

// Runs the job and adds up its scores.
absl::StatusOr<ScoreSum> RunJob(LocalCluster& cluster, RequestLines* lines,
                                ProgressDisplay& display) {
  JobClient& client = cluster.client();
  std::istream input(lines);
  v1::JobSpec spec;
  spec.set_name("score");
  spec.set_format(v1::INPUT_FORMAT_JSONL);
  SLUICE_ASSIGN_OR_RETURN(v1::Job job, client.CreateJob(spec, &input, nullptr));
  const std::vector<RequestLines::Window>& windows = lines->windows();
  Mutex mu;
  ScoreSum sum;  // guarded by mu
  size_t done = 0;
  // One window that can't be scored makes the result invalid.
  const auto add = [&](const v1::Result& result) -> absl::Status {
    MutexLock lock(&mu);
    if (done >= windows.size()) {
      return absl::InternalError("there are more results than windows");
    }
    const RequestLines::Window& window = windows[done++];
    return AddScores(result.line(), window.ids, window.first_counted, &sum);
  };
  const auto show = [&](const v1::Job& now) {
    MutexLock lock(&mu);
    std::string text = absl::StrFormat("%d/%d windows, %d tokens scored", done,
                                       windows.size(), sum.tokens());
    if (sum.tokens() > 0) {
      absl::StrAppendFormat(&text, ", perplexity so far %.4f",
                            sum.perplexity());
    }
    if (!now.detail().empty()) absl::StrAppend(&text, " (", now.detail(), ")");
    display.UpdateText(text);
  };
  const absl::StatusOr<v1::Job> last = FollowJob(cluster, job.id(), add, show);
  display.Finish();
  SLUICE_RETURN_IF_ERROR(last.status());
  if (done != windows.size()) {
    return Internal("only ", done, " of ", windows.size(),
                    " windows have a result");
  }
  return sum;
}

// The values of the report, beside the scores.
struct Scored {
  WindowOptions windows;
  size_t num_windows = 0;
  int64_t tokens = 0, bytes = 0;
  double wall_seconds = 0, load_seconds = 0;
};

// Returns null if JSON has no such number.
nlohmann::ordered_json Number(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value)
                              : nlohmann::ordered_json(nullptr);
}

void Print(const LocalCluster& cluster, const ScoreFlags& flags,
           const ScoreSum& sum, const Scored& of) {
  const auto scored = static_cast<double>(sum.tokens());
  const double rate = of.wall_seconds > 0 ? scored / of.wall_seconds : 0;
  // The scored tokens stand for their share of the bytes, usually all.
  const double bits_per_byte = sum.nll() / std::log(2.0) / scored *
                               static_cast<double>(of.tokens) /
                               static_cast<double>(of.bytes);
  if (flags.json) {
    const nlohmann::ordered_json line = {
        {"perplexity", Number(sum.perplexity())},
        {"perplexity_stderr", Number(sum.perplexity_error())},
        {"bits_per_byte", Number(bits_per_byte)},
        {"nll_nats", Number(sum.nll())},
        {"tokens_scored", sum.tokens()},
        {"tokens", of.tokens},
        {"bytes", of.bytes},
        {"documents", flags.inputs.size()},
        {"windows", of.num_windows},
        {"context", of.windows.context},
        {"stride", of.windows.stride},
        {"bos", flags.bos},
        {"tokens_per_second", rate},
        {"wall_seconds", of.wall_seconds},
        {"load_seconds", of.load_seconds},
        {"workers", flags.cluster.options.num_workers},
        {"dtype", cluster.coordinator().cluster_state().dtype()},
        {"policy", cluster.coordinator().policy_text()}};
    std::cout << EscapeLineEnds(line.dump()) << std::endl;
    return;
  }
  std::cout << absl::StrFormat(
                   "perplexity      %.4f +- %.4f\n"
                   "tokens scored   %d of %d, in %d windows of %d (stride %d)\n"
                   "bits per byte   %.4f\n"
                   "tokens/s        %.1f\n",
                   sum.perplexity(), sum.perplexity_error(), sum.tokens(),
                   of.tokens, of.num_windows, of.windows.context,
                   of.windows.stride, bits_per_byte, rate)
            << std::flush;
}

// Fits `windows` to the model's positions; kInvalidArgument if it has fewer.
absl::Status FitWindows(const ScoreFlags& flags, int32_t positions,
                        size_t start_tokens, WindowOptions* windows) {
  if (flags.context > positions) {
    return InvalidArgument("--context ", flags.context, " is more than the ",
                           positions,
                           flags.cluster.coordinator.options.max_model_len > 0
                               ? " positions of --max-model-len"
                               : " positions that the model has");
  }
  windows->context =
      flags.context > 0 ? flags.context : std::min(positions, kDefaultContext);
  windows->stride = flags.stride > 0 ? flags.stride : windows->context;
  return windows->Validate(start_tokens);
}

absl::StatusOr<std::vector<std::vector<int32_t>>> EncodeAll(
    const Tokenizer& tokenizer, const std::vector<std::string>& names,
    std::vector<std::string> texts) {
  std::vector<std::vector<int32_t>> documents;
  for (size_t i = 0; i < texts.size(); ++i) {
    SLUICE_ASSIGN_OR_RETURN(
        documents.emplace_back(),
        Annotate(tokenizer.Encode(texts[i], false), names[i]));
    texts[i] = {};
  }
  return documents;
}

// Warns of documents of which nothing is scored; kInvalidArgument if that is so
// of all.
absl::Status CheckLengths(const WindowCutter& cutter,
                          const std::vector<std::string>& names) {
  std::vector<std::string> too_short;
  for (size_t i = 0; i < names.size(); ++i) {
    if (cutter.CountedTokens(i) > 0) continue;
    too_short.push_back(
        absl::StrCat(names[i],
                     " is too short: a token is scored given another one, "
                     "so that at least 2 are needed"));
  }
  if (too_short.size() == names.size()) {
    return absl::InvalidArgumentError(too_short.front());
  }
  for (const std::string& why : too_short) {
    LogWarning(why + "; nothing of it is scored");
  }
  return absl::OkStatus();
}

// Does the part of the command that needs the model.
absl::Status ScoreOn(LocalCluster& cluster, const ScoreFlags& flags,
                     WindowOptions windows, int64_t bytes, double start,
                     std::vector<std::string> texts, ProgressDisplay& display) {
  // The windows are cut while the workers load.
  const Coordinator& coordinator = cluster.coordinator();
  SLUICE_ASSIGN_OR_RETURN(std::vector<int32_t> start_tokens,
                          StartTokens(coordinator.tokenizer()));
  SLUICE_RETURN_IF_ERROR(FitWindows(flags, coordinator.max_model_len(),
                                    start_tokens.size(), &windows));
  SLUICE_ASSIGN_OR_RETURN(
      auto documents,
      EncodeAll(coordinator.tokenizer(), flags.inputs, std::move(texts)));
  WindowCutter cutter(windows, std::move(start_tokens), std::move(documents));
  SLUICE_RETURN_IF_ERROR(CheckLengths(cutter, flags.inputs));
  SLUICE_RETURN_IF_ERROR(WaitUntilLoaded(cluster, display));
  const double loaded = MonotonicSeconds();
  RequestLines lines(&cutter);
  SLUICE_ASSIGN_OR_RETURN(const ScoreSum sum, RunJob(cluster, &lines, display));
  Print(cluster, flags, sum,
        {.windows = windows,
         .num_windows = lines.windows().size(),
         .tokens = cutter.num_tokens(),
         .bytes = bytes,
         .wall_seconds = MonotonicSeconds() - loaded,
         .load_seconds = loaded - start});
  return absl::OkStatus();
}

// Makes a temporary directory, or null if the user named one.
absl::StatusOr<std::unique_ptr<TemporaryStateDir>> MakeStateDir(
    const ClusterFlags& flags, StopSignals* signals) {
  if (flags.state_dir.empty()) return TemporaryStateDir::Make(signals);
  std::error_code error;
  if (std::filesystem::exists(
          std::filesystem::path(flags.state_dir) / "sluice.db", error)) {
    return InvalidArgument(
        "--state-dir ", flags.state_dir,
        " holds other jobs; say another one, or leave it out");
  }
  return nullptr;
}

absl::Status ScoreUnlessStopped(const ScoreFlags& flags, StopSignals& signals) {
  WindowOptions windows;
  SLUICE_ASSIGN_OR_RETURN(windows.start, ParseStart(flags.bos));
  if (flags.context != 0 || flags.stride != 0) {
    // Options are checked as far as possible without the model.
    windows.context = flags.context != 0 ? flags.context : INT32_MAX;
    windows.stride = flags.stride != 0 ? flags.stride : windows.context;
    SLUICE_RETURN_IF_ERROR(windows.Validate(0));
  }
  std::vector<std::string> texts;
  std::vector<NamedInput> inputs;
  int64_t bytes = 0;
  for (const std::string& path : flags.inputs) {
    SLUICE_ASSIGN_OR_RETURN(std::string text, ReadText(path, signals));
    bytes += static_cast<int64_t>(text.size());
    texts.push_back(std::move(text));
    inputs.push_back({path, "--input"});
  }
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<Tracer> tracer,
                          flags.cluster.MakeTracer(inputs, nullptr));
  SLUICE_ASSIGN_OR_RETURN(auto state_dir,
                          MakeStateDir(flags.cluster, &signals));
  const std::unique_ptr<MetricsRegistry> metrics = CreatePrometheusRegistry();
  SLUICE_ASSIGN_OR_RETURN(LocalCluster::Options options, flags.cluster.Read());
  options.metrics = metrics.get();
  options.coordinator.state_dir =
      state_dir ? state_dir->path().string() : flags.cluster.state_dir;
  options.coordinator.generation_config = false;  // nothing is generated
  options.coordinator.positions_cap =
      flags.context > 0 ? flags.context : kDefaultContext;
  options.tracer = tracer.get();

  const double start = MonotonicSeconds();
  ProgressDisplay display(Clock::Real(), flags.quiet);
  options.stop = signals.flag();
  SLUICE_ASSIGN_OR_RETURN(const auto cluster,
                          LocalCluster::Start(std::move(options)));
  const StopSignals::Watch stop(&signals, [&] { cluster->Stop(); });
  SLUICE_RETURN_IF_ERROR(ScoreOn(*cluster, flags, windows, bytes, start,
                                 std::move(texts), display));
  return flags.cluster.WriteTrace(tracer.get());
}

absl::Status Score(const ScoreFlags& flags, StopSignals& signals) {
  const StopSignals::Watch watch(&signals);
  absl::Status status = ScoreUnlessStopped(flags, signals);
  if (status.ok() || !signals.stopped()) return status;
  return absl::CancelledError(
      "stopped before the text was scored; nothing is kept");
}

}  // namespace

void AddScoreCommand(CLI::App* app, StopSignals* signals, Command* chosen) {
  CLI::App* cmd = app->add_subcommand(
      "score", "Print the perplexity of a text, without servers or ports");
  auto flags = std::make_shared<ScoreFlags>();
  cmd->group(kAloneCommands);
  flags->cluster.AddTo(cmd);
  cmd->add_option("-i,--input", flags->inputs,
                  "plain text in UTF-8; - is stdin. Each file is a document of "
                  "its own")
      ->required()
      ->group(kMainGroup)
      ->type_name("FILE")
      ->envname("SLUICE_SCORE_INPUT");
  cmd->add_option("--context", flags->context,
                  "tokens in a window; default: the model's positions, at most "
                  "2048");
  cmd->add_option(
      "--stride", flags->stride,
      "from a window's beginning to the next one's; the tokens that "
      "the window before held do not count again; default: "
      "--context");
  cmd->add_option("--bos", flags->bos,
                  "each: every window begins with what the tokenizer puts "
                  "before a text; first: only a document's first one; none")
      ->capture_default_str();
  cmd->add_flag("--json", flags->json, "the figures as one JSON object");
  cmd->add_flag("-q,--quiet", flags->quiet, "no progress");
  cmd->footer(
      "A text is tokenized whole and cut into windows. Each token counts "
      "once,\n"
      "given those before it in its window; one that nothing precedes does "
      "not\n"
      "count. --bos first is Hugging Face's recipe.\n"
      "Examples:\n"
      "  sluice score --model ./llama --input wiki.test.raw\n"
      "  sluice score --model ./llama --input book.txt --context 1024 --stride "
      "512 --json");
  cmd->callback([=] { *chosen = [=] { return Score(*flags, *signals); }; });
}

}  // namespace sluice
