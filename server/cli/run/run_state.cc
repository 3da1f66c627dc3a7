#include "server/cli/run/run_state.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/content_hash.h"
#include "common/host/write_file.h"
#include "common/status_macros.h"
#include "coordinator/store/state_lock.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr char kManifest[] = "run.json";
constexpr char kInput[] = "input";  // a copy of an input from a pipe
constexpr char kStore[] = "sluice.db";
// What a store must have: the number of jobs that it accepted.
constexpr char kAccepted[] = "sluice.accepted";
// The files that a coordinator makes beside the store.
constexpr const char* kStoreFiles[] = {
    "sluice.db-wal", "sluice.db-shm", "sluice.db-journal",
    "lock",          "model",         "reserve"};
constexpr char kUploadPrefix[] =
    "upload-";  // removed when a coordinator starts
constexpr int kManifestVersion = 1;
constexpr size_t kReadBytes = 1 << 20;

// Returns null if there is no manifest.
absl::StatusOr<nlohmann::json> ReadManifest(const fs::path& directory) {
  const std::string path = (directory / kManifest).string();
  std::ifstream in(path, std::ios::binary);
  if (!in) return nlohmann::json();
  const auto manifest = nlohmann::json::parse(in, nullptr, false);
  if (!manifest.is_object() || !manifest.contains("facts") ||
      !manifest["facts"].is_object() ||
      manifest.value("sluice_run", 0) != kManifestVersion) {
    return InvalidArgument(
        path,
        " is damaged or of another version of Sluice; add --restart to "
        "give up what is kept there");
  }
  return manifest;
}

// The names of all files that a run makes in its directory, in the order in
// which they are removed: a run that is killed meanwhile can be run again. What
// says that the store has a job goes before the store, its log after it, and
// the manifest last: without it, a directory belongs to no run.
std::vector<std::string> NamesOfRun() {
  std::vector<std::string> names = {kInput, kAccepted, kStore};
  names.insert(names.end(), std::begin(kStoreFiles), std::end(kStoreFiles));
  names.push_back(kManifest);
  return names;
}

// kInvalidArgument if a run would overwrite or remove files of a directory
// without a manifest.
absl::Status CheckFree(const fs::path& directory) {
  std::error_code error;
  if (fs::exists(directory / kStore, error)) {
    return InvalidArgument(directory.string(),
                           " holds jobs that no `sluice run` made; say another "
                           "--state-dir");
  }
  const std::vector<std::string> names = NamesOfRun();
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (!absl::StartsWith(name, kUploadPrefix) &&
        std::find(names.begin(), names.end(), name) == names.end()) {
      continue;
    }
    return InvalidArgument(
        entry.path().string(),
        " was made by no `sluice run`, and one that keeps its answers in ",
        directory.string(),
        " would write over it; move it away, or say another --state-dir");
  }
  return absl::OkStatus();
}

// kInvalidArgument if a directory's manifest is a foreign file. A damaged one
// is not foreign.
absl::Status CheckManifestIsRuns(const fs::path& directory) {
  const fs::path path = directory / kManifest;
  std::ifstream in(path, std::ios::binary);
  const auto manifest = nlohmann::json::parse(in, nullptr, false);
  if (manifest.is_discarded() ||
      (manifest.is_object() && manifest.contains("sluice_run"))) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      path.string(),
      " was made by no `sluice run`; move it away, or say another "
      "--state-dir");
}

// kInvalidArgument if `file`, which `flag` names, is one of a run's own files
// in `directory`.
absl::Status CheckIsNotRuns(const fs::path& directory, const std::string& file,
                            absl::string_view flag) {
  if (file.empty() || file == "-") return absl::OkStatus();
  std::error_code error;
  fs::path path = fs::weakly_canonical(file, error);
  if (error) path = file;
  const std::vector<std::string> names = NamesOfRun();
  if (std::find(names.begin(), names.end(), path.filename().string()) ==
          names.end() ||
      !fs::equivalent(path.parent_path(), directory, error)) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      flag, " ", file, " lies in ", directory.string(),
      ", where a run keeps a file of its own by this name; move it away, or "
      "say another --state-dir");
}

