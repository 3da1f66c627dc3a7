#include "tests/cuda/emulation/streams.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/threads/mutex.h"

namespace {

// A place in a stream's work.
struct Mark {
  cudaStream_t stream = nullptr;
  bool done = false;
  int64_t at_ns = 0;
};

struct Work {
  sluice::emulation::WorkKind kind = sluice::emulation::WorkKind::kOther;
  std::function<cudaError_t()> run;
  std::shared_ptr<Mark> needs;  // may be null
  std::shared_ptr<Mark> mark;   // may be null
};

}  // namespace

// Work that a graph has.
struct Captured {
  sluice::emulation::WorkKind kind;
  std::function<cudaError_t()> run;
};
struct CUgraph_st {
  std::vector<Captured> work;
};
struct CUgraphExec_st {
  std::vector<Captured> work;
};

// State::mutex guards all members of streams.
struct CUstream_st {
  int device = 0;
  bool blocking = false;
  std::deque<Work> work;  // the first of it may be under way
  // These are in use while the stream is captured.
  std::unique_ptr<CUgraph_st> capture;
  std::thread::id capturing_thread;
  bool capture_broken = false;
};
struct CUevent_st {
  int device = 0;
  bool timed = true;
  std::shared_ptr<Mark> mark;  // null: never recorded
};

namespace sluice::emulation {
namespace {

// The least time that a wait for late copies takes.
constexpr std::chrono::microseconds kPatience{100};

struct State {
  Mutex mutex;
  std::set<cudaStream_t> streams ABSL_GUARDED_BY(mutex);
  std::set<cudaEvent_t> events ABSL_GUARDED_BY(mutex);
  CUstream_st zero ABSL_GUARDED_BY(mutex);
  std::string lost_text ABSL_GUARDED_BY(mutex);
  std::atomic<cudaError_t> lost{cudaSuccess};
  std::atomic<Timing> timing{Timing::kAtOnce};
  std::atomic<int> devices{1};
  std::atomic<int> driver_version{13000};
  std::atomic<int> capability{__CUDA_ARCH__ / 10};
  std::atomic<int> graph_launches{0}, live_graphs{0};
  // The thread that does a stream's work holds this: one piece is done at a
  // time, of all streams.
  Mutex engine;
};

State& TheState() {
  static State state;
  return state;
}

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

cudaStream_t Resolve(State& state, cudaStream_t stream)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex) {
  return stream == nullptr ? &state.zero : stream;
}

bool IsLate(const Work& work) {
  if (work.needs != nullptr && !work.needs->done) return true;
  const Timing timing = TheState().timing;
  return (timing == Timing::kLateKernels && work.kind == WorkKind::kKernel) ||
         (timing == Timing::kLateCopies && work.kind == WorkKind::kCopy);
}

// The point up to which Run() does a stream's work.
struct Until {
  const Mark* mark = nullptr;  // null: all of it
  bool late = true;            // false: up to what is late
  int most = -1;               // pieces; -1: any number
};

void Run(State& state, cudaStream_t stream, Until until)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.engine) {
  for (int i = 0; i != until.most; ++i) {
    Work work;
    {
      MutexLock lock(&state.mutex);
      if (until.mark != nullptr && until.mark->done) return;
      if (stream->work.empty()) return;
      if (!until.late && IsLate(stream->work.front())) return;
      // It stays the first until it is done.
      work = std::move(stream->work.front());
    }
    if (work.needs != nullptr) {
      Run(state, work.needs->stream, {.mark = work.needs.get()});
    }
    cudaError_t error = cudaSuccess;
    if (state.lost == cudaSuccess && work.run != nullptr) error = work.run();
    MutexLock lock(&state.mutex);
    stream->work.pop_front();
    if (work.mark != nullptr) {
      work.mark->done = true;
      work.mark->at_ns = Now();
    }
    if (error != cudaSuccess && state.lost == cudaSuccess) state.lost = error;
  }
}

