#include "proto/access_table.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sluice/v1/cluster.pb.h"
#include "sluice/v1/jobs.pb.h"
#include "sluice/v1/pipeline.pb.h"
#include "sluice/v1/weights.pb.h"

namespace sluice {
namespace {

TEST(AccessTableTest, HasOneRuleForEachMethodOfOurServices) {
  std::vector<std::string> methods, rules;
  for (const google::protobuf::FileDescriptor* file :
       {v1::Job::descriptor()->file(), v1::ClusterState::descriptor()->file(),
        v1::WorkerMessage::descriptor()->file(),
        v1::PieceRange::descriptor()->file()}) {
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
