#include "coordinator/store/row_sum.h"

#include <cstring>

#include "common/content_hash.h"

namespace sluice {

int64_t RowSum(JobId job, int64_t index,
               std::initializer_list<absl::string_view> parts) {
  ContentHash hash;
  const auto add_number = [&](int64_t number) {
    char bytes[sizeof(number)];
    std::memcpy(bytes, &number, sizeof(number));
    hash.Add(absl::string_view(bytes, sizeof(bytes)));
  };
  add_number(job.value());
  add_number(index);
  for (const absl::string_view part : parts) {
    add_number(static_cast<int64_t>(part.size()));
    hash.Add(part);
  }
  int64_t sum;
  std::memcpy(&sum, hash.Bytes().data(), sizeof(sum));
  return sum == 0 ? 1 : sum;
}

}  // namespace sluice