cudaError_t Put(cudaStream_t stream, Work work) {
  State& state = TheState();
  {
    MutexLock lock(&state.mutex);
    stream = Resolve(state, stream);
    if (stream->capture != nullptr) {
      if (work.needs != nullptr || work.mark != nullptr) {
        stream->capture_broken = true;
        return Record(cudaErrorStreamCaptureUnsupported);
      }
      stream->capture->work.push_back({work.kind, std::move(work.run)});
      return cudaSuccess;
    }
    stream->work.push_back(std::move(work));
  }
  MutexLock engine(&state.engine);
  Run(state, stream, {.late = false});
  return Record(state.lost);
}

// Late copies come when there was time for what does not wait for them.
void BePatient() {
  if (TheState().timing == Timing::kLateCopies) {
    std::this_thread::sleep_for(kPatience);
  }
}

// Sets *mark to what `event` stands for now; null if that is done, or was never
// recorded.
cudaError_t MarkOf(cudaEvent_t event, std::shared_ptr<Mark>* mark) {
  State& state = TheState();
  MutexLock lock(&state.mutex);
  if (!state.events.contains(event)) return cudaErrorInvalidResourceHandle;
  *mark = event->mark != nullptr && !event->mark->done ? event->mark : nullptr;
  return cudaSuccess;
}

bool IsDone(State& state, const Mark& mark) {
  MutexLock lock(&state.mutex);
  return mark.done;
}

}  // namespace

