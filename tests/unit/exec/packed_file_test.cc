#include "runtime/exec/weights/packed_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "runtime/exec/weights/packed_store.h"
#include "runtime/memory/host_buffer.h"
#include "runtime/placement/weight_placement.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using testing::HasSubstr;

class PackedFileTest : public testing::Test {
 protected:
  PackedFileTest() {
    auto buffer = HostBuffer::Create("image", kBytes, &memory_);
    EXPECT_TRUE(buffer.ok());
    packed_ = *std::move(buffer);
    for (size_t i = 0; i < kBytes; ++i) {
      packed_.as<unsigned char>()[i] = static_cast<unsigned char>(i * 31 >> 3);
    }
  }

  std::span<const std::byte> packed() const {
    return {packed_.as<std::byte>(), kBytes};
  }

  // Writes the packed unit in windows of so many bytes; the default is one
  // window.
  absl::Status Write(const std::string& path, MemoryBudget* disk,
                     size_t window = kBytes) {
    auto memory = HostBuffer::Create("window", window, &memory_);
    if (!memory.ok()) return memory.status();
    return PackedFile::Write(
        path, "key", kBytes, {memory->as<std::byte>(), window},
        [&](const PackedWindow& to) {
          for (size_t i = 0; i < to.bytes(); ++i) {
            if (to.data[i] != std::byte{}) {
              return absl::InternalError("a window that is not zeroed");
            }
          }
          std::memcpy(to.data, packed_.as<std::byte>() + to.begin, to.bytes());
          return absl::OkStatus();
        },
        disk);
  }

  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  void Flip(std::streamoff offset) {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset);
    const int byte = file.get();
    file.seekp(offset);
    file.put(static_cast<char>(byte ^ 1));
  }

  static constexpr size_t kGrain = 65536;
  static constexpr size_t kBytes = 1'232'896;  // 301 disk blocks
  TempDir dir_ = TempDir::OnDisk();
  const std::string path_ = dir_ / "unit.img";
  MemoryBudget memory_{Tier::kHost, 1 << 24};
  MemoryBudget disk_{Tier::kDisk, 1 << 24};
  HostBuffer packed_;
};

TEST_F(PackedFileTest, ComesBackAsItWas) {
  ASSERT_TRUE(Write(path_, &disk_).ok());
  EXPECT_EQ(disk_.used_bytes(), 0u);
  EXPECT_THAT(Files(), testing::ElementsAre("unit.img"));
  EXPECT_EQ(std::filesystem::file_size(path_), PackedFileBytes(kBytes));
  auto file = PackedFile::Open(path_, "key", kBytes);
  ASSERT_TRUE(file.ok()) << file.status();
  auto back = HostBuffer::Create("back", kBytes, &memory_);
  ASSERT_TRUE(back.ok());
  ASSERT_TRUE(
      (*file)
          ->file()
          .Read((*file)->packed_offset(), {back->as<std::byte>(), kBytes})
          .ok());
  EXPECT_EQ(std::memcmp(back->data(), packed_.data(), kBytes), 0);
  EXPECT_TRUE((*file)->Check(0, packed()).ok());
  const size_t granule = (*file)->granule();
  EXPECT_TRUE((*file)->Check(granule, packed().subspan(granule)).ok());
}

