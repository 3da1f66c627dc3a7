#include "common/host/start_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <new>
#include <system_error>

namespace sluice {
namespace {

using ::testing::HasSubstr;

TEST(StartCheckTest, PassesWhereThereIsEnough) {
  EXPECT_TRUE(CheckStart(4, 1 << 20).ok());
}

TEST(StartCheckTest, SaysWhatLacks) {
  // The address space asked for is more than a processor has.
  const absl::Status status = CheckStart(1, size_t{1} << 60);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("ulimit -v"));
}

TEST(RunGuardedTest, WhatTheSystemRefusesIsAStatus) {
  EXPECT_TRUE(RunGuarded([] { return absl::OkStatus(); }).ok());
  EXPECT_TRUE(absl::IsNotFound(
      RunGuarded([] { return absl::NotFoundError("as it is"); })));
  const absl::Status memory =
      RunGuarded([]() -> absl::Status { throw std::bad_alloc(); });
  EXPECT_THAT(std::string(memory.message()), HasSubstr("memory"));
  const absl::Status threads = RunGuarded([]() -> absl::Status {
    throw std::system_error(
        std::make_error_code(std::errc::resource_unavailable_try_again));
  });
  EXPECT_THAT(std::string(threads.message()), HasSubstr("threads"));
  EXPECT_THROW(
      RunGuarded([]() -> absl::Status {
        throw std::system_error(std::make_error_code(std::errc::io_error));
      }).IgnoreError(),
      std::system_error);
}

}  // namespace
}  // namespace sluice
