#include "tests/unit/coordinator/jobs/job_test_util.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/text/utf8.h"

namespace sluice {

TempDir::TempDir() {
  std::string name = testing::TempDir() + "sluice-jobs-XXXXXX";
  EXPECT_NE(mkdtemp(name.data()), nullptr);
  path_ = name;
}

TempDir::~TempDir() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

absl::StatusOr<std::vector<int32_t>> ByteTokenizer::Encode(
    absl::string_view text, bool add_special_tokens) const {
  if (FindInvalidUtf8(text)) {
    return absl::InvalidArgumentError("not valid UTF-8");
  }
  std::vector<int32_t> ids;
  if (add_special_tokens) ids.push_back(1);
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c) + 3);
  return ids;
}

std::string ByteTokenizer::Decode(std::span<const int32_t> ids,
                                  bool skip_special_tokens) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (id >= 3) {
      bytes.push_back(static_cast<char>(id - 3));
    } else if (!skip_special_tokens) {
      bytes += IdToToken(id);
    }
  }
  std::string text;
  AppendUtf8Lossy(bytes, true, &text);
  return text;
}

namespace {

// Gives out nothing before the end: that is allowed too.
class ByteStream : public DecodeStream {
 public:
  ByteStream(const Tokenizer* tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}
  void Append(int32_t token, std::string*) override { ids_.push_back(token); }
  void Flush(std::string* out) override {
    *out += tokenizer_->Decode(ids_, skip_special_tokens_);
    ids_.clear();
  }

 private:
  const Tokenizer* const tokenizer_;
  const bool skip_special_tokens_;
  std::vector<int32_t> ids_;
};

}  // namespace

std::unique_ptr<DecodeStream> ByteTokenizer::NewDecodeStream(
    bool skip_special_tokens) const {
  return std::make_unique<ByteStream>(this, skip_special_tokens);
}

std::optional<int32_t> ByteTokenizer::TokenToId(absl::string_view token) const {
  if (token == "<s>") return 1;
  if (token == "</s>") return 2;
  return std::nullopt;
}

std::string ByteTokenizer::IdToToken(int32_t id) const {
  if (id == 0) return "<unk>";
  if (id == 1) return "<s>";
  if (id == 2) return "</s>";
  return absl::StrCat("<0x", absl::Hex(id - 3, absl::kZeroPad2), ">");
}

