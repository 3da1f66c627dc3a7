#include "common/codec/profile_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tests/support/sample_profile.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// A processor without a device, as a user would write it.
constexpr char kByHand[] = R"({
  // what we mean to buy
  "version": 1,
  "name": "node",
  "host_memory_bytes": 2.56e11,
  "disk_bytes": 2000000000000,
  "threads": 64,
  "host": {
    "memory_bytes_per_second": 3e11,
    "products": [
      {"dtype": "bfloat16", "weights": "none",
       "flops_by_rows": [[1, 1e11], [64, 5e12], [2048, 2e13]]},
      {"dtype": "bfloat16", "weights": "int4", "flops_by_rows": 1e13}
    ],
    "attention": [{"format": "bfloat16",
                   "decode_bytes_by_context": 2.5e11,
                   "prefill_flops_by_context": 1e12}],
    "quantize_bytes_per_second": 1e10,
    "dequantize_bytes_per_second": 1e11,
    "layer_seconds": 1e-5,
    "share_by_threads": [[1, 0.02], [64, 1]]
  },
  "disk": {"read_bytes_per_second": 7e9, "write_bytes_per_second": 5e9},
  "links": [{"bytes_per_second": 3e9, "latency_seconds": 3e-5}]
})";

std::string WithText(absl::string_view from, absl::string_view to) {
  EXPECT_THAT(kByHand, HasSubstr(std::string(from)));
  return absl::StrReplaceAll(kByHand, {{from, to}});
}

TEST(ProfileJsonTest, ReadsBackWhatItWrote) {
  MachineProfile p = SampleProfile();
  p.disturbed = true;
  const auto read = ProfileFromJson(ProfileToJson(p));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, p);
  EXPECT_EQ(ProfileToJson(*read), ProfileToJson(p));

  MachineProfile linked = p;
  linked.nccl_links = true;
  const auto with_nccl = ProfileFromJson(ProfileToJson(linked));
  ASSERT_TRUE(with_nccl.ok()) << with_nccl.status();
  EXPECT_TRUE(with_nccl->nccl_links);

  MachineProfile cpu = p;
  cpu.device_memory_bytes = 0;
  cpu.device_compute = ComputeProfile();
  cpu.host_to_device_bytes_per_second = 0;
  cpu.device_to_host_bytes_per_second = 0;
  EXPECT_THAT(ProfileToJson(cpu), Not(HasSubstr("device_compute")));
  const auto again = ProfileFromJson(ProfileToJson(cpu));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, cpu);
}

TEST(ProfileJsonTest, IsWrittenForPeople) {
  const std::string text = ProfileToJson(SampleProfile());
  EXPECT_THAT(text,
              StartsWith("{\n  \"version\": 1,\n  \"name\": \"node-1\","));
  EXPECT_EQ(text.substr(text.size() - 3), "\n}\n");
  EXPECT_THAT(text, HasSubstr("\n    \"share_by_threads\": [[1.0,0.52],[2.0,"
                              "1.0]]\n"));
  std::vector<std::string> order;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (line.size() > 3 && line.substr(0, 3) == "  \"") {
      order.push_back(std::string(line.substr(3, line.find('"', 3) - 3)));
    }
    EXPECT_LE(line.size(), 100u) << line;
  }
  EXPECT_THAT(
      order,
      testing::ElementsAre(
          "version", "name", "machine", "fingerprint", "device", "remarks",
          "device_memory_bytes", "host_memory_bytes", "disk_bytes", "threads",
          "cores", "ranks", "exchange", "part_of", "host", "device_compute",
          "host_to_device_bytes_per_second", "device_to_host_bytes_per_second",
          "disk", "links", "step_seconds"));
}

TEST(ProfileJsonTest, HasTheNumbersOfRanksThatAWorkerMayHave) {
  MachineProfile profile = SampleCpuProfile();
  profile.ranks = 1;
  profile.rank_choices = {{2, 0.75, 0.5, {1e9, 1e-5}},
                          {4, 0.5, 0.25, {5e8, 0}}};
  const std::string json = ProfileToJson(profile);
  EXPECT_THAT(json, testing::HasSubstr("\"memory_share\": 0.75"));
  const auto read = ProfileFromJson(json);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, profile);
}

