#include "runtime/profile/profile_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/codec/profile_json.h"
#include "common/threads/thread.h"
#include "tests/support/sample_profile.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

class ProfileCacheTest : public ::testing::Test {
 protected:
  ProfileCacheTest() {
    options_.machine.threads = 2;
    options_.machine.host_memory_bytes = uint64_t{8} << 30;
    options_.cache_dir = dir_ / "made/for/it";
    options_.measure = [this](const ProfilerOptions& machine,
                              const ProfileProgress& progress,
                              const std::atomic<bool>* cancelled) {
      ++measured_;
      if (progress) progress("all", 0.5);
      MachineProfile profile = SampleCpuProfile();
      profile.name = "measurement " + std::to_string(measured_);
      absl::Status status = CheckNotCancelled(cancelled);
      if (status.ok()) status = SetCapacities(machine, &profile);
      return status.ok() ? absl::StatusOr<MachineProfile>(profile) : status;
    };
  }

  MachineProfile Get() {
    auto profile = CachedProfile(options_, nullptr, nullptr);
    EXPECT_TRUE(profile.ok()) << profile.status();
    return profile.value_or(MachineProfile());
  }
  // The one file in the cache.
  std::string File() const {
    std::vector<std::string> files;
    for (const auto& entry :
         std::filesystem::directory_iterator(options_.cache_dir)) {
      files.push_back(entry.path().string());
    }
    EXPECT_EQ(files.size(), 1u);
    return files.empty() ? "" : files[0];
  }

  const TempDir dir_ = TempDir::OnDisk();
  ProfileCacheOptions options_;
  std::atomic<int> measured_{0};
};

TEST_F(ProfileCacheTest, MeasuresOnce) {
  const MachineProfile first = Get();
  EXPECT_EQ(first.name, "measurement 1");
  EXPECT_THAT(first.fingerprint, HasSubstr("threads 2"));
  EXPECT_EQ(Get(), first);
  EXPECT_EQ(measured_, 1);
  EXPECT_THAT(File(), HasSubstr("/sluice-profile-"));
}

TEST_F(ProfileCacheTest, RefreshesWhenAsked) {
  Get();
  options_.refresh = true;
  EXPECT_EQ(Get().name, "measurement 2");
  options_.refresh = false;
  EXPECT_EQ(Get().name, "measurement 2");
}

TEST_F(ProfileCacheTest, CapacitiesAreThoseOfNow) {
  EXPECT_EQ(Get().host_memory_bytes, uint64_t{8} << 30);
  options_.machine.host_memory_bytes = uint64_t{5} << 30;
  const MachineProfile now = Get();
  EXPECT_EQ(now.host_memory_bytes, uint64_t{5} << 30);
  EXPECT_EQ(now.disk_bytes, 0u);
  EXPECT_EQ(measured_, 1);
  options_.machine.disk_dir = dir_.path();
  options_.machine.disk_bytes = uint64_t{7} << 30;
  EXPECT_EQ(Get().disk_bytes, uint64_t{7} << 30);  // another machine
  EXPECT_EQ(measured_, 2);
}

TEST_F(ProfileCacheTest, AnotherMachineIsMeasured) {
  Get();
  options_.machine.threads = 1;
  EXPECT_EQ(Get().name, "measurement 2");
  options_.machine.threads = 2;  // and the first is still known
  EXPECT_EQ(Get().name, "measurement 1");
}

TEST_F(ProfileCacheTest, WhatCannotBeReadIsMeasuredAgain) {
  const MachineProfile first = Get();
  const std::string file = File();
  const std::string good = ProfileToJson(first);
  MachineProfile foreign = first;
  foreign.fingerprint = "of another";
  MachineProfile device = SampleProfile();
  device.fingerprint = first.fingerprint;
  int times = 1;
  for (const std::string& bad :
       {std::string(), std::string("{"), good.substr(0, good.size() / 2),
        std::string("{\"version\": 99}"), ProfileToJson(foreign),
        ProfileToJson(device)}) {
    std::ofstream(file, std::ios::trunc) << bad;
    EXPECT_EQ(Get().name, "measurement " + std::to_string(++times));
    // The new measurement is kept.
    EXPECT_EQ(Get().name, "measurement " + std::to_string(times));
    EXPECT_EQ(File(), file);
  }
}

