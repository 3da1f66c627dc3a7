#include "runtime/memory/memory_budget.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/text/bytes_text.h"

namespace sluice {
namespace {

std::string Text(uint64_t bytes) {
  return BytesText(static_cast<double>(bytes));
}

const char* LimitFlag(Tier tier) {
  if (tier == Tier::kDevice) return "--device-memory";
  return tier == Tier::kHost ? "--host-memory" : "--disk-space";
}

}  // namespace

MemoryCharge& MemoryCharge::operator=(MemoryCharge&& other) noexcept {
  if (this == &other) return *this;
  Release();
  budget_ = std::exchange(other.budget_, nullptr);
  name_ = std::move(other.name_);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void MemoryCharge::Release() {
  if (budget_ == nullptr) return;
  std::exchange(budget_, nullptr)->Return(name_, std::exchange(bytes_, 0));
}

absl::StatusOr<MemoryCharge> MemoryBudget::Charge(const std::string& name,
                                                  uint64_t bytes) {
  MemoryCharge of_whole;
  if (whole_ != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(of_whole, whole_->Charge(name, bytes));
  }
  SLUICE_ASSIGN_OR_RETURN(MemoryCharge charge, ChargeThis(name, bytes));
  // Return() gives back both.
  of_whole.budget_ = nullptr;
  return charge;
}

absl::StatusOr<MemoryCharge> MemoryBudget::ChargeThis(const std::string& name,
                                                      uint64_t bytes) {
  MutexLock lock(&mu_);
  if (bytes > limit_ - used_) {
    std::string message = absl::StrCat(
        TierName(tier_), " memory: ", name, " asks for ", Text(bytes), ", ",
        Text(bytes - (limit_ - used_)), " more than is left of the ",
        Text(limit_), " that ", LimitFlag(tier_), " gives; held:");
    if (holders_.empty()) absl::StrAppend(&message, " nothing");
    const char* separator = " ";
    for (const auto& [holder, held] : holders_) {
      absl::StrAppend(&message, separator, holder, " ", Text(held));
      separator = ", ";
    }
    return absl::ResourceExhaustedError(message);
  }
  MemoryCharge charge;
  charge.budget_ = this;
  charge.name_ = name;
  charge.bytes_ = bytes;
  if (bytes > 0) holders_[name] += bytes;
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return charge;
}

void MemoryBudget::Return(const std::string& name, uint64_t bytes) {
  if (whole_ != nullptr) whole_->Return(name, bytes);
  MutexLock lock(&mu_);
  used_ -= bytes;
  const auto it = holders_.find(name);
  if (it == holders_.end()) return;  // a charge of no bytes
  it->second -= bytes;
  if (it->second == 0) holders_.erase(it);
}

uint64_t MemoryBudget::used_bytes() const {
  MutexLock lock(&mu_);
  return used_;
}

uint64_t MemoryBudget::peak_bytes() const {
  MutexLock lock(&mu_);
  return peak_;
}

std::map<std::string, uint64_t> MemoryBudget::holders() const {
  MutexLock lock(&mu_);
  return holders_;
}

}  // namespace sluice