cudaError_t Record(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void SetTiming(Timing timing) {
  FinishDevice();
  TheState().timing = timing;
}

void SetTimingOfTheTest() {
  const char* name = std::getenv("SLUICE_TEST_TIMING");
  const std::string timing = name == nullptr ? "at_once" : name;
  const std::map<std::string, Timing> timings = {
      {"at_once", Timing::kAtOnce},
      {"late_kernels", Timing::kLateKernels},
      {"late_copies", Timing::kLateCopies}};
  SetTiming(timings.at(timing));
}

Timing CurrentTiming() { return TheState().timing; }

void LoseDevice(cudaError_t error, const std::string& what) {
  State& state = TheState();
  MutexLock lock(&state.mutex);
  state.lost = error;
  state.lost_text = what;
  if (error == cudaSuccess) last_error = cudaSuccess;
}

cudaError_t LostError() { return TheState().lost; }

std::string LostText() {
  State& state = TheState();
  MutexLock lock(&state.mutex);
  return state.lost_text;
}

void SetDriverVersion(int version) { TheState().driver_version = version; }
int DriverVersion() { return TheState().driver_version; }
void SetCapability(int capability) { TheState().capability = capability; }
int Capability() { return TheState().capability; }
void SetDeviceCount(int count) { TheState().devices = count; }
int DeviceCount() { return TheState().devices; }
int CurrentDevice() { return current_device; }

cudaError_t SetCurrentDevice(int device) {
  if (device < 0 || device >= DeviceCount()) return cudaErrorInvalidDevice;
  current_device = device;
  return LostError();
}

bool IsStream(cudaStream_t stream) {
  if (stream == nullptr) return true;
  State& state = TheState();
  MutexLock lock(&state.mutex);
  return state.streams.contains(stream);
}

bool IsStreamHere(cudaStream_t stream) {
  if (stream == nullptr) return true;
  State& state = TheState();
  MutexLock lock(&state.mutex);
  return state.streams.contains(stream) && stream->device == current_device;
}

cudaError_t Enqueue(cudaStream_t stream, WorkKind kind,
                    std::function<cudaError_t()> work) {
  return Put(stream, {.kind = kind, .run = std::move(work)});
}

bool IsCapturing(cudaStream_t stream) {
  State& state = TheState();
  MutexLock lock(&state.mutex);
  return Resolve(state, stream)->capture != nullptr;
}

cudaError_t BreakCaptureOf(cudaStream_t stream) {
  State& state = TheState();
  MutexLock lock(&state.mutex);
  stream = Resolve(state, stream);
  if (stream->capture == nullptr) return cudaSuccess;
  stream->capture_broken = true;
  return Record(cudaErrorStreamCaptureUnsupported);
}

cudaError_t BreakCaptureHere() {
  State& state = TheState();
  MutexLock lock(&state.mutex);
  bool any = false;
  for (cudaStream_t stream : state.streams) {
    if (stream->capture == nullptr ||
        stream->capturing_thread != std::this_thread::get_id()) {
      continue;
    }
    stream->capture_broken = true;
    any = true;
  }
  return any ? Record(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

int TakeGraphLaunches() { return TheState().graph_launches.exchange(0); }
int LiveGraphs() { return TheState().live_graphs; }

cudaError_t FinishStreamZero() {
  State& state = TheState();
  std::set<cudaStream_t> streams;
  {
    MutexLock lock(&state.mutex);
    for (cudaStream_t stream : state.streams) {
      if (stream->blocking) streams.insert(stream);
    }
    streams.insert(&state.zero);
  }
  MutexLock engine(&state.engine);
  for (cudaStream_t stream : streams) Run(state, stream, {});
  return Record(state.lost);
}

cudaError_t FinishDevice() {
  State& state = TheState();
  std::set<cudaStream_t> streams;
  {
    MutexLock lock(&state.mutex);
    streams = state.streams;
    streams.insert(&state.zero);
  }
  MutexLock engine(&state.engine);
  for (cudaStream_t stream : streams) Run(state, stream, {});
  return Record(state.lost);
}

}  // namespace sluice::emulation

using namespace sluice::emulation;  // NOLINT: the rest is in CUDA's namespace
using sluice::MutexLock;

cudaError_t cudaGetLastError() {
  if (LostError() != cudaSuccess) return LostError();
  return std::exchange(last_error, cudaSuccess);
}

cudaError_t cudaPeekAtLastError() {
  return LostError() != cudaSuccess ? LostError() : last_error;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (LostError() != cudaSuccess) return Record(LostError());
  State& state = TheState();
  MutexLock lock(&state.mutex);
  *stream = new CUstream_st;
  (*stream)->device = CurrentDevice();
  (*stream)->blocking = (flags & cudaStreamNonBlocking) == 0;
  state.streams.insert(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (stream == nullptr || !IsStream(stream)) {
    return Record(cudaErrorInvalidResourceHandle);
  }
  State& state = TheState();
  {
    MutexLock engine(&state.engine);
    Run(state, stream, {});
    MutexLock lock(&state.mutex);
    state.streams.erase(stream);
    delete stream;
  }
  return Record(LostError());
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (!IsStream(stream)) return Record(cudaErrorInvalidResourceHandle);
  const cudaError_t error = BreakCaptureOf(stream);
  if (error != cudaSuccess) return error;
  if (stream == nullptr) return FinishStreamZero();
  BePatient();
  State& state = TheState();
  MutexLock engine(&state.engine);
  Run(state, stream, {});
  return Record(state.lost);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (!IsStream(stream)) return Record(cudaErrorInvalidResourceHandle);
  const cudaError_t error = BreakCaptureOf(stream);
  if (error != cudaSuccess) return error;
  State& state = TheState();
  if (stream == nullptr) stream = &state.zero;
  {
    MutexLock engine(&state.engine);
    Run(state, stream, {.most = 1});
  }
  if (LostError() != cudaSuccess) return Record(LostError());
  MutexLock lock(&state.mutex);
  // cudaErrorNotReady is not an error that cudaGetLastError would tell of.
  return stream->work.empty() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned) {
  std::shared_ptr<Mark> mark;
  if (!IsStream(stream) || MarkOf(event, &mark) != cudaSuccess) {
    return Record(cudaErrorInvalidResourceHandle);
  }
  if (mark == nullptr) return Record(LostError());
  return Put(stream, {.needs = std::move(mark)});
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream,
                                   cudaStreamCaptureMode mode) {
  // The stream 0 cannot be captured; of other modes nothing is emulated.
  if (stream == nullptr || mode != cudaStreamCaptureModeThreadLocal) {
    return Record(cudaErrorStreamCaptureUnsupported);
  }
  if (!IsStreamHere(stream)) return Record(cudaErrorInvalidResourceHandle);
  if (LostError() != cudaSuccess) return Record(LostError());
  State& state = TheState();
  MutexLock lock(&state.mutex);
  if (stream->capture != nullptr) return Record(cudaErrorIllegalState);
  stream->capture = std::make_unique<CUgraph_st>();
  stream->capturing_thread = std::this_thread::get_id();
  stream->capture_broken = false;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (stream == nullptr || !IsStream(stream)) {
    return Record(cudaErrorInvalidResourceHandle);
  }
  State& state = TheState();
  MutexLock lock(&state.mutex);
  if (stream->capture == nullptr) return Record(cudaErrorIllegalState);
  const std::unique_ptr<CUgraph_st> captured = std::move(stream->capture);
  if (stream->capture_broken) return Record(cudaErrorStreamCaptureInvalidated);
  ++state.live_graphs;
  *graph = new CUgraph_st(std::move(*captured));
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags) {
  *exec = nullptr;
  if (graph == nullptr || flags != 0) return Record(cudaErrorInvalidValue);
  if (LostError() != cudaSuccess) return Record(LostError());
  ++TheState().live_graphs;
  *exec = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (exec == nullptr || !IsStreamHere(stream)) {
    return Record(cudaErrorInvalidValue);
  }
  const cudaError_t error = BreakCaptureOf(stream);
  if (error != cudaSuccess) return error;
  if (LostError() != cudaSuccess) return Record(LostError());
  ++TheState().graph_launches;
  for (const Captured& work : exec->work) {
    const cudaError_t put = Enqueue(stream, work.kind, work.run);
    if (put != cudaSuccess) return put;
  }
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  if (graph == nullptr) return Record(cudaErrorInvalidValue);
  --TheState().live_graphs;
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  if (exec == nullptr) return Record(cudaErrorInvalidValue);
  --TheState().live_graphs;
  delete exec;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (LostError() != cudaSuccess) return Record(LostError());
  State& state = TheState();
  MutexLock lock(&state.mutex);
  *event = new CUevent_st;
  (*event)->device = CurrentDevice();
  (*event)->timed = (flags & cudaEventDisableTiming) == 0;
  state.events.insert(*event);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  State& state = TheState();
  {
    MutexLock lock(&state.mutex);
    if (state.events.erase(event) == 0) {
      return Record(cudaErrorInvalidResourceHandle);
    }
    delete event;
  }
  return Record(LostError());
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  State& state = TheState();
  auto mark = std::make_shared<Mark>();
  {
    MutexLock lock(&state.mutex);
    if (!state.events.contains(event) ||
        (stream != nullptr && (!state.streams.contains(stream) ||
                               stream->device != event->device))) {
      return Record(cudaErrorInvalidResourceHandle);
    }
    mark->stream = Resolve(state, stream);
    event->mark = mark;
  }
  return Put(stream, {.mark = std::move(mark)});
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  std::shared_ptr<Mark> mark;
  const cudaError_t error = MarkOf(event, &mark);
  if (error != cudaSuccess) return Record(error);
  State& state = TheState();
  if (mark != nullptr) {
    MutexLock engine(&state.engine);
    Run(state, mark->stream, {.mark = mark.get(), .most = 1});
  }
  if (LostError() != cudaSuccess) return Record(LostError());
  return mark == nullptr || IsDone(state, *mark) ? cudaSuccess
                                                 : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  std::shared_ptr<Mark> mark;
  const cudaError_t error = MarkOf(event, &mark);
  if (error != cudaSuccess) return Record(error);
  if (mark == nullptr) return Record(LostError());
  BePatient();
  State& state = TheState();
  MutexLock engine(&state.engine);
  Run(state, mark->stream, {.mark = mark.get()});
  return Record(state.lost);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start,
                                 cudaEvent_t end) {
  if (LostError() != cudaSuccess) return Record(LostError());
  State& state = TheState();
  MutexLock lock(&state.mutex);
  for (cudaEvent_t event : {start, end}) {
    if (!state.events.contains(event) || !event->timed ||
        event->mark == nullptr) {
      return Record(cudaErrorInvalidResourceHandle);
    }
    if (!event->mark->done) return cudaErrorNotReady;
  }
  *milliseconds =
      static_cast<float>(end->mark->at_ns - start->mark->at_ns) * 1e-6f;
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*body)(void* data),
                               void* data) {
  if (!IsStream(stream)) return Record(cudaErrorInvalidResourceHandle);
  return Enqueue(stream, WorkKind::kOther, [=] {
    body(data);
    return cudaSuccess;
  });
}