TEST_F(ProfileCacheTest, ADisturbedMeasurementIsNotKeptForGood) {
  const auto measure = options_.measure;
  options_.measure = [&](const auto&... arguments) {
    absl::StatusOr<MachineProfile> profile = measure(arguments...);
    profile->disturbed = measured_ == 1;
    return profile;
  };
  const auto back = [&](std::chrono::minutes time) {
    std::filesystem::last_write_time(
        File(), std::filesystem::file_time_type::clock::now() - time);
  };
  EXPECT_TRUE(Get().disturbed);
  back(std::chrono::minutes(50));
  EXPECT_EQ(Get().name, "measurement 1");
  back(std::chrono::minutes(70));
  EXPECT_EQ(Get().name, "measurement 2");
  back(std::chrono::minutes(70));  // a good one stays
  EXPECT_EQ(Get().name, "measurement 2");
}

TEST_F(ProfileCacheTest, DoesWithoutAPlaceToKeepIt) {
  options_.cache_dir = "";
  EXPECT_EQ(Get().name, "measurement 1");
  EXPECT_EQ(Get().name, "measurement 2");
  // A file where the directory should be.
  std::ofstream(dir_ / "file") << "x";
  options_.cache_dir = dir_ / "file";
  EXPECT_EQ(Get().name, "measurement 3");
}

TEST_F(ProfileCacheTest, ErrorsAreNotKept) {
  std::atomic<bool> cancelled{true};
  EXPECT_EQ(CachedProfile(options_, nullptr, &cancelled).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(Get().name, "measurement 2");
  options_.machine.threads = 0;
  EXPECT_EQ(CachedProfile(options_, nullptr, nullptr).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ProfileCacheTest, OneMeasuresForAll) {
  std::vector<MachineProfile> found(4);
  std::vector<Thread> threads;
  for (MachineProfile& profile : found) {
    threads.emplace_back("reader", [&] { profile = Get(); });
  }
  threads.clear();
  EXPECT_EQ(measured_, 1);
  for (const MachineProfile& profile : found) {
    EXPECT_EQ(profile.name, "measurement 1");
  }
}

TEST_F(ProfileCacheTest, ProgressIsPassedOn) {
  std::vector<double> shares;
  ASSERT_TRUE(
      CachedProfile(
          options_,
          [&](absl::string_view, double share) { shares.push_back(share); },
          nullptr)
          .ok());
  EXPECT_THAT(shares, testing::ElementsAre(0.5));
}

TEST(SetCapacitiesTest, TheDeviceMustBeTheSame) {
  ProfilerOptions machine;
  machine.threads = 3;
  machine.host_memory_bytes = 1 << 30;
  MachineProfile p = SampleProfile();
  EXPECT_THAT(std::string(SetCapacities(machine, &p).message()),
              HasSubstr("--device is cpu"));
  machine.device.backend = BackendKind::kCpuDiscrete;
  machine.device_memory_bytes = 1 << 20;
  ASSERT_TRUE(SetCapacities(machine, &p).ok());
  EXPECT_EQ(p.threads, 3);
  EXPECT_EQ(p.device_memory_bytes, 1u << 20);
  MachineProfile cpu = SampleCpuProfile();
  EXPECT_EQ(SetCapacities(machine, &cpu).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(SetCapacitiesTest, WithoutRatesThereIsNoDiskTier) {
  ProfilerOptions machine;
  machine.host_memory_bytes = 1 << 30;
  machine.disk_dir = "/";
  machine.disk_bytes = 1 << 30;
  MachineProfile p = SampleCpuProfile();
  ASSERT_TRUE(SetCapacities(machine, &p).ok());
  EXPECT_EQ(p.disk_bytes, 1u << 30);
  p.disk = DiskProfile();
  ASSERT_TRUE(SetCapacities(machine, &p).ok());
  EXPECT_EQ(p.disk_bytes, 0u);
  EXPECT_TRUE(p.Check().ok()) << p.Check();
}

TEST(ProfileCacheDirTest, TheDiskDirectoryOrTheUsersCache) {
  const std::string home = std::getenv("HOME") ? std::getenv("HOME") : "";
  const char* before = std::getenv("XDG_CACHE_HOME");
  const std::string cache = before != nullptr ? before : "";
  setenv("HOME", "/home/someone", 1);
  setenv("XDG_CACHE_HOME", "/cache", 1);
  EXPECT_EQ(ProfileCacheDir("/disk"), "/disk");
  EXPECT_EQ(ProfileCacheDir(""), "/cache/sluice");
  setenv("XDG_CACHE_HOME", "relative", 1);
  EXPECT_EQ(ProfileCacheDir(""), "/home/someone/.cache/sluice");
  unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(ProfileCacheDir(""), "/home/someone/.cache/sluice");
  unsetenv("HOME");
  EXPECT_EQ(ProfileCacheDir(""), "");
  if (!home.empty()) setenv("HOME", home.c_str(), 1);
  if (before != nullptr) setenv("XDG_CACHE_HOME", cache.c_str(), 1);
}

}  // namespace
}  // namespace sluice
