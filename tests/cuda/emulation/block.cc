#include "tests/cuda/emulation/block.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/threads/mutex.h"
#include "tests/cuda/emulation/fiber.h"

namespace sluice::emulation {
namespace {

constexpr int kLanes = 32;
constexpr int kMaxThreads = 1024;
constexpr size_t kSharedAlignment = 128;
#if defined(__SANITIZE_ADDRESS__) || !defined(__OPTIMIZE__)
constexpr size_t kStackBytes = 256 << 10;
#else
constexpr size_t kStackBytes = 64 << 10;
#endif

// Stacks with an unmapped page below each: one that overflows ends the program.
// They stay for the life of the program.
std::span<std::byte> Stack(int thread) {
  static std::byte* const stacks = [] {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t step = kStackBytes + page;
    void* memory = mmap(nullptr, kMaxThreads * step, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    auto* bytes = static_cast<std::byte*>(memory);
    for (int i = 0; i < kMaxThreads; ++i) {
      if (mprotect(bytes + i * step, page, PROT_NONE) != 0) std::abort();
    }
    return bytes;
  }();
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return {stacks + thread * (kStackBytes + page) + page, kStackBytes};
}

struct Thread {
  explicit Thread(int number) : fiber(Stack(number)), number(number) {}

  Fiber fiber;
  int number;
  uint3 index;
  const char* waits_at = nullptr;
};

// Lanes that wait for each other.
struct Meeting {
  const char* name;
  unsigned mask;
  void (*complete)(const Requests& requests);
  unsigned arrived = 0;
  void* requests[kLanes] = {};
};

struct Warp {
  unsigned lanes = 0;  // that exist
  unsigned ready = 0;
  unsigned ended = 0;
  std::vector<Meeting> meetings;
};

std::string Text(uint3 at) {
  return absl::StrCat("(", at.x, ",", at.y, ",", at.z, ")");
}

unsigned Bit(int lane) { return 1u << lane; }

// Callers of one place bring one pointer.
bool IsSame(const char* name, const char* other) {
  return name == other || std::strcmp(name, other) == 0;
}

class Runner {
 public:
  std::string Run(const Grid& grid, void (*body)(const void*), const void* arg);

  void Fault(std::string what);
  int Barrier(const char* name, bool predicate);
  void Meet(const char* name, unsigned mask, void* request,
            void (*complete)(const Requests&));
  void* shared() const { return shared_; }

  Order order = Order::kForward;

 private:
  void StartBlock();
  void RunBlock();
  void RunThread(Thread& thread);
  void ThreadEnded(const Thread& thread);
  std::string Deadlock() const;
  void Wait(const char* name);

  Warp& warp_of(const Thread& thread) { return warps_[thread.number / kLanes]; }

  std::vector<Thread> threads_;  // as many as any block had
  int num_threads_ = 0;          // of this block
  std::vector<Warp> warps_;
  void (*body_)(const void*) = nullptr;
  const void* arg_ = nullptr;
  Thread* current_ = nullptr;
  int ended_ = 0;
  std::string fault_;
  void* shared_ = nullptr;

  // The barrier that threads are gathering at.
  const char* barrier_name_ = nullptr;
  int arrived_ = 0;
  int votes_ = 0;
  int result_ = 0;  // of the barrier before

  std::mt19937 random_;
};

std::string Runner::Run(const Grid& grid, void (*body)(const void*),
                        const void* arg) {
  body_ = body;
  arg_ = arg;
  gridDim = grid.grid;
  blockDim = grid.block;
  num_threads_ = static_cast<int>(grid.block.x * grid.block.y * grid.block.z);
  while (static_cast<int>(threads_.size()) < num_threads_) {
    threads_.emplace_back(static_cast<int>(threads_.size()));
  }
  fault_.clear();
  random_.seed(1);
  const size_t bytes = std::max<size_t>(grid.dynamic_shared_bytes, 1);
  for (unsigned z = 0; z < grid.grid.z; ++z) {
    for (unsigned y = 0; y < grid.grid.y; ++y) {
      for (unsigned x = 0; x < grid.grid.x; ++x) {
        blockIdx = {x, y, z};
        if (posix_memalign(&shared_, kSharedAlignment, bytes) != 0) {
          return "no memory for a block's shared memory";
        }
        std::memset(shared_, 0xff, bytes);
        StartBlock();
        RunBlock();
        std::free(shared_);
        if (!fault_.empty()) {
          return absl::StrCat("block ", Text(blockIdx), ", ", fault_);
        }
      }
    }
  }
  return "";
}

void Runner::StartBlock() {
  ended_ = 0;
  barrier_name_ = nullptr;
  arrived_ = 0;
  votes_ = 0;
  warps_.resize((num_threads_ + kLanes - 1) / kLanes);
  for (Warp& warp : warps_) warp.lanes = 0;
  for (int i = 0; i < num_threads_; ++i) {
    Thread& thread = threads_[i];
    const unsigned n = static_cast<unsigned>(i);
    thread.index = {n % blockDim.x, n / blockDim.x % blockDim.y,
                    n / blockDim.x / blockDim.y};
    thread.waits_at = nullptr;
    thread.fiber.Start(
        [](void* arg) {
          const auto* runner = static_cast<const Runner*>(arg);
          runner->body_(runner->arg_);
        },
        this);
    warp_of(thread).lanes |= Bit(i % kLanes);
  }
  for (Warp& warp : warps_) {
    warp.ready = warp.lanes;
    warp.ended = 0;
    warp.meetings.clear();
  }
}

void Runner::RunBlock() {
  std::array<int, kLanes> lanes;
  std::iota(lanes.begin(), lanes.end(), 0);
  std::vector<int> warps(warps_.size());
  std::iota(warps.begin(), warps.end(), 0);
  if (order == Order::kBackward) {
    std::reverse(lanes.begin(), lanes.end());
    std::reverse(warps.begin(), warps.end());
  } else if (order == Order::kShuffled) {
    std::shuffle(lanes.begin(), lanes.end(), random_);
    std::shuffle(warps.begin(), warps.end(), random_);
  }
  while (ended_ < num_threads_) {
    bool ran = false;
    for (const int w : warps) {
      Warp& warp = warps_[w];
      while (warp.ready != 0) {
        for (const int lane : lanes) {
          if ((warp.ready & Bit(lane)) == 0) continue;
          warp.ready &= ~Bit(lane);
          ran = true;
          RunThread(threads_[w * kLanes + lane]);
          if (!fault_.empty()) return;
        }
      }
    }
    if (!ran) {
      fault_ = Deadlock();
      return;
    }
  }
}

void Runner::RunThread(Thread& thread) {
  current_ = &thread;
  threadIdx = thread.index;
  thread.fiber.Resume();
  if (thread.fiber.ended()) ThreadEnded(thread);
}

void Runner::ThreadEnded(const Thread& thread) {
  ++ended_;
  Warp& warp = warp_of(thread);
  const int lane = thread.number % kLanes;
  warp.ended |= Bit(lane);
  for (const Meeting& meeting : warp.meetings) {
    if ((meeting.mask & Bit(lane)) != 0) {
      fault_ = absl::StrCat(
          "thread ", Text(thread.index),
          " returned while others of its warp wait for it at ", meeting.name);
    }
  }
}

std::string Runner::Deadlock() const {
  std::string text = absl::StrCat("nothing can go on: ", ended_, " of ",
                                  num_threads_, " threads have returned");
  // The first thread that waits at each name says enough.
  std::vector<absl::string_view> named;
  for (int i = 0; i < num_threads_; ++i) {
    const Thread& thread = threads_[i];
    if (thread.fiber.ended()) continue;
    if (std::find(named.begin(), named.end(), thread.waits_at) != named.end()) {
      continue;
    }
    named.push_back(thread.waits_at);
    absl::StrAppend(&text, ", thread ", Text(thread.index), " waits at ",
                    thread.waits_at);
  }
  return text;
}

void Runner::Wait(const char* name) {
  Thread& thread = *current_;
  thread.waits_at = name;
  thread.fiber.Suspend();
  thread.waits_at = nullptr;
}

void Runner::Fault(std::string what) {
  fault_ = absl::StrCat("thread ", Text(current_->index), ": ",
                        std::exchange(what, {}));
  // The thread is never resumed.
  current_->fiber.Suspend();
}

int Runner::Barrier(const char* name, bool predicate) {
  if (arrived_ > 0 && !IsSame(name, barrier_name_)) {
    Fault(absl::StrCat("comes to ", name, " where others came to ",
                       barrier_name_));
  }
  barrier_name_ = name;
  votes_ += predicate;
  if (++arrived_ < num_threads_) {
    Wait(name);
    return result_;
  }
  result_ = votes_;
  arrived_ = 0;
  votes_ = 0;
  for (Warp& warp : warps_) warp.ready = warp.lanes;
  warp_of(*current_).ready &= ~Bit(current_->number % kLanes);
  return result_;
}

void Runner::Meet(const char* name, unsigned mask, void* request,
                  void (*complete)(const Requests&)) {
  Warp& warp = warp_of(*current_);
  const int lane = current_->number % kLanes;
  if ((mask & Bit(lane)) == 0) {
    Fault(absl::StrCat(name, " with mask 0x", absl::Hex(mask),
                       ", in which its own lane ", lane, " is not"));
  }
  if ((mask & ~warp.lanes) != 0) {
    Fault(absl::StrCat(name, " with mask 0x", absl::Hex(mask),
                       " in a warp that has lanes 0x", absl::Hex(warp.lanes)));
  }
  if ((mask & warp.ended) != 0) {
    Fault(absl::StrCat(name, " with mask 0x", absl::Hex(mask),
                       ", of which lanes 0x", absl::Hex(mask & warp.ended),
                       " have returned"));
  }
  auto meeting = warp.meetings.begin();
  while (meeting != warp.meetings.end() && meeting->mask != mask) {
    ++meeting;
  }
  if (meeting == warp.meetings.end()) {
    warp.meetings.push_back({name, mask, complete});
    meeting = warp.meetings.end() - 1;
  } else if (meeting->complete != complete || !IsSame(meeting->name, name)) {
    Fault(absl::StrCat("comes to ", name, " with mask 0x", absl::Hex(mask),
                       " where others of its warp came to ", meeting->name));
  }
  meeting->arrived |= Bit(lane);
  meeting->requests[lane] = request;
  if (meeting->arrived != mask) {
    Wait(name);
    return;
  }
  complete(meeting->requests);
  warp.ready |= mask & ~Bit(lane);
  warp.meetings.erase(meeting);
}

// Grids of several threads of the program wait for each other here.
Mutex& RunnerMutex() {
  static Mutex mutex;
  return mutex;
}

Runner& TheRunner() {
  static Runner runner;
  return runner;
}

}  // namespace

void SetOrder(Order order) {
  MutexLock lock(&RunnerMutex());
  TheRunner().order = order;
}

std::string RunGrid(const Grid& grid, void (*body)(const void* arg),
                    const void* arg) {
  MutexLock lock(&RunnerMutex());
  return TheRunner().Run(grid, body, arg);
}

void Fault(std::string what) {
  TheRunner().Fault(std::move(what));
  __builtin_unreachable();
}

int Barrier(const char* name, bool predicate) {
  return TheRunner().Barrier(name, predicate);
}

void WarpMeet(const char* name, unsigned mask, void* request,
              void (*complete)(const Requests& requests)) {
  TheRunner().Meet(name, mask, request, complete);
}

void* DynamicShared() { return TheRunner().shared(); }

}  // namespace sluice::emulation
