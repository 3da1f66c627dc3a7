// See fake_gpu.h. The C interfaces are declared in worker/link/nccl_abi.h,
// which nccl_abi_test.cc compares with the real headers.

#include "tests/nccl/fake_gpu.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/nccl/fake_gathering.h"
#include "tests/nccl/fake_stream.h"
#include "worker/link/nccl_abi.h"

#ifndef FAKE_NCCL_VERSION
#define FAKE_NCCL_VERSION 22809
#endif

namespace {

using sluice::cuda::DeviceAddress;
using sluice::cuda::Uuid;
using sluice::nccl::Config;
using sluice::nccl::UniqueId;

constexpr int kCudaInvalidValue = 1;
constexpr int kCudaNoDevice = 100;
constexpr int kCudaInvalidContext = 201;
constexpr int kNcclSystemError = 2;
constexpr size_t kChunk = 16 << 10;
// A call that is in progress is done when it was asked so many times.
constexpr int kPollsInProgress = 2;

// The state that the process shares. Never destroyed: threads may outlive main.
struct World {
  std::mutex mu;
  std::condition_variable changed;
  FakeGpuCounts counts = {};
  bool muted = false;
  long stall_after = 0;
  long stalled = 0;
  int fail_init = 0;
  bool hidden = false;
  std::map<uintptr_t, size_t> memory;  // of the device
  std::map<uintptr_t, size_t> pinned;  // of the host
  std::map<uint64_t, int> roots;       // cookie of an id: its listener
};

World& world() {
  static World* const w = new World();
  return *w;
}

void Count(long FakeGpuCounts::*what, long by) {
  std::lock_guard lock(world().mu);
  world().counts.*what += by;
  world().changed.notify_all();
}

bool Within(const std::map<uintptr_t, size_t>& memory, const void* data,
            size_t bytes) {
  std::lock_guard lock(world().mu);
  const auto address = reinterpret_cast<uintptr_t>(data);
  auto it = memory.upper_bound(address);
  if (it == memory.begin()) return false;
  --it;
  return address + bytes <= it->first + it->second;
}
bool OnDevice(const void* data, size_t bytes) {
  return Within(world().memory, data, bytes);
}

uint64_t Random() {
  static std::random_device* const device = new std::random_device();
  static std::mutex* const mu = new std::mutex();
  std::lock_guard lock(*mu);
  return uint64_t{(*device)()} << 32 | (*device)();
}

}  // namespace
namespace sluice::cuda {
struct Context {};
}  // namespace sluice::cuda
namespace {

constexpr int kMaxDevices = 16;
sluice::cuda::Context contexts[kMaxDevices];
thread_local sluice::cuda::Context* context = nullptr;

// Returns how many devices there are.
int Devices() {
  const char* const count = std::getenv("SLUICE_FAKE_GPU_COUNT");
  return count == nullptr ? 1 : std::clamp(std::atoi(count), 1, kMaxDevices);
}

// One end of a connection of two, or one of several ranks of this process.
struct CommState {
  std::mutex mu;
  std::condition_variable changed;
  int rank = 0;
  int ranks = 2;
  std::shared_ptr<Gathering> gathering;
  int fd = -1;
  int wake[2] = {-1, -1};  // a pipe that ends what polls
  bool aborted = false;
  bool ready = false;
  int error = 0;
  int polls_left = 0;  // until the call in progress is done