TEST(ProfileJsonTest, ReadsWhatAPersonWrote) {
  const auto p = ProfileFromJson(kByHand);
  ASSERT_TRUE(p.ok()) << p.status();
  EXPECT_EQ(p->name, "node");
  EXPECT_EQ(p->host_memory_bytes, 256000000000u);
  EXPECT_EQ(p->disk_bytes, 2000000000000u);
  EXPECT_EQ(p->threads, 64);
  EXPECT_FALSE(p->has_device());
  ASSERT_EQ(p->host.products.size(), 2u);
  EXPECT_EQ(p->host.products[0].flops_by_rows.At(64), 5e12);
  EXPECT_EQ(p->host.products[1].weights, WeightFormat::kInt4);
  EXPECT_EQ(p->host.products[1].flops_by_rows, RateCurve::Constant(1e13));
  EXPECT_EQ(p->host.row_element_seconds, 0);
  EXPECT_TRUE(p->disk.direct);
  ASSERT_NE(p->Link("any"), nullptr);
  EXPECT_EQ(p->Link("any")->latency_seconds, 3e-5);
}

TEST(ProfileJsonTest, NamesWhatIsWrong) {
  const struct {
    std::string text;
    const char* error;
  } kCases[] = {
      {"", "the profile is no JSON"},
      {"{\"version\": 1,\n \"name\": }", "line 2"},
      {"[1]", "the profile: [1] must be an object"},
      {"{}", "version: missing"},
      {WithText("\"version\": 1", "\"version\": 2"),
       "version: 2 is not the one"},
      {WithText("\"version\": 1", "\"version\": \"1\""),
       "version: \"1\" must be a whole number"},
      {WithText("\"name\": \"node\"", "\"name\": 7"),
       "name: 7 must be a string"},
      {WithText("\"name\"", "\"nam\""), "nam: no such key; there are version"},
      {WithText("\"layer_seconds\"", "\"layer_second\""),
       "host.layer_second: no such key; there are memory_bytes_per_second"},
      {WithText("\"weights\": \"int4\"", "\"weight\": \"int4\""),
       "host.products[1].weight: no such key"},
      {WithText("\"dtype\": \"bfloat16\", \"weights\": \"int4\"",
                "\"dtype\": \"auto\""),
       "host.products[1].dtype: \"auto\" must be float32, bfloat16 or "
       "float16"},
      {WithText("\"int4\"", "\"int3\""), "host.products[1].weights: "},
      {WithText("\"format\": \"bfloat16\"", "\"format\": \"fp8\""),
       "host.attention[0].format: "},
      {WithText("\"format\": \"bfloat16\"", "\"format\": 8"),
       "host.attention[0].format: 8 must be a string"},
      {WithText("[64, 5e12]", "[64]"),
       "host.products[0].flops_by_rows[1]: [64] must be two numbers"},
      {WithText("[64, 5e12]", "[64, \"fast\"]"),
       "host.products[0].flops_by_rows[1]: "},
      {WithText("\"flops_by_rows\": 1e13", "\"flops_by_rows\": \"fast\""),
       "host.products[1].flops_by_rows: \"fast\" must be a list of points"},
      {WithText("\"threads\": 64", "\"threads\": 64.5"),
       "threads: 64.5 must be a whole number"},
      {WithText("\"threads\": 64", "\"threads\": 64000000000"),
       "threads: 64000000000 must be a whole number of at most"},
      {WithText("2.56e11", "-1"), "host_memory_bytes: -1 must be"},
      {WithText("2.56e11", "1.5"), "host_memory_bytes: 1.5 must be"},
      {WithText("2.56e11", "1e30"), "host_memory_bytes: 1e+30 must be"},
      {WithText("2.56e11", "\"256GB\""),
       "host_memory_bytes: \"256GB\" must be a whole number"},
      {WithText("2000000000000", "99999999999999999999"),
       "disk_bytes: 1e+20 must be"},
      {WithText("\"disk\": {", "\"disk\": {\"direct\": 1, "),
       "disk.direct: 1 must be true or false"},
      {WithText("\"links\": [{", "\"links\": [{\"rate\": 1, "),
       "links[0].rate: no such key"},
      {WithText("\"disk\": {", "\"disk\": {\"rates\": {}, "),
       "disk.rates: {} must be a list"},
      {WithText("\"disk\": {", "\"disk\": {\"rates\": [[1, 2]], "),
       "disk.rates[0]: [1,2] must be an object"},
      {WithText(
           "\"disk\": {",
           "\"disk\": {\"rates\": [{\"request_bytes\": 1, \"dept\": 1}], "),
       "disk.rates[0].dept: no such key; there are request_bytes, depth"},
      {WithText("\"threads\": 64,", "\"threads\": 64, \"threads\": 8,"),
       "the key \"threads\" is there twice"},
      // Check()'s errors have the same paths.
      {WithText("7e9", "0"), "disk.read_bytes_per_second: missing or 0"},
      {WithText("7e9", "-7e9"), "disk.read_bytes_per_second: -7e+09 must be"},
      {WithText("7e9", "7e99"), "disk.read_bytes_per_second: 7e+99 must be"},
      {WithText("7e9", "7e999"), "the profile is no JSON"},
      {WithText("7e9", "NaN"), "the profile is no JSON"},
      {WithText("7e9", "null"),
       "disk.read_bytes_per_second: null must be a number"},
      {WithText("\"layer_seconds\": 1e-5", "\"layer_seconds\": -1e-5"),
       "host.layer_seconds: -1e-05 must be"},
      {WithText("\"host\": {", "\"host\": {}, \"device_compute\": {"),
       "host.memory_bytes_per_second: missing or 0"},
      {WithText("\"share_by_threads\": [[1, 0.02], [64, 1]]",
                "\"share_by_threads\": []"),
       "host.share_by_threads: missing"},
  };
  for (const auto& c : kCases) {
    const auto p = ProfileFromJson(c.text);
    EXPECT_EQ(p.status().code(), absl::StatusCode::kInvalidArgument) << c.error;
    EXPECT_THAT(std::string(p.status().message()), HasSubstr(c.error));
  }
}