template <typename Json>
std::string ManifestText(const Json& manifest) {
  return manifest.dump(2, ' ', false,
                       nlohmann::json::error_handler_t::replace) +
         "\n";
}

// Lists the differences of two runs for people.
std::string Differences(const RunState::Facts& earlier,
                        const RunState::Facts& now) {
  std::vector<std::string> differences;
  RunState::Facts names = now;
  names.insert(earlier.begin(), earlier.end());
  const auto value = [](const RunState::Facts& facts, const std::string& name) {
    const auto it = facts.find(name);
    return it == facts.end() || it->second.empty() ? "not given" : it->second;
  };
  for (const auto& [name, ignored] : names) {
    const std::string before = value(earlier, name);
    const std::string after = value(now, name);
    if (before == after) continue;
    differences.push_back(
        absl::StartsWith(name, "--")
            ? absl::StrCat(name, " was ", before, " and is ", after)
            : absl::StrCat(name, " is another one"));
  }
  return absl::StrJoin(differences, "; ");
}

}  // namespace

absl::StatusOr<std::unique_ptr<TemporaryStateDir>> TemporaryStateDir::Make(
    StopSignals* signals, const std::string& flag) {
  std::error_code error;
  const fs::path tmp = fs::temp_directory_path(error);
  std::string name = ((error ? "/tmp" : tmp) / "sluice-run-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    return absl::Status(absl::ErrnoToStatusCode(errno),
                        absl::StrCat("can't make a directory ", name,
                                     "; say where with ", flag));
  }
  return std::make_unique<TemporaryStateDir>(signals, name);
}

TemporaryStateDir::TemporaryStateDir(StopSignals* signals, fs::path path)
    : path_(std::move(path)), at_end_(signals, [this] { Remove(); }) {}

TemporaryStateDir::~TemporaryStateDir() { Remove(); }

void TemporaryStateDir::Remove() const {
  std::error_code error;
  // By another name, nobody finds it to make files there.
  fs::path gone = path_;
  gone += "-gone";
  fs::rename(path_, gone, error);
  // A signal may end the process while the destructor is at it.
  constexpr int kMaxTries = 10;
  for (const fs::path& path : {gone, path_}) {
    for (int i = 0; i < kMaxTries && fs::exists(path, error); ++i) {
      fs::remove_all(path, error);
    }
  }
}

absl::StatusOr<std::unique_ptr<RunState>> RunState::Open(const Options& options,
                                                         Facts facts) {
  std::unique_ptr<RunState> state(new RunState(options.signals));
  state->keeps_input_ = options.keep_input;
  if (!options.state_dir.empty() || options.output->folder_writable()) {
    SLUICE_RETURN_IF_ERROR(state->OpenDurable(options, std::move(facts)));
    return state;
  }
  SLUICE_ASSIGN_OR_RETURN(
      state->temporary_,
      TemporaryStateDir::Make(options.signals, "--state-dir"));
  state->path_ = state->temporary_->path();
  state->input_ = options.input;
  if (!options.keep_input) return state;
  SLUICE_RETURN_IF_ERROR(state->ReadInput(options, &facts));
  if (state->copy_ != nullptr) SLUICE_RETURN_IF_ERROR(state->copy_->Commit());
  state->copy_.reset();
  return state;
}

