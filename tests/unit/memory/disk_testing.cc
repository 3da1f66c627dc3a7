#include "tests/unit/memory/disk_testing.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "gtest/gtest.h"

namespace sluice {
namespace {

uint64_t Word(uint64_t seed, uint64_t index) {
  uint64_t x = seed * 0x9e3779b97f4a7c15u + index;
  x = (x ^ (x >> 31)) * 0xbf58476d1ce4e5b9u;
  return x ^ (x >> 29);
}

}  // namespace

HostBuffer TestBuffer(size_t bytes) {
  static MemoryBudget* const budget =
      new MemoryBudget(Tier::kHost, uint64_t{1} << 32);
  auto buffer = HostBuffer::Create("test", bytes, budget);
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  return *std::move(buffer);
}

std::span<std::byte> Span(const HostBuffer& buffer) {
  return {buffer.as<std::byte>(), buffer.bytes()};
}

void FillPattern(uint64_t seed, std::span<std::byte> data) {
  auto* words = reinterpret_cast<uint64_t*>(data.data());
  for (size_t i = 0; i < data.size() / 8; ++i) words[i] = Word(seed, i);
}

bool HasPattern(uint64_t seed, std::span<const std::byte> data) {
  const auto* words = reinterpret_cast<const uint64_t*>(data.data());
  for (size_t i = 0; i < data.size() / 8; ++i) {
    if (words[i] != Word(seed, i)) return false;
  }
  return true;
}

std::vector<nlohmann::json> SpansOfRow(const Tracer& tracer,
                                       const std::string& name) {
  const TempDir dir = TempDir::OnDisk();
  const absl::Status status = tracer.WriteJson(dir / "trace.json");
  EXPECT_TRUE(status.ok()) << status;
  std::ifstream file(dir / "trace.json");
  const nlohmann::json trace = nlohmann::json::parse(file);
  int row = -1;
  std::vector<nlohmann::json> spans;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name" && event["args"]["name"] == name) {
      row = event["tid"];
    } else if (event["ph"] == "X" && event["tid"] == row) {
      spans.push_back(event);
    }
  }
  return spans;
}

}  // namespace sluice