  ~CommState() {
    for (const int each : {fd, wake[0], wake[1]}) {
      if (each >= 0) close(each);
    }
  }
  void Fail(int result) {
    std::lock_guard lock(mu);
    if (error == 0) error = result;
    changed.notify_all();
  }
  // Waits as a kernel does whose peer does not come.
  void HangUntilAborted() {
    std::unique_lock lock(mu);
    changed.wait(lock, [&] { return aborted; });
  }
  // Returns false if the communicator was aborted, or the peer is gone.
  bool AwaitSocket(short events) {
    pollfd fds[2] = {{fd, events, 0}, {wake[0], POLLIN, 0}};
    while (poll(fds, 2, -1) < 0 && errno == EINTR) {
    }
    return fds[1].revents == 0;
  }
  bool Write(const void* data, size_t bytes) {
    const char* from = static_cast<const char*>(data);
    while (bytes > 0) {
      if (!AwaitSocket(POLLOUT)) return false;
      const ssize_t n =
          send(fd, from, std::min(bytes, kChunk), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (n <= 0) return false;
      from += n;
      bytes -= static_cast<size_t>(n);
    }
    return true;
  }
  bool Read(void* data, size_t bytes) {
    char* to = static_cast<char*>(data);
    while (bytes > 0) {
      if (!AwaitSocket(POLLIN)) return false;
      const ssize_t n = recv(fd, to, std::min(bytes, kChunk), MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (n <= 0) return false;
      to += n;
      bytes -= static_cast<size_t>(n);
    }
    return true;
  }
};

int Listen(uint16_t* port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (fd < 0 ||
      bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(fd, 4) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    if (fd >= 0) close(fd);
    return -1;
  }
  *port = ntohs(address.sin_port);
  return fd;
}

struct IdFields {
  char magic[8];
  uint64_t cookie;
  uint16_t port;
};
constexpr char kMagic[8] = {'F', 'A', 'K', 'E', 'N', 'C', 'C', 'L'};

struct Hello {
  uint64_t cookie;
  int32_t rank;
  int32_t padding;
};

// The body of a communicator's thread among several ranks of this process:
// waits until all have joined, then until one is gone.
void PlayRank(CommState& comm, IdFields id) {
  if (comm.rank == 0) {
    std::lock_guard lock(world().mu);
    const auto it = world().roots.find(id.cookie);
    if (it == world().roots.end()) {
      return comm.Fail(sluice::nccl::kInvalidArgument);
    }
    close(it->second);
    world().roots.erase(it);
    --world().counts.roots;
  }
  Gathering& gathering = *comm.gathering;
  {
    std::unique_lock lock(gathering.mu);
    gathering.changed.wait(lock, [&] {
      return gathering.broken ||
             gathering.joined.size() == static_cast<size_t>(gathering.ranks);
    });
    if (gathering.broken) {
      lock.unlock();
      return comm.Fail(sluice::nccl::kRemoteError);
    }
  }
  {
    std::lock_guard lock(comm.mu);
    comm.ready = true;
  }
  std::unique_lock lock(gathering.mu);
  gathering.changed.wait(lock, [&] { return gathering.broken; });
  lock.unlock();
  comm.Fail(sluice::nccl::kRemoteError);
}

// The body of a communicator's thread: connects to a peer, and watches it.
void PlayComm(const std::shared_ptr<CommState>& comm, IdFields id) {
  pthread_setname_np(pthread_self(), "fake-comm");
  int fail = 0;
  {
    std::lock_guard lock(world().mu);
    fail = world().fail_init;
  }
  if (fail != 0) return comm->Fail(fail);
  if (comm->ranks > 2) return PlayRank(*comm, id);
  int fd = -1;
  if (comm->rank == 0) {
    int listener = -1;
    {
      std::lock_guard lock(world().mu);
      const auto it = world().roots.find(id.cookie);
      if (it != world().roots.end()) {
        listener = it->second;
        world().roots.erase(it);
        --world().counts.roots;
      }
    }
    // Rank 0 is where the id was made, and an id is used once.
    if (listener < 0) return comm->Fail(sluice::nccl::kInvalidArgument);
    pollfd fds[2] = {{listener, POLLIN, 0}, {comm->wake[0], POLLIN, 0}};
    while (poll(fds, 2, -1) < 0 && errno == EINTR) {
    }
    if (fds[0].revents != 0) {
      fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    }
    close(listener);
  } else {
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(id.port);
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) !=
        0) {
      close(fd);
      fd = -1;
    }
  }
  if (fd < 0) return comm->Fail(kNcclSystemError);
  {
    std::lock_guard lock(comm->mu);
    comm->fd = fd;
  }
  const Hello mine = {id.cookie, comm->rank, 0};
  Hello other = {};
  if (!comm->Write(&mine, sizeof(mine)) || !comm->Read(&other, sizeof(other)) ||
      other.cookie != id.cookie || other.rank != 1 - comm->rank) {
    return comm->Fail(sluice::nccl::kRemoteError);
  }
  {
    std::lock_guard lock(comm->mu);
    comm->ready = true;
  }
  if (!comm->AwaitSocket(POLLRDHUP)) return;
  comm->Fail(sluice::nccl::kRemoteError);
}

// Stops a payload in its middle if the test says so.
void MayStall(CommState& comm, size_t done) {
  World& w = world();
  std::unique_lock lock(w.mu);
  if (w.stall_after == 0 || done < static_cast<size_t>(w.stall_after)) return;
  ++w.stalled;
  w.changed.notify_all();
  w.changed.wait(lock, [&] {
    std::lock_guard own(comm.mu);
    return w.stall_after == 0 || comm.aborted;
  });
  --w.stalled;
}

void Transfer(const std::shared_ptr<CommState>& comm, char* data,
              uint64_t bytes, bool sends) {
  uint64_t announced = bytes;
  bool ok = sends ? comm->Write(&announced, sizeof(announced))
                  : comm->Read(&announced, sizeof(announced));
  if (ok && announced != bytes) {
    // The two ends do not agree on what is sent next.
    comm->Fail(sluice::nccl::kInvalidArgument);
    ok = false;
  }
  for (uint64_t at = 0; ok && at < bytes; at += kChunk) {
    if (sends) MayStall(*comm, at + 1);
    const size_t part = std::min<uint64_t>(kChunk, bytes - at);
    ok = sends ? comm->Write(data + at, part) : comm->Read(data + at, part);
  }
  if (!ok) {
    comm->Fail(sluice::nccl::kRemoteError);
    comm->HangUntilAborted();
  } else if (sends) {
    Count(&FakeGpuCounts::payloads_sent, 1);
    Count(&FakeGpuCounts::bytes_sent, static_cast<long>(bytes));
  }
}

struct StatsAtExit {
  ~StatsAtExit() {
    const char* directory = std::getenv("SLUICE_FAKE_GPU_STATS");
    if (directory == nullptr) return;
    const FakeGpuCounts c = fake_gpu_counts();
    const std::string path =
        std::string(directory) + "/" + std::to_string(getpid()) + ".json";
    if (FILE* file = std::fopen(path.c_str(), "w")) {
      std::fprintf(file,
                   "{\"comms\": %ld, \"comms_made\": %ld, \"roots\": %ld, "
                   "\"streams\": %ld, \"events\": %ld, \"allocations\": %ld, "
                   "\"contexts\": %ld, \"payloads_sent\": %ld, "
                   "\"bytes_sent\": %ld, \"gathers\": %ld}\n",
                   c.comms, c.comms_made, c.roots, c.streams, c.events,
                   c.allocations, c.contexts, c.payloads_sent, c.bytes_sent,
                   c.gathers);
      std::fclose(file);
    }
  }
} stats_at_exit;

}  // namespace

