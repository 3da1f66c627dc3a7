#include "proto/access_table.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sluice/v1/cluster.pb.h"
#include "sluice/v1/errors.pb.h"
#include "sluice/v1/jobs.pb.h"
#include "sluice/v1/pipeline.pb.h"
#include "sluice/v1/trace.pb.h"
#include "sluice/v1/weights.pb.h"
#include "tests/support/test_paths.h"

namespace sluice {
namespace {

TEST(AccessTableTest, HasOneRuleForEachMethodOfOurServices) {
  // Has each file's descriptor linked.
  for (const google::protobuf::Descriptor* message :
       {v1::Job::descriptor(), v1::ClusterState::descriptor(),
        v1::WorkerMessage::descriptor(), v1::PieceRange::descriptor(),
        v1::Trace::descriptor(), v1::ErrorStatus::descriptor()}) {
    ASSERT_NE(message, nullptr);
  }
  std::vector<std::string> methods, rules;
  for (const auto& entry : std::filesystem::directory_iterator(
           TestsDir() + "/../proto/sluice/v1")) {
    const std::string name =
        absl::StrCat("sluice/v1/", entry.path().filename().string());
    const google::protobuf::FileDescriptor* const file =
        google::protobuf::DescriptorPool::generated_pool()->FindFileByName(
            name);
    ASSERT_NE(file, nullptr) << name << ": add a message of it above";
    for (int s = 0; s < file->service_count(); ++s) {
      const auto* const service = file->service(s);
      for (int m = 0; m < service->method_count(); ++m) {
        methods.push_back(service->full_name() + "/" +
                          service->method(m)->name());
      }
    }
  }
  for (const AccessRule& rule : AccessRules()) rules.emplace_back(rule.method);
  EXPECT_THAT(rules, testing::UnorderedElementsAreArray(methods));
  EXPECT_GE(methods.size(), 15u);
}

TEST(AccessTableTest, AMethodWithoutARuleIsForMachinesOnly) {
  EXPECT_EQ(ScopeOf("sluice.v1.JobService/GetJob"), Scope::kRead);
  EXPECT_EQ(ScopeOf("sluice.v1.JobService/New"), Scope::kCluster);
}

}  // namespace
}  // namespace sluice