absl::Time ManualClock::Now() const {
  MutexLock lock(&mu_);
  return absl::FromUnixSeconds(1'700'000'000) + passed_;
}

absl::Duration ManualClock::Monotonic() const {
  MutexLock lock(&mu_);
  return passed_;
}

void ManualClock::Advance(absl::Duration by) {
  MutexLock lock(&mu_);
  passed_ += by;
}

class TestMetrics::Metric : public Counter, public Gauge, public Histogram {
 public:
  void Add(double amount) override {
    MutexLock lock(&mu_);
    value_ += amount;
  }
  void Set(double value) override {
    MutexLock lock(&mu_);
    value_ = value;
  }
  void Observe(double value) override { Add(1); }
  double value() const {
    MutexLock lock(&mu_);
    return value_;
  }

 private:
  mutable Mutex mu_;
  double value_ ABSL_GUARDED_BY(mu_) = 0;
};

namespace {

std::string KeyOf(const std::string& name, const MetricLabels& labels) {
  std::string key = name;
  for (const auto& [label, value] : labels) {
    absl::StrAppend(&key, "{", label, "=", value, "}");
  }
  return key;
}

}  // namespace

TestMetrics::Metric* TestMetrics::Get(const std::string& name,
                                      const MetricLabels& labels) {
  const std::string key = KeyOf(name, labels);
  MutexLock lock(&mu_);
  auto& metric = metrics_[key];
  if (!metric) metric = std::make_unique<Metric>();
  return metric.get();
}

TestMetrics::TestMetrics() = default;
TestMetrics::~TestMetrics() = default;

Counter* TestMetrics::GetCounter(const std::string& name, const std::string&,
                                 const MetricLabels& labels) {
  return Get(name, labels);
}

Gauge* TestMetrics::GetGauge(const std::string& name, const std::string&,
                             const MetricLabels& labels) {
  return Get(name, labels);
}

Histogram* TestMetrics::GetHistogram(const std::string& name,
                                     const std::string&,
                                     const std::vector<double>&,
                                     const MetricLabels& labels) {
  return Get(name, labels);
}

void TestMetrics::Remove(const std::string& name, const MetricLabels& labels) {
  MutexLock lock(&mu_);
  metrics_.erase(KeyOf(name, labels));
}

double TestMetrics::Value(const std::string& key) const {
  MutexLock lock(&mu_);
  const auto it = metrics_.find(key);
  return it == metrics_.end() ? -1 : it->second->value();
}

TestJobs::TestJobs() {
  options.state_dir = dir.path() / "state";
  options.served_model = "test-model";
  options.max_model_len = 512;
  options.default_max_tokens = 16;
  options.tokenizer = &tokenizer;
  options.clock = &clock;
  options.metrics = &metrics;
}

absl::Status TestJobs::Open() {
  SLUICE_ASSIGN_OR_RETURN(manager, JobManager::Create(options));
  return absl::OkStatus();
}

void TestJobs::Reopen() {
  Close();
  ASSERT_TRUE(Open().ok());
}

absl::StatusOr<v1::Job> TestJobs::Submit(absl::string_view input,
                                         const v1::JobSpec& spec) {
  SLUICE_ASSIGN_OR_RETURN(auto upload, manager->BeginUpload(spec));
  SLUICE_RETURN_IF_ERROR(upload->Append(input));
  return upload->Commit();
}

Generation TestJobs::Answer(const Request& request) {
  Generation generation;
  generation.text = "answer to " + request.custom_id;
  generation.tokens = {68, 69};
  generation.generated = 2;
  generation.finish_reason = FinishReason::kLength;
  return generation;
}

int TestJobs::AnswerAll() {
  int answered = 0;
  while (true) {
    auto requests = manager->TakeRequests(64);
    EXPECT_TRUE(requests.ok()) << requests.status();
    if (!requests.ok() || requests->empty()) return answered;
    for (const Request& request : *requests) {
      manager->Complete(request, Answer(request));
      ++answered;
    }
  }
}

v1::Job TestJobs::Get(const std::string& id) {
  auto job = manager->GetJob(id);
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? *job : v1::Job();
}

v1::Job TestJobs::WaitForEnd(const std::string& id) {
  return WaitFor(id,
                 [](const v1::Job& job) { return IsTerminal(job.state()); });
}

v1::Job TestJobs::WaitFor(
    const std::string& id,
    const std::function<bool(const v1::Job&)>& condition) {
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (true) {
    v1::Job job = Get(id);
    if (condition(job) || testing::Test::HasFailure()) return job;
    EXPECT_LT(absl::Now(), deadline) << "waited in vain: " << job.DebugString();
    // Others may wait too, and take the news away.
    manager->WaitForChanges(absl::Milliseconds(20));
  }
}

std::vector<nlohmann::json> TestJobs::Results(const std::string& id) {
  std::vector<nlohmann::json> lines;
  int64_t offset = 0;
  while (true) {
    auto chunk = manager->ReadResults(id, offset, 1 << 20);
    EXPECT_TRUE(chunk.ok()) << chunk.status();
    if (!chunk.ok() || chunk->results().empty()) return lines;
    for (const v1::Result& result : chunk->results()) {
      EXPECT_EQ(result.index(), offset++);
      lines.push_back(nlohmann::json::parse(result.line()));
      EXPECT_EQ(result.is_error(), !lines.back()["error"].is_null());
    }
    EXPECT_EQ(chunk->next_offset(), offset);
  }
}

std::string Prompts(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    absl::StrAppend(&lines, "{\"prompt\": \"p", i, "\"}\n");
  }
  return lines;
}

}  // namespace sluice