TEST(ProfileJsonTest, NestingAndSizeHaveBounds) {
  const std::string deep =
      "{\"version\": 1, \"host\": " + std::string(200'000, '[') +
      std::string(200'000, ']') + "}";
  EXPECT_THAT(std::string(ProfileFromJson(deep).status().message()),
              HasSubstr("nested too deeply"));
  std::string objects = "{\"version\": 1, \"host\": ";
  for (int i = 0; i < 100; ++i) objects += "{\"a\": ";
  objects += "1" + std::string(101, '}');
  EXPECT_THAT(std::string(ProfileFromJson(objects).status().message()),
              HasSubstr("nested too deeply"));
  const std::string long_text(kMaxProfileFileBytes + 1, ' ');
  EXPECT_THAT(std::string(ProfileFromJson(long_text).status().message()),
              HasSubstr("bytes: more than"));
}

TEST(ProfileJsonTest, WhatCannotBeWrittenDoesNotReadBack) {
  MachineProfile p = SampleProfile();
  p.step_seconds = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(std::string(ProfileFromJson(ProfileToJson(p)).status().message()),
              HasSubstr("step_seconds: null must be a number"));
  p = SampleProfile();
  p.name = "no\xff utf-8";  // is replaced without an error
  EXPECT_TRUE(ProfileFromJson(ProfileToJson(p)).ok());
}

TEST(ProfileFileTest, ReadsBackWhatItWrote) {
  const TempDir dir = TempDir::OnDisk();
  const std::string path = dir / "profile.json";
  ASSERT_TRUE(WriteProfileFile(SampleProfile(), path).ok());
  MachineProfile other = SampleProfile();
  other.name = "other";
  ASSERT_TRUE(WriteProfileFile(other, path).ok());  // in its place
  const auto read = ReadProfileFile(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, other);
  // The directory holds nothing else.
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    ++files;
    EXPECT_EQ(entry.path(), path);
  }
  EXPECT_EQ(files, 1);
}

TEST(ProfileFileTest, ErrorsNameTheFile) {
  const TempDir dir = TempDir::OnDisk();
  const std::string path = dir / "profile.json";
  absl::Status status = ReadProfileFile(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path));
  std::ofstream(path) << "{\"version\": 1}";
  status = ReadProfileFile(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              StartsWith(path + ": host_memory_bytes: missing"));
  const std::string nowhere = dir / "none/profile.json";
  status = WriteProfileFile(SampleProfile(), nowhere);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(nowhere));
  // If a directory is in the way, the file beside it is removed, too.
  const std::string folder = dir / "folder";
  std::filesystem::create_directories(folder + "/full");
  status = WriteProfileFile(SampleProfile(), folder);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  int entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    (void)entry;
    ++entries;
  }
  EXPECT_EQ(entries, 2);  // profile.json and folder
}

}  // namespace
}  // namespace sluice
