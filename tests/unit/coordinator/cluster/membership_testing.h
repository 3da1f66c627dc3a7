#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/cluster/membership.h"
#include "tests/unit/coordinator/dispatch/dispatch_testing.h"

namespace sluice {

class RecordingStream : public WorkerStream {
 public:
  void Accept() override { accepted = true; }
  bool Send(v1::CoordinatorMessage message) override {
    if (full || !broken.ok()) return false;
    sent.push_back(std::move(message));
    return true;
  }
  void Break(const absl::Status& reason) override {
    if (broken.ok()) broken = reason;
  }

  bool accepted = false;
  bool full = false;
  absl::Status broken;
  std::vector<v1::CoordinatorMessage> sent;
};

class MembershipTest : public testing::Test {
 protected:
  MembershipTest() {
    options_.num_layers = 4;
    options_.max_model_len = 100;
    options_.min_workers = 2;
    options_.clock = &clock_;
  }

  Membership& members() {
    if (!members_) members_.emplace(options_);
    return *members_;
  }

  static v1::WorkerMessage Register(const std::string& name) {
    v1::WorkerMessage message;
    v1::Register* info = message.mutable_register_();
    info->set_name(name);
    info->set_link_address(absl::StrCat("link:", name));
    info->set_model_fingerprint("f00d");
    info->set_version("1");
    SetFile(info->mutable_model_content(), "config.json", "c");
    return message;
  }

  // Adds a file of one byte with this hash.
  static void SetFile(v1::ModelContent* content, const std::string& name,
                      const std::string& hash) {
    v1::ModelContent::File* file = nullptr;
    for (v1::ModelContent::File& f : *content->mutable_files()) {
      if (f.name() == name) file = &f;
    }
    if (file == nullptr) file = content->add_files();
    file->set_name(name);
    file->set_bytes(1);
    file->set_hash(hash);
  }

  std::shared_ptr<RecordingStream> Attach(int64_t id,
                                          v1::WorkerMessage message) {
    auto stream = std::make_shared<RecordingStream>();
    members().OnOpened(WorkerId(id), stream);
    members().OnMessage(WorkerId(id), std::move(message));
    return stream;
  }
  std::shared_ptr<RecordingStream> Attach(int64_t id, const std::string& name) {
    return Attach(id, Register(name));
  }

  // Lets the settle time pass and Advance check the clock.
  void Settle() {
    clock_.Advance(options_.timeouts.settle_time);
    members().Advance();
  }

  void Ready(int64_t id, int64_t kv_pages = 50, int32_t page_tokens = 16,
             int64_t epoch = 0, bool kv_by_need = true,
             const WindowRoom& window = {}) {
    v1::WorkerMessage message;
    v1::StageReady* ready = message.mutable_stage_ready();
    ready->set_epoch(epoch > 0 ? epoch : members().plan().epoch().value());
    ready->set_kv_pages(kv_pages);
    ready->set_kv_by_need(kv_by_need);
    ready->set_page_tokens(page_tokens);
    ready->set_window_pages(window.pages);
    ready->set_window_pages_each(window.pages_each);
    members().OnMessage(WorkerId(id), std::move(message));
    members().Advance();
  }

  void Failed(int64_t id, absl::StatusCode code, const std::string& text,
              int64_t epoch = 0) {
    v1::WorkerMessage message;
    v1::StageFailed* failed = message.mutable_stage_failed();
    failed->set_epoch(epoch > 0 ? epoch : members().plan().epoch().value());
    failed->set_code(static_cast<int>(code));
    failed->set_message(text);
    members().OnMessage(WorkerId(id), std::move(message));
    members().Advance();
  }

  // Answers for a worker: it has prepared the stage asked for, and can reach
  // the peers asked for, or `error`.
  void AnswerPreparation(int64_t id, const RecordingStream& stream,
                         const std::string& error = "") {
    const auto messages = stream.sent;  // answers may lead to more
    if (messages.empty()) return;
    for (const v1::CoordinatorMessage& message : messages) {
      if (message.has_assign_stage() && message.assign_stage().prepare()) {
        Ready(id, 50, 16, message.assign_stage().epoch());
      }
      if (!message.has_reach_links()) continue;
      v1::WorkerMessage answer;
      answer.mutable_links_reached()->set_epoch(message.reach_links().epoch());
      auto* link = answer.mutable_links_reached()->add_links();
      link->set_peer(message.reach_links().peers(0).name());
      link->set_error(error);
      members().OnMessage(WorkerId(id), std::move(answer));
      members().Advance();
    }
  }

  // Sends a heartbeat with the worker's activity.
  void Beat(int64_t id, v1::Activity::Kind kind = v1::Activity::KIND_NONE,
            uint64_t marks = 0, int64_t last_step_out = 0) {
    v1::WorkerMessage message;
    v1::Activity* activity = message.mutable_heartbeat()->mutable_activity();
    activity->set_kind(kind);
    activity->set_epoch(members().plan().epoch().value());
    activity->set_marks(marks);
    activity->set_last_step_out(last_step_out);
    members().OnMessage(WorkerId(id), std::move(message));
  }

  std::string State(int64_t id) {
    v1::ClusterState state;
    members().Describe(&state);
    for (const v1::WorkerInfo& info : state.workers()) {
      if (info.id() == id) return v1::WorkerState_Name(info.state());
    }
    return "";
  }

  ManualClock clock_;
  ClusterOptions options_;
  std::optional<Membership> members_;
};

}  // namespace sluice