absl::Status RunState::OpenDurable(const Options& options, Facts facts) {
  named_ = !options.state_dir.empty();
  path_ = named_ ? fs::path(options.state_dir)
                 : fs::path(options.output->target() + ".sluice");
  std::error_code error;
  const bool exists = fs::exists(path_, error);
  if (exists && !fs::is_directory(path_, error)) {
    return InvalidArgument(
        path_.string(),
        ", where answers are kept until the output is whole, is no directory; "
        "move it away, or say where with --state-dir");
  }
  SLUICE_RETURN_IF_ERROR(CheckIsNotRuns(path_, options.input, "--input"));
  SLUICE_RETURN_IF_ERROR(
      CheckIsNotRuns(path_, options.output->target(), "--output"));
  const bool earlier_run = fs::exists(path_ / kManifest, error);
  if (earlier_run) {
    SLUICE_RETURN_IF_ERROR(CheckManifestIsRuns(path_));
  } else if (exists) {
    SLUICE_RETURN_IF_ERROR(CheckFree(path_));
  }
  owned_ = !exists || earlier_run;
  if (earlier_run && options.restart) SLUICE_RETURN_IF_ERROR(Clear());
  SLUICE_ASSIGN_OR_RETURN(const nlohmann::json manifest, ReadManifest(path_));
  if (!manifest.is_null()) {
    previous_ = ManifestText(manifest);
    resumes_ = true;  // existing files stay until known to be of no use
  }
  made_ = !fs::exists(path_, error);
  if (const absl::Status made = MakeDirectory("--state-dir", path_);
      !made.ok()) {
    return absl::InvalidArgumentError(made.message());
  }
  // Others may not read its prompts and answers.
  if (made_) fs::permissions(path_, fs::perms::owner_all, error);
  SLUICE_RETURN_IF_ERROR(ReadInput(options, &facts));
  facts_ = std::move(facts);
  if (!manifest.is_null()) {
    Facts earlier;
    for (const auto& [name, value] : manifest["facts"].items()) {
      earlier[name] = value.is_string() ? value.get<std::string>() : "";
    }
    if (earlier != facts_ && !manifest.value("finished", false)) {
      return InvalidArgument(
          path_.string(),
          " keeps the answers of a run that was not ended and was not this "
          "one: ",
          Differences(earlier, facts_),
          ". Run it as before to go on with it, or add --restart to give its "
          "answers up and begin anew");
    }
    resumes_ = earlier == facts_ && fs::exists(path_ / kStore, error);
  }
  nlohmann::json id(facts_);
  const std::string text =
      id.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  request_id_ = absl::StrCat("sluice-run-", HexHash(text));
  return TakePlace();
}

absl::Status RunState::TakePlace() {
  // Reading a pipe may have taken long, so the manifest is read again.
  SLUICE_ASSIGN_OR_RETURN(const nlohmann::json manifest, ReadManifest(path_));
  const std::string now = manifest.is_null() ? "" : ManifestText(manifest);
  if (now != previous_) {
    return FailedPrecondition(
        "another run began meanwhile to keep its answers in ", path_.string(),
        "; wait for its end, or write to another output");
  }
  SLUICE_RETURN_IF_ERROR(WriteManifest());
  ours_ = true;
  // The copy comes now: without a manifest, its name may be a user's file.
  if (copy_ == nullptr) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(copy_->Commit());
  copy_.reset();
  return absl::OkStatus();
}

absl::Status RunState::ReadInput(const Options& options, Facts* facts) {
  std::string& digest = (*facts)["the input"];
  SLUICE_ASSIGN_OR_RETURN(const FileDescriptor fd,
                          ::sluice::OpenInput(options.input));
  struct stat info {};
  const bool again = options.input != "-" && fstat(fd.get(), &info) == 0 &&
                     S_ISREG(info.st_mode);
  absl::StatusOr<std::string> read;
  if (again) {
    input_ = options.input;
    std::error_code error;
    input_time_ = fs::last_write_time(input_, error);
    read = DigestOf(fd.get(), options.input, nullptr);
  } else {
    read = CopyInput(fd.get(), options.input);
  }
  if (read.ok()) digest = *read;
  return read.status();
}

// Reads to the end and returns the digest; `copy` gets the bytes, too.
absl::StatusOr<std::string> RunState::DigestOf(int fd, const std::string& name,
                                               OutputFile* copy) {
  ContentHash hash;
  std::vector<char> buffer(kReadBytes);
  size_t bytes = 0;
  while (true) {
    SLUICE_ASSIGN_OR_RETURN(
        const size_t n,
        ::sluice::ReadInput(fd, name, buffer.data(), buffer.size(), *signals_));
    if (n == 0) break;
    bytes += n;
    const absl::string_view piece(buffer.data(), n);
    hash.Add(piece);
    if (copy != nullptr) SLUICE_RETURN_IF_ERROR(copy->Write(piece));
  }
  return absl::StrCat(bytes, " bytes, ", hash.Hex());
}