namespace sluice::nccl {
struct Comm {
  std::shared_ptr<CommState> state;
  std::thread thread;
};
struct Stream {
  FakeStream stream;
};
}  // namespace sluice::nccl
namespace sluice::cuda {
struct Event {
  std::shared_ptr<EventState> state = std::make_shared<EventState>();
};
}  // namespace sluice::cuda

using sluice::cuda::Context;
using sluice::cuda::Copy2D;
using sluice::cuda::Event;
using sluice::nccl::Comm;
using sluice::nccl::Stream;

extern "C" {

FakeGpuCounts fake_gpu_counts() {
  std::lock_guard lock(world().mu);
  return world().counts;
}
void fake_gpu_mute_errors(int muted) {
  std::lock_guard lock(world().mu);
  world().muted = muted != 0;
}
void fake_gpu_stall_after(long bytes) {
  std::lock_guard lock(world().mu);
  world().stall_after = bytes;
  world().changed.notify_all();
}
long fake_gpu_stalled() {
  std::lock_guard lock(world().mu);
  return world().stalled;
}
void fake_gpu_fail_init(int result) {
  std::lock_guard lock(world().mu);
  world().fail_init = result;
}
void fake_gpu_pin(const void* data, size_t bytes) {
  std::lock_guard lock(world().mu);
  world().pinned[reinterpret_cast<uintptr_t>(data)] = bytes;
}
void fake_gpu_unpin(const void* data) {
  std::lock_guard lock(world().mu);
  world().pinned.erase(reinterpret_cast<uintptr_t>(data));
}
void fake_gpu_hide_device(int hidden) {
  std::lock_guard lock(world().mu);
  world().hidden = hidden != 0;
}

// libcuda

int cuInit(unsigned) { return 0; }
int cuDeviceGetCount(int* count) {
  std::lock_guard lock(world().mu);
  *count = world().hidden ? 0 : Devices();
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && ordinal < Devices() ? 0 : kCudaNoDevice;
}
int cuDeviceGetUuid(Uuid* uuid, int) {
  const char* name = std::getenv("SLUICE_FAKE_GPU_UUID");
  std::memset(uuid->bytes, 0, sizeof(uuid->bytes));
  if (name != nullptr) {
    std::strncpy(uuid->bytes, name, sizeof(uuid->bytes) - 1);
  } else {
    const uint64_t random[2] = {Random(), Random()};
    std::memcpy(uuid->bytes, random, sizeof(random));
  }
  return 0;
}
int cuDevicePrimaryCtxRetain(Context** context, int device) {
  *context = &contexts[device];
  Count(&FakeGpuCounts::contexts, 1);
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int) {
  Count(&FakeGpuCounts::contexts, -1);
  return 0;
}
int cuCtxSetCurrent(Context* current) {
  context = current;
  return 0;
}
int cuMemAlloc_v2(DeviceAddress* address, size_t bytes) {
  if (context == nullptr) return kCudaInvalidContext;
  if (bytes == 0) return kCudaInvalidValue;
  void* const data = std::malloc(bytes);
  *address = reinterpret_cast<uintptr_t>(data);
  std::lock_guard lock(world().mu);
  world().memory[reinterpret_cast<uintptr_t>(data)] = bytes;
  ++world().counts.allocations;
  return 0;
}
int cuMemFree_v2(DeviceAddress address) {
  if (context == nullptr) return kCudaInvalidContext;
  {
    std::lock_guard lock(world().mu);
    if (world().memory.erase(static_cast<uintptr_t>(address)) != 1) {
      return kCudaInvalidValue;
    }
    --world().counts.allocations;
  }
  std::free(reinterpret_cast<void*>(static_cast<uintptr_t>(address)));
  return 0;
}
int cuMemcpyHtoDAsync_v2(DeviceAddress to, const void* from, size_t bytes,
                         Stream* stream) {
  void* const data = reinterpret_cast<void*>(static_cast<uintptr_t>(to));
  if (context == nullptr) return kCudaInvalidContext;
  if (!OnDevice(data, bytes)) return kCudaInvalidValue;
  stream->stream.Put([=] { std::memcpy(data, from, bytes); });
  if (!Within(world().pinned, from, bytes)) stream->stream.Sync();
  return 0;
}
int cuMemcpyDtoHAsync_v2(void* to, DeviceAddress from, size_t bytes,
                         Stream* stream) {
  void* const data = reinterpret_cast<void*>(static_cast<uintptr_t>(from));
  if (context == nullptr) return kCudaInvalidContext;
  if (!OnDevice(data, bytes)) return kCudaInvalidValue;
  stream->stream.Put([=] { std::memcpy(to, data, bytes); });
  if (!Within(world().pinned, to, bytes)) stream->stream.Sync();
  return 0;
}
int cuMemcpy2DAsync_v2(const Copy2D* copy, Stream* stream) {
  if (context == nullptr) return kCudaInvalidContext;
  if (copy->width_bytes == 0 || copy->height == 0 ||
      copy->source_pitch < copy->width_bytes ||
      copy->to_pitch < copy->width_bytes) {
    return kCudaInvalidValue;
  }
  const auto place = [&](unsigned type, const void* host, DeviceAddress device,
                         size_t pitch) -> const char* {
    if (type == sluice::cuda::kMemoryTypeHost) {
      return static_cast<const char*>(host);
    }
    const void* const data =
        reinterpret_cast<void*>(static_cast<uintptr_t>(device));
    const size_t bytes = (copy->height - 1) * pitch + copy->width_bytes;
    return type == sluice::cuda::kMemoryTypeDevice && OnDevice(data, bytes)
               ? static_cast<const char*>(data)
               : nullptr;
  };
  const char* const from = place(copy->source_type, copy->source_host,
                                 copy->source_device, copy->source_pitch);
  char* const to = const_cast<char*>(
      place(copy->to_type, copy->to_host, copy->to_device, copy->to_pitch));
  if (from == nullptr || to == nullptr) return kCudaInvalidValue;
  stream->stream.Put([from, to, c = *copy] {
    for (size_t row = 0; row < c.height; ++row) {
      std::memcpy(to + row * c.to_pitch, from + row * c.source_pitch,
                  c.width_bytes);
    }
  });
  const void* const host = copy->source_type == sluice::cuda::kMemoryTypeHost
                               ? copy->source_host
                               : copy->to_host;
  if (host != nullptr && !Within(world().pinned, host, 1)) {
    stream->stream.Sync();
  }
  return 0;
}
int cuPointerGetAttribute(void* out, int attribute, DeviceAddress address) {
  const void* const data =
      reinterpret_cast<void*>(static_cast<uintptr_t>(address));
  if (attribute != sluice::cuda::kPointerMemoryType ||
      !Within(world().pinned, data, 1)) {
    return kCudaInvalidValue;
  }
  *static_cast<unsigned*>(out) = sluice::cuda::kMemoryTypeHost;
  return 0;
}
int cuStreamCreate(Stream** stream, unsigned) {
  if (context == nullptr) return kCudaInvalidContext;
  *stream = new Stream();
  Count(&FakeGpuCounts::streams, 1);
  return 0;
}
int cuStreamDestroy_v2(Stream* stream) {
  delete stream;
  Count(&FakeGpuCounts::streams, -1);
  return 0;
}
int cuStreamSynchronize(Stream* stream) {
  stream->stream.Sync();
  return 0;
}
int cuStreamWaitEvent(Stream* stream, Event* event, unsigned) {
  std::lock_guard lock(event->state->mu);
  stream->stream.Put(
      [state = event->state, n = event->state->recorded] { state->Await(n); });
  return 0;
}
int cuEventCreate(Event** event, unsigned) {
  if (context == nullptr) return kCudaInvalidContext;
  *event = new Event();
  Count(&FakeGpuCounts::events, 1);
  return 0;
}
int cuEventDestroy_v2(Event* event) {
  delete event;
  Count(&FakeGpuCounts::events, -1);
  return 0;
}
int cuEventRecord(Event* event, Stream* stream) {
  if (context == nullptr) return kCudaInvalidContext;
  std::lock_guard lock(event->state->mu);
  const uint64_t n = ++event->state->recorded;
  stream->stream.Put([state = event->state, n] {
    std::lock_guard own(state->mu);
    state->reached = std::max(state->reached, n);
    state->changed.notify_all();
  });
  return 0;
}
int cuEventQuery(Event* event) {
  std::lock_guard lock(event->state->mu);
  return event->state->reached >= event->state->recorded
             ? 0
             : sluice::cuda::kNotReady;
}
int cuGetErrorString(int result, const char** text) {
  *text = result == kCudaInvalidContext ? "invalid device context"
          : result == kCudaInvalidValue ? "invalid argument"
                                        : "fake error";
  return 0;
}

// libnccl

int ncclGetVersion(int* version) {
  *version = FAKE_NCCL_VERSION;
  return 0;
}
int ncclGetUniqueId(UniqueId* id) {
  IdFields fields = {};
  std::memcpy(fields.magic, kMagic, sizeof(kMagic));
  fields.cookie = Random();
  const int listener = Listen(&fields.port);
  if (listener < 0) return kNcclSystemError;
  std::memset(id->internal, 0, sizeof(id->internal));
  std::memcpy(id->internal, &fields, sizeof(fields));
  std::lock_guard lock(world().mu);
  world().roots[fields.cookie] = listener;
  ++world().counts.roots;
  return 0;
}
int ncclCommInitRankConfig(Comm** comm, int ranks, UniqueId id, int rank,
                           Config* config) {
  IdFields fields;
  std::memcpy(&fields, id.internal, sizeof(fields));
  if (ranks < 2 || rank < 0 || rank >= ranks || config->magic != 0xcafebeef ||
      config->blocking != 0 ||
      std::memcmp(fields.magic, kMagic, sizeof(kMagic)) != 0) {
    return sluice::nccl::kInvalidArgument;
  }
  if (context == nullptr) return sluice::nccl::kInvalidUsage;
  auto state = std::make_shared<CommState>();
  state->rank = rank;
  state->ranks = ranks;
  {
    std::lock_guard lock(world().mu);
    std::shared_ptr<Gathering> gathering = gatherings()[fields.cookie].lock();
    if (gathering == nullptr) {
      gathering = std::make_shared<Gathering>(ranks);
      gatherings()[fields.cookie] = gathering;
    }
    std::lock_guard own(gathering->mu);
    // As the real one, it wants ranks of a process on devices of their own; two
    // that send to each other may be on one here.
    for (const auto& [other, device] : gathering->joined) {
      if (ranks > 2 && device == context) return sluice::nccl::kInvalidUsage;
    }
    gathering->joined[rank] = context;
    gathering->changed.notify_all();
    state->gathering = std::move(gathering);
  }
  if (pipe2(state->wake, O_CLOEXEC) != 0) return kNcclSystemError;
  *comm = new Comm{state,
                   std::thread([state, fields] { PlayComm(state, fields); })};
  Count(&FakeGpuCounts::comms, 1);
  Count(&FakeGpuCounts::comms_made, 1);
  return sluice::nccl::kInProgress;
}
int ncclCommAbort(Comm* comm) {
  CommState& state = *comm->state;
  state.gathering->Break();
  {
    std::lock_guard lock(state.mu);
    state.aborted = true;
    state.changed.notify_all();
    [[maybe_unused]] const ssize_t n = write(state.wake[1], "x", 1);
  }
  {
    std::lock_guard lock(world().mu);
    world().changed.notify_all();
  }
  comm->thread.join();
  // The descriptors live until the streams have let go of the state.
  if (state.fd >= 0) shutdown(state.fd, SHUT_RDWR);
  delete comm;
  Count(&FakeGpuCounts::comms, -1);
  return 0;
}
int ncclCommGetAsyncError(Comm* comm, int* error) {
  bool muted = false;
  {
    std::lock_guard lock(world().mu);
    muted = world().muted;
  }
  CommState& state = *comm->state;
  std::lock_guard lock(state.mu);
  if (!state.ready) {
    *error =
        state.error != 0 && !muted ? state.error : sluice::nccl::kInProgress;
  } else if (state.error != 0 && !muted) {
    *error = state.error;
  } else if (state.polls_left > 0) {
    --state.polls_left;
    *error = sluice::nccl::kInProgress;
  } else {
    *error = 0;
  }
  return 0;
}
#ifndef FAKE_WITHOUT_SEND
int ncclSend(const void* data, size_t count, int type, int peer, Comm* comm,
             Stream* stream) {
  CommState& state = *comm->state;
  if (type != sluice::nccl::kUint8 || peer != 1 - state.rank ||
      !OnDevice(data, count)) {
    return sluice::nccl::kInvalidArgument;
  }
  std::lock_guard lock(state.mu);
  if (context == nullptr || !state.ready || state.polls_left > 0) {
    return sluice::nccl::kInvalidUsage;
  }
  stream->stream.Put([shared = comm->state, data, count] {
    Transfer(shared, static_cast<char*>(const_cast<void*>(data)), count, true);
  });
  state.polls_left = kPollsInProgress;
  return sluice::nccl::kInProgress;
}
#endif
int ncclRecv(void* data, size_t count, int type, int peer, Comm* comm,
             Stream* stream) {
  CommState& state = *comm->state;
  if (type != sluice::nccl::kUint8 || peer != 1 - state.rank ||
      !OnDevice(data, count)) {
    return sluice::nccl::kInvalidArgument;
  }
  std::lock_guard lock(state.mu);
  if (context == nullptr || !state.ready || state.polls_left > 0) {
    return sluice::nccl::kInvalidUsage;
  }
  stream->stream.Put([shared = comm->state, data, count] {
    Transfer(shared, static_cast<char*>(data), count, false);
  });
  state.polls_left = kPollsInProgress;
  return sluice::nccl::kInProgress;
}
int ncclAllGather(const void* data, void* all, size_t count, int type,
                  Comm* comm, Stream* stream) {
  CommState& state = *comm->state;
  if (type != sluice::nccl::kUint8 || count == 0 || !OnDevice(data, count) ||
      !OnDevice(all, count * state.ranks)) {
    return sluice::nccl::kInvalidArgument;
  }
  std::lock_guard lock(state.mu);
  if (context == nullptr || !state.ready || state.polls_left > 0) {
    return sluice::nccl::kInvalidUsage;
  }
  stream->stream.Put([shared = comm->state, data, all, count] {
    if (shared->gathering->AllGather(shared->rank,
                                     static_cast<const char*>(data),
                                     static_cast<char*>(all), count)) {
      Count(&FakeGpuCounts::gathers, 1);
      return;
    }
    shared->Fail(sluice::nccl::kRemoteError);
    shared->HangUntilAborted();
  });
  state.polls_left = kPollsInProgress;
  return sluice::nccl::kInProgress;
}
const char* ncclGetErrorString(int result) {
  switch (result) {
    case kNcclSystemError:
      return "unhandled system error";
    case sluice::nccl::kInvalidArgument:
      return "invalid argument";
    case sluice::nccl::kInvalidUsage:
      return "invalid usage";
    case sluice::nccl::kRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "fake error";
  }
}

}  // extern "C"
