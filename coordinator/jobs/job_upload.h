#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/content_hash.h"
#include "common/text/csv.h"
#include "common/threads/mutex.h"
#include "coordinator/jobs/job_manager.h"
#include "coordinator/jobs/requests/line_splitter.h"
#include "coordinator/jobs/requests/request_parser.h"
#include "coordinator/jobs/requests/table_rows.h"
#include "coordinator/jobs/tenant_quotas.h"
#include "coordinator/store/custom_id_set.h"
#include "coordinator/store/job_store.h"

namespace sluice {

// An upload of an existing job, which only compares the input.
// Thread-compatible.
class RepeatedUpload : public JobManager::Upload {
 public:
  // `content` is the job's hash; "" matches any.
  RepeatedUpload(std::string content,
                 std::function<absl::StatusOr<v1::Job>(bool same)> answer)
      : content_(std::move(content)), answer_(std::move(answer)) {}

  absl::Status Append(absl::string_view data) override {
    hash_.Add(data);
    return absl::OkStatus();
  }
  size_t unfinished_bytes() const override { return 0; }
  absl::StatusOr<v1::Job> Commit() override {
    return answer_(content_.empty() || content_ == hash_.Bytes());
  }

 private:
  const std::string content_;
  const std::function<absl::StatusOr<v1::Job>(bool same)> answer_;
  ContentHash hash_;
};

// One upload: lines go through the parser to the store, some thousand at a
// time; bad ones become results at once. Thread-compatible.
class JobUpload : public JobManager::Upload {
 public:
  struct Options {
    JobId job;
    v1::InputFormat format = v1::INPUT_FORMAT_JSONL;
    v1::TableInput table;  // of CSV
    int64_t max_line_bytes = 0;
    int64_t max_requests = 0;
    std::string tenant;
    // Rows are stored only if they fit its quota. Both must outlive the upload.
    TenantQuotas* quotas = nullptr;
    JobStore* store = nullptr;
    // Held while a long line is parsed, which takes several times its size.
    // Shared by all uploads; must outlive them.
    Mutex* long_line = nullptr;
    // Makes the job public when all rows are stored.
    std::function<absl::StatusOr<v1::Job>(JobId, const JobTotals&)> publish;
    // Removes the stored rows of an upload that was not committed.
    std::function<void(JobId)> abandon;
    // Whether no client waits for the job any more; may be null.
    std::function<bool()> stopped;
  };
  // The status of an upload that was stopped.
  static absl::Status Stopped();
  JobUpload(Options options, RequestParser parser,
            std::unique_ptr<CustomIdSet> custom_ids);
  ~JobUpload() override;

  absl::Status Append(absl::string_view data) override;
  size_t unfinished_bytes() const override {
    return is_table() ? rows_.unfinished_bytes() : lines_.unfinished_bytes();
  }
  absl::StatusOr<v1::Job> Commit() override;

 private:
  bool is_table() const { return options_.format == v1::INPUT_FORMAT_CSV; }
  absl::Status OnLine(absl::string_view text, bool too_long);
  absl::Status OnRow(const CsvRow& row);
  RequestParser::Line ParseRow(const CsvRow& row);
  // Calls `parse`; of a long text in turn with others'.
  RequestParser::Line Parse(size_t bytes,
                            const std::function<RequestParser::Line()>& parse);
  LineError TooLong(absl::string_view what) const;
  // Counts the next line or row, or says why there may be none.
  absl::Status Count();
  absl::Status Add(RequestParser::Line line);
  absl::Status CheckCustomId(RequestParser::Line* line);
  absl::Status Store();  // stores the buffered rows
  absl::StatusOr<v1::Job> Finish();

  const Options options_;
  const RequestParser parser_;
  const std::unique_ptr<CustomIdSet> custom_ids_;
  LineSplitter lines_;
  CsvSplitter rows_;
  std::optional<TableRows> table_;  // from the header on
  ContentHash hash_;
  JobTotals totals_;
  int64_t raw_ = 0;  // requests without a chat template
  std::vector<StoredRequest> requests_;
  std::vector<StoredResult> bad_lines_;
  size_t buffered_bytes_ = 0;
  absl::Status status_;  // the first error; it stays
  bool published_ = false;
};

}  // namespace sluice
