#include "server/cli/plan/cluster_file.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/codec/profile_json.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr int64_t kMaxMachines = 4096;

}  // namespace

void AddWorkers(const MachineProfile& machine, int32_t workers,
                std::vector<MachineProfile>* machines) {
  for (int32_t w = 0; w < workers; ++w) {
    MachineProfile part = machine;
    if (part.machine.empty()) part.machine = part.name;
    if (workers > 1) absl::StrAppend(&part.name, "/", w);
    part.device_memory_bytes /= workers;
    part.host_memory_bytes /= workers;
    part.disk_bytes /= workers;
    machines->push_back(std::move(part));
  }
}

void AddParts(const MachineProfile& part, int32_t parts,
              std::vector<MachineProfile>* machines) {
  const std::string whole = part.part_of.empty() ? part.name : part.part_of;
  // A part alone has one rank; the exchange of as many ranks is its own.
  MachineProfile one = part;
  one.rank_choices.clear();
  for (const RankChoice& choice : part.rank_choices) {
    if (choice.ranks == parts && !one.has_exchange()) {
      one.exchange = choice.exchange;
    }
  }
  for (int32_t p = 0; p < parts; ++p) {
    MachineProfile& added = machines->emplace_back(one);
    absl::StrAppend(&added.name, "/", p);
    added.machine = absl::StrCat(whole, "/", p);
    added.part_of = whole;
  }
}

absl::StatusOr<std::vector<MachineProfile>> ReadClusterFile(
    const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    return NotFound(path, ": can't be read");
  }
  const auto json = nlohmann::json::parse(in, nullptr,
                                          /*allow_exceptions=*/false);
  const auto bad = [&](const auto&... what) {
    return InvalidArgument(path, ": ", what...);
  };
  if (!json.is_object() || !json.contains("machines") ||
      !json["machines"].is_array() || json["machines"].empty()) {
    return bad("no JSON object with a list of \"machines\"");
  }
  std::vector<MachineProfile> machines;
  for (size_t i = 0; i < json["machines"].size(); ++i) {
    const auto& entry = json["machines"][i];
    const std::string where = absl::StrCat("machines[", i, "]");
    if (!entry.is_object() || !entry.contains("profile") ||
        !entry["profile"].is_string()) {
      return bad(where, ".profile: expected a file's name");
    }
    enum Number { kCount, kWorkers, kParts };
    int64_t numbers[] = {1, 1, 1};
    for (const auto& [key, value] : entry.items()) {
      if (key == "profile") continue;
      if (key != "count" && key != "workers" && key != "parts") {
        return bad(where, ": unknown key ", key);
      }
      if (!value.is_number_integer() || value.get<int64_t>() < 1 ||
          value.get<int64_t>() > kMaxMachines) {
        return bad(where, ".", key, ": expected 1 to ", kMaxMachines);
      }
      numbers[key == "count"     ? kCount
              : key == "workers" ? kWorkers
                                 : kParts] = value.get<int64_t>();
    }
    if (numbers[kWorkers] > 1 && numbers[kParts] > 1) {
      return bad(where,
                 ": \"workers\" share a machine's cores, \"parts\" have "
                 "cores of their own; give one of them");
    }
    if (static_cast<int64_t>(machines.size()) +
            numbers[kCount] * numbers[kWorkers] * numbers[kParts] >
        kMaxMachines) {
      return bad("more than ", kMaxMachines, " workers");
    }
    const std::filesystem::path file = entry["profile"].get<std::string>();
    SLUICE_ASSIGN_OR_RETURN(
        const MachineProfile profile,
        ReadProfileFile(
            (std::filesystem::path(path).parent_path() / file).string()));
    for (int64_t m = 0; m < numbers[kCount]; ++m) {
      MachineProfile machine = profile;
      if (machine.name.empty()) machine.name = file.stem().string();
      if (numbers[kCount] > 1) absl::StrAppend(&machine.name, "-", m);
      machine.machine = machine.name;
      if (numbers[kParts] > 1) {
        AddParts(machine, static_cast<int32_t>(numbers[kParts]), &machines);
      } else {
        AddWorkers(machine, static_cast<int32_t>(numbers[kWorkers]), &machines);
      }
    }
  }
  return machines;
}

}  // namespace sluice