absl::StatusOr<std::string> RunState::CopyInput(int fd,
                                                const std::string& name) {
  input_ = (path_ / kInput).string();
  copied_input_ = true;
  SLUICE_ASSIGN_OR_RETURN(copy_, OutputFile::Plan(input_, "--state-dir"));
  SLUICE_RETURN_IF_ERROR(copy_->Open());
  SLUICE_ASSIGN_OR_RETURN(std::string digest, DigestOf(fd, name, copy_.get()));
  // A full disk is noticed here, before anything is changed.
  SLUICE_RETURN_IF_ERROR(copy_->Flush());
  return digest;
}

absl::Status RunState::WriteManifest() {
  const nlohmann::ordered_json manifest = {{"sluice_run", kManifestVersion},
                                           {"finished", finished_},
                                           {"facts", facts_}};
  return WriteOutputFile((path_ / kManifest).string(), "--state-dir",
                         ManifestText(manifest));
}

absl::Status RunState::Clear() {
  // The lock keeps another run from writing there meanwhile.
  SLUICE_RETURN_IF_ERROR(StateLock::Acquire(path_).status());
  Remove();
  return absl::OkStatus();
}

void RunState::Remove() {
  std::error_code error;
  // Files are removed by name, as others are not the run's.
  for (const std::string& name : NamesOfRun()) {
    fs::remove(path_ / name, error);
  }
  for (const char* name : {kInput, kManifest}) {
    fs::remove(path_ / absl::StrCat(name, ".sluice-partial"), error);
  }
  if (named_) return;
  if (owned_) {
    fs::remove_all(path_, error);
  } else {
    fs::remove(path_, error);
  }
}

RunState::~RunState() {
  if (path_.empty()) return;
  std::error_code error;
  copy_.reset();
  if (temporary_) return;
  if (resumes_ || has_job_ || finished_) return;
  if (ours_ && !previous_.empty()) {
    // The earlier run's manifest is put back, as this run made no job.
    WriteOutputFile((path_ / kManifest).string(), "--state-dir", previous_)
        .IgnoreError();
  } else if (ours_) {
    Remove();
  }
  if (made_) fs::remove(path_, error);  // if it is empty
}

absl::StatusOr<InputStream*> RunState::OpenInput() {
  SLUICE_ASSIGN_OR_RETURN(FileDescriptor fd, ::sluice::OpenInput(input_));
  stream_ = std::make_unique<InputStream>(std::move(fd), input_, signals_);
  return stream_.get();
}

absl::Status RunState::OnJobCreated() {
  has_job_ = true;
  stream_.reset();
  if (temporary_) return absl::OkStatus();
  std::error_code error;
  if (copied_input_) {
    if (!keeps_input_) fs::remove(input_, error);
  } else if (!resumes_ && fs::last_write_time(input_, error) != input_time_) {
    has_job_ = false;  // nothing of it is kept
    return FailedPrecondition(input_, " changed while it was read; run again");
  }
  return absl::OkStatus();
}

std::string RunState::OnStopped(const absl::StatusOr<v1::Job>& job,
                                const JobManager::Kept& begun) {
  if (job.ok() && job->counts().completed() == 0 && begun.requests == 0) {
    has_job_ = false;  // nothing of it is worth keeping
    return "nothing was answered yet";
  }
  const std::string on = absl::StrCat("kept in ", path_.string(),
                                      "; run the same command again to go on");
  if (!job.ok()) {
    const std::string unknown = absl::StrCat(
        "how much was answered can't be found out: ", job.status().message());
    return temporary_ ? unknown : absl::StrCat(unknown, "; all of it is ", on);
  }
  const std::string answers =
      absl::StrCat(job->counts().completed() + job->counts().failed(), " of ",
                   job->counts().total(), " answers are ");
  if (temporary_) {
    return absl::StrCat(answers,
                        "there, and none is kept: with a file as --output, or "
                        "--state-dir, they would be");
  }
  if (begun.requests == 0) return absl::StrCat(answers, on);
  return absl::StrCat(answers, on, "; of ", begun.requests,
                      begun.requests == 1 ? " more request, " : " more, ",
                      begun.tokens, " tokens are kept, too");
}

absl::Status RunState::Finish() {
  finished_ = true;
  if (temporary_) return absl::OkStatus();
  if (!named_) {
    Remove();
    return absl::OkStatus();
  }
  std::error_code error;
  if (copied_input_) fs::remove(input_, error);
  return WriteManifest();
}

}  // namespace sluice