TEST_F(PackedFileTest, WindowsMakeTheSameFile) {
  const auto read = [&] {
    std::ifstream in(path_, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  ASSERT_TRUE(Write(path_, &disk_).ok());
  const std::string whole = read();
  for (const size_t window : {kGrain, 3 * kGrain}) {
    ASSERT_TRUE(Write(path_, &disk_, window).ok());
    EXPECT_EQ(read(), whole) << window;
  }
  // Granules must not lie across windows.
  EXPECT_TRUE(absl::IsInternal(Write(path_, &disk_, 4096 + 1024)));
}

TEST_F(PackedFileTest, AFailedWindowLeavesNoFile) {
  auto memory = HostBuffer::Create("window", kGrain, &memory_);
  ASSERT_TRUE(memory.ok());
  const absl::Status status = PackedFile::Write(
      path_, "key", kBytes, {memory->as<std::byte>(), memory->bytes()},
      [&](const PackedWindow& to) {
        return to.begin > 0 ? absl::DataLossError("no more") : absl::OkStatus();
      },
      &disk_);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(Files(), testing::IsEmpty());
  EXPECT_EQ(disk_.used_bytes(), 0u);
}

TEST_F(PackedFileTest, OthersAreTold) {
  EXPECT_TRUE(
      absl::IsNotFound(PackedFile::Open(path_, "key", kBytes).status()));
  ASSERT_TRUE(Write(path_, &disk_).ok());
  for (const auto& [key, bytes] : std::vector<std::pair<std::string, size_t>>{
           {"kez", kBytes}, {"key2", kBytes}, {"key", kBytes + 4096}}) {
    const auto other = PackedFile::Open(path_, key, bytes);
    EXPECT_TRUE(absl::IsFailedPrecondition(other.status())) << other.status();
    EXPECT_THAT(std::string(other.status().message()), HasSubstr(path_));
  }
  // The byte is of the file's version.
  Flip(8);
  const auto version = PackedFile::Open(path_, "key", kBytes);
  EXPECT_TRUE(absl::IsFailedPrecondition(version.status())) << version.status();
  EXPECT_THAT(std::string(version.status().message()), HasSubstr("version"));
}

TEST_F(PackedFileTest, DamageIsFound) {
  ASSERT_TRUE(Write(path_, &disk_).ok());
  auto file = PackedFile::Open(path_, "key", kBytes);
  ASSERT_TRUE(file.ok());
  const uint64_t offset = (*file)->packed_offset();
  const size_t granule = (*file)->granule();
  // Damage in the packed unit is found in its granule, and in no other.
  packed_.as<unsigned char>()[3 * granule + 7] ^= 4;
  const absl::Status bad = (*file)->Check(0, packed());
  EXPECT_TRUE(absl::IsDataLoss(bad)) << bad;
  EXPECT_THAT(std::string(bad.message()), HasSubstr(path_));
  EXPECT_THAT(std::string(bad.message()),
              HasSubstr(std::to_string(offset + 3 * granule)));
  EXPECT_TRUE((*file)->Check(4 * granule, packed().subspan(4 * granule)).ok());
  // Damage in the header is found wherever it is.
  for (const std::streamoff at : {0, 20, 44, 1070, 1080}) {
    Flip(at);
    EXPECT_FALSE(PackedFile::Open(path_, "key", kBytes).ok()) << at;
    Flip(at);
  }
  EXPECT_TRUE(PackedFile::Open(path_, "key", kBytes).ok());
  // A file that is cut short is found damaged.
  for (const uint64_t size : {PackedFileBytes(kBytes) - 4096, offset,
                              uint64_t{4096}, uint64_t{100}, uint64_t{0}}) {
    std::filesystem::resize_file(path_, size);
    const auto cut = PackedFile::Open(path_, "key", kBytes);
    EXPECT_TRUE(absl::IsDataLoss(cut.status())) << size << cut.status();
  }
}

TEST_F(PackedFileTest, NoRoomLeavesNoFile) {
  MemoryBudget tight(Tier::kDisk, kBytes);
  const absl::Status budget = Write(path_, &tight);
  EXPECT_TRUE(absl::IsResourceExhausted(budget)) << budget;
  EXPECT_THAT(Files(), testing::IsEmpty());
  EXPECT_EQ(tight.used_bytes(), 0u);
  const absl::Status nowhere = Write(dir_ / "no/such/dir.img", &disk_);
  EXPECT_FALSE(nowhere.ok());
}

TEST_F(PackedFileTest, RemovesWhatTheDeadLeftAndNothingElse) {
  const std::string orphan = path_ + ".1.0.tmp";
  const std::string alive = path_ + ".2.0.tmp";
  for (const std::string& name : {orphan, alive}) {
    std::ofstream(name) << "half";
  }
  const int fd = open(alive.c_str(), O_RDONLY);
  ASSERT_EQ(flock(fd, LOCK_EX | LOCK_NB), 0);
  ASSERT_TRUE(Write(path_, &disk_).ok());
  EXPECT_THAT(Files(),
              testing::UnorderedElementsAre("unit.img", "unit.img.2.0.tmp"));
  EXPECT_EQ(PackedFile::RemoveOrphans(dir_.path()), 0);
  close(fd);
  EXPECT_EQ(PackedFile::RemoveOrphans(dir_.path()), 1);
  EXPECT_THAT(Files(), testing::UnorderedElementsAre("unit.img"));
  EXPECT_EQ(PackedFile::RemoveOrphans(dir_ / "none"), 0);
}

TEST_F(PackedFileTest, AWriterKeepsItsFileAndAKilledOneLosesIt) {
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const pid_t writer = fork();
  if (writer == 0) {
    alignas(4096) static std::byte window[kBytes];
    PackedFile::Write(
        path_, "key", kBytes, window,
        [&](const PackedWindow&) {
          (void)!write(told[1], "x", 1);
          for (;;) pause();
          return absl::OkStatus();
        },
        &disk_)
        .IgnoreError();
    _exit(1);
  }
  char byte;
  ASSERT_EQ(read(told[0], &byte, 1), 1);
  EXPECT_EQ(PackedFile::RemoveOrphans(dir_.path()), 0);
  EXPECT_EQ(Files().size(), 1u);
  kill(writer, SIGKILL);
  waitpid(writer, nullptr, 0);
  EXPECT_EQ(PackedFile::RemoveOrphans(dir_.path()), 1);
  EXPECT_THAT(Files(), testing::IsEmpty());
  close(told[0]);
  close(told[1]);
}

// The store's directories for other models are swept, too.
TEST_F(PackedFileTest, AStoreIsSweptAsAWhole) {
  const std::string packed_files = dir_ / "images";
  for (const std::string model : {"/a", "/b"}) {
    std::filesystem::create_directories(packed_files + model);
    std::ofstream(packed_files + model + "/layer-0.img.1.0.tmp") << "half";
    std::ofstream(packed_files + model + "/layer-0.img") << "whole";
  }
  PackedStore::RemoveOrphans(dir_.path());
  for (const std::string model : {"/a", "/b"}) {
    EXPECT_FALSE(
        std::filesystem::exists(packed_files + model + "/layer-0.img.1.0.tmp"));
    EXPECT_TRUE(std::filesystem::exists(packed_files + model + "/layer-0.img"));
  }
  PackedStore::RemoveOrphans(dir_ / "none");
}

TEST_F(PackedFileTest, AStoreTellsWhatItsImagesTake) {
  EXPECT_EQ(PackedStore::DiskBytes(dir_.path()), 0u);
  const std::string packed_files = dir_ / "images";
  for (const std::string model : {"/a", "/b"}) {
    std::filesystem::create_directories(packed_files + model);
    std::ofstream(packed_files + model + "/layer-0.img") << "whole";
    std::ofstream(packed_files + model + "/layer-1.img.1.0.tmp")
        << "unfinished";
  }
  std::ofstream(packed_files + "/a/head.img") << "another";
  EXPECT_EQ(PackedStore::DiskBytes(dir_.path()), 17u);
}

// The level is compared with one that rises by one until it gives enough.
TEST(WeightPlacementTest, EvenLevel) {
  const std::vector<size_t> bytes = {70, 20, 100, 20, 0, 55};
  for (int total = 0; total <= 265; ++total) {
    int level = 0, sum = 0;
    while (sum < total) {
      ++level;
      sum = 0;
      for (const size_t b : bytes) sum += std::min<int>(b, level);
    }
    const double got = EvenLevel(bytes, total);
    EXPECT_LE(got, level);
    EXPECT_GT(got, level - 1.0 - (total == 0 ? 1 : 0));
    double given = 0;
    for (const size_t b : bytes) given += std::min<double>(b, got);
    EXPECT_NEAR(given, total, 1e-9);
  }
  EXPECT_EQ(EvenLevel({}, 5), 0);
}

std::vector<UnitPlacement> Placed(const std::vector<size_t>& bytes,
                                  const TierFractions& fractions) {
  std::vector<size_t> granules;
  for (const size_t b : bytes) granules.push_back(PlacementGranule(b));
  return PlaceWeights(bytes, granules, fractions);
}

// The head of a small model is larger than a layer; no slot need be.
TEST(WeightPlacementTest, UnitsGiveUpTheSame) {
  std::vector<size_t> bytes(22, 88'080'384);
  bytes.push_back(131'072'000);
  const double all = 22 * 88'080'384.0 + 131'072'000;
  for (const double disk : {0.1, 0.3, 0.7, 0.95}) {
    const auto units = Placed(bytes, {0, 1 - disk, disk});
    size_t most = 0;
    for (const UnitPlacement& unit : units) {
      most = std::max(most, unit.disk_bytes());
    }
    EXPECT_LE(
        static_cast<double>(most),
        std::max(disk * all / 23, disk * all - 22 * 88'080'384.0) + 2 * 65'536);
  }
}

TEST(WeightPlacementTest, SharesAddUpAndAreEven) {
  for (const TierFractions& f : std::vector<TierFractions>{{1, 0, 0},
                                                           {0, 1, 0},
                                                           {0, 0, 1},
                                                           {0.2, 0.3, 0.5},
                                                           {0.33, 0.33, 0.34},
                                                           {0, 0.5, 0.5},
                                                           {0.01, 0, 0.99}}) {
    const std::vector<size_t> bytes = {90'112,    90'112, 90'112,
                                       1'232'896, 4'096,  90'112};
    const auto units = Placed(bytes, f);
    ASSERT_EQ(units.size(), bytes.size());
    double total = 0, device = 0, host = 0;
    for (size_t i = 0; i < units.size(); ++i) {
      EXPECT_EQ(units[i].bytes, bytes[i]);
      EXPECT_LE(units[i].device_end, units[i].host_end);
      EXPECT_LE(units[i].host_end, bytes[i]);
      EXPECT_EQ(units[i].device_end % 4096, 0u);
      total += static_cast<double>(bytes[i]);
      device += static_cast<double>(units[i].device_end);
      host += static_cast<double>(units[i].host_end - units[i].device_end);
    }
    EXPECT_NEAR(device / total, f.device, 0.01);
    EXPECT_NEAR(host / total, f.host, 0.01);
  }
}

}  // namespace
}  // namespace sluice
